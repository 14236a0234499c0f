"""Queries over the parts of problems that tenants describe; they run in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.sql.elements import ColumnElement

from meshwright.service.db.clock import now_s
from meshwright.service.db.rows import all_of, one_of
from meshwright.service.db.tables import definitions

Kind = Literal["model", "cluster", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionRecord:
    """One version of one definition."""

    name: str
    version: int
    document: Mapping[str, Any]
    created_at_s: float


_RECORD = tuple(definitions.c[name] for name in DefinitionRecord.__slots__)


def _own(tenant: str, kind: Kind) -> tuple[ColumnElement[bool], ...]:
    return definitions.c.tenant == tenant, definitions.c.kind == kind


def find_definition(
    connection: Connection, tenant: str, kind: Kind, name: str, version: int | None
) -> DefinitionRecord | None:
    """Return one version of a definition, or its newest; a deleted one is not there."""
    query = select(*_RECORD).where(
        *_own(tenant, kind), definitions.c.name == name, definitions.c.deleted_at_s.is_(None)
    )
    if version is not None:
        query = query.where(definitions.c.version == version)
    return one_of(connection, DefinitionRecord, query.order_by(definitions.c.version.desc()).limit(1))


def newest_definitions(
    connection: Connection, tenant: str, kind: Kind, *, after: str, limit: int
) -> list[DefinitionRecord]:
    """Return the newest versions of up to ``limit`` definitions with names after ``after``, by name."""
    newest = (
        select(definitions.c.name.label("name"), func.max(definitions.c.version).label("version"))
        .where(*_own(tenant, kind), definitions.c.name > after, definitions.c.deleted_at_s.is_(None))
        .group_by(definitions.c.name)
        .order_by(definitions.c.name)
        .limit(limit)
        .subquery()
    )
    same = (definitions.c.name == newest.c.name) & (definitions.c.version == newest.c.version)
    query = select(*_RECORD).join(newest, same).where(*_own(tenant, kind)).order_by(definitions.c.name)
    return all_of(connection, DefinitionRecord, query)


def count_names(connection: Connection, tenant: str, kind: Kind) -> int:
    """Return how many definitions of a kind a tenant has."""
    query = select(func.count(definitions.c.name.distinct())).where(
        *_own(tenant, kind), definitions.c.deleted_at_s.is_(None)
    )
    return connection.execute(query).scalar_one()


def count_versions(connection: Connection, tenant: str, kind: Kind, name: str) -> int:
    """Return how many versions of a definition there are."""
    own = *_own(tenant, kind), definitions.c.name == name, definitions.c.deleted_at_s.is_(None)
    return connection.execute(select(func.count()).select_from(definitions).where(*own)).scalar_one()


def insert_definition(
    connection: Connection, tenant: str, kind: Kind, name: str, *, document: Mapping[str, object]
) -> None:
    """Add the next version; IntegrityError when another request did at the same time."""
    last = select(func.coalesce(func.max(definitions.c.version), 0) + 1).where(
        *_own(tenant, kind), definitions.c.name == name
    )
    connection.execute(
        insert(definitions).values(
            tenant=tenant,
            kind=kind,
            name=name,
            version=last.scalar_subquery(),
            document=document,
            created_at_s=now_s(),
        )
    )


def delete_definition(connection: Connection, tenant: str, kind: Kind, name: str) -> bool:
    """Delete every version of a definition; False: there is none."""
    gone = update(definitions).where(
        *_own(tenant, kind), definitions.c.name == name, definitions.c.deleted_at_s.is_(None)
    )
    return connection.execute(gone.values(deleted_at_s=now_s())).rowcount > 0
