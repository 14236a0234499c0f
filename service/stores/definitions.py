"""Models, clusters and GPU types that a tenant describes once and names as ``name`` or ``name@2``.

A problem gets the figures, not the name: a job, and its answer, stay what they were when a definition
gets a new version or is deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from meshwright.profiles.cluster import MAX_GPUS, MAX_NODES
from meshwright.profiles.errors import InvalidProblemError, faults_as
from meshwright.profiles.gpus import NAME, NAME_FORM, gpu_from_mapping, gpu_to_mapping
from meshwright.profiles.inline import (
    MAX_GROUPS,
    cluster_from_mapping,
    cluster_to_mapping,
    model_from_mapping,
)
from meshwright.profiles.library import (
    cluster_names,
    find_cluster,
    find_gpu,
    find_model,
    gpu_names,
    model_names,
)
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.profiles.reading import FieldReader
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database, compact_json
from meshwright.service.db.key_records import note
from meshwright.service.db.rows import added_to, all_of, one_of
from meshwright.service.db.tables import definitions
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs.idempotency import settled
from meshwright.service.requests.parts import named_parts
from meshwright.service.stored import FOREIGN_SHAPE, Unreadable

Kind = Literal["model", "cluster", "gpu"]
MAX_NAMES = 1_000  # of one kind, for one tenant
MAX_VERSIONS = 1_000  # of one name
KINDS: tuple[Kind, ...] = ("model", "cluster", "gpu")
_REFERENCE = re.compile(r"([a-z0-9][a-z0-9._-]{0,63})(?:@([1-9][0-9]{0,8}))?")
# The catalog's names, which are reserved, and what finds an entry by its name.
CATALOG: Mapping[Kind, tuple[Callable[[], tuple[str, ...]], Callable[[str], Any]]] = {
    "model": (model_names, find_model),
    "cluster": (cluster_names, find_cluster),
    "gpu": (gpu_names, find_gpu),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionRecord:
    """One version of one definition."""

    name: str
    version: int
    document: Mapping[str, Any]
    created_at_s: float


def why_unreadable(kind: Kind, record: DefinitionRecord) -> str | None:
    """Return why no problem can use a stored definition; None: it can."""
    if isinstance(record.document, Unreadable):
        return str(record.document["unreadable"])
    return _why_unreadable(kind, record.name, compact_json(record.document))


@lru_cache(maxsize=2_048)  # reading one takes .2 ms
def _why_unreadable(kind: Kind, name: str, text: str) -> str | None:
    try:
        _canonical(kind, name, json.loads(text))
    except InvalidProblemError as fault:
        first = fault.errors[0]
        return f"{first.field}: {first.message}" if first.pointer else first.message
    except FOREIGN_SHAPE:
        return "it has a shape that this release does not know"
    return None


_RECORD = tuple(definitions.c[name] for name in DefinitionRecord.__slots__)


class Definitions:
    """The use cases of described models, clusters and GPU types."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(
        self, tenant: str, kind: Kind, name: str, raw: Mapping[str, object]
    ) -> tuple[DefinitionRecord, bool]:
        """Keep a definition; return True if it is a new version, False if it equals the newest.

        Raises:
            InvalidProblemError: the name or a field is wrong, or there are too many.
        """
        if not NAME.fullmatch(name):
            raise InvalidProblemError.of("/path/name", "is not usable", allowed=NAME_FORM)
        if name in CATALOG[kind][0]():
            raise InvalidProblemError.of("/path/name", f"the catalog has a {kind} of this name")
        document = _canonical(kind, name, self._with_gpus(tenant, raw) if kind == "cluster" else raw)
        return settled(lambda: self._put_once(tenant, kind, name, document))

    def read(self, tenant: str, kind: Kind, name: str, version: int | None = None) -> DefinitionRecord:
        """Return one version, or the newest.

        Raises:
            NotFoundError: this tenant has no such definition.
        """
        with self._database.read() as connection:
            found = _found(connection, tenant, kind, name, version) if NAME.fullmatch(name) else None
        if found is None:
            raise NotFoundError(f"there is no such {kind}")
        return found

    def page(self, tenant: str, kind: Kind, *, after: str, limit: int) -> list[DefinitionRecord]:
        """Return the newest versions of up to ``limit`` definitions after the name ``after``, by name."""
        there, name = _there(tenant, kind), definitions.c.name
        newest = (
            select(name.label("name"), func.max(definitions.c.version).label("version"))
            .where(*there, name > after)
            .group_by(name)
            .order_by(name)
            .limit(limit)
            .subquery()
        )
        same = (name == newest.c.name) & (definitions.c.version == newest.c.version)
        query = select(*_RECORD).join(newest, same).where(*_own(tenant, kind)).order_by(name)
        with self._database.read() as connection:
            return all_of(connection, DefinitionRecord, query)

    def delete(self, tenant: str, kind: Kind, name: str, *, actor: str) -> None:
        """Delete every version of a definition.

        Raises:
            NotFoundError: this tenant has no such definition.
        """
        with self._database.write() as connection:
            gone = update(definitions).where(*_there(tenant, kind), definitions.c.name == name)
            known = NAME.fullmatch(name) is not None
            if not known or not connection.execute(gone.values(deleted_at_s=now_s())).rowcount:
                raise NotFoundError(f"there is no such {kind}")
            note(connection, tenant, actor=actor, action=f"{kind}.delete", subject=name)

    def filled_in(self, tenant: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """Return a problem with the figures of the definitions that it names; other parts do not change.

        Raises:
            InvalidProblemError: at ``/cluster/num_nodes``: the cluster has groups of its own sizes.
        """
        body = named_parts(body)
        model, cluster = self._named(tenant, "model", body), self._named(tenant, "cluster", body)
        filled = dict(body)
        if model is not None:
            filled["model"] = dict(model.document)
        if cluster is not None:
            filled["cluster"] = _resized(cluster.document, body["cluster"])
        elif isinstance(stated := body.get("cluster"), Mapping):
            filled["cluster"] = self._with_gpus(tenant, stated)
        return filled

    def _with_gpus(self, tenant: str, cluster: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a cluster with the figures of this tenant's GPU types that its node groups name."""
        groups = cluster.get("groups")
        if groups is None and "gpu" in cluster:  # one group
            gpu = self._of_name(tenant, "gpu", cluster["gpu"])
            return cluster if gpu is None else {**cluster, "gpu": dict(gpu.document)}
        name = cluster.get("name")
        if groups is None and name not in CATALOG["cluster"][0]():  # a GPU type may stand for its nodes
            gpu = self._of_name(tenant, "gpu", name)
            others = {key: value for key, value in cluster.items() if key != "name"}
            return cluster if gpu is None else {**others, "gpu": dict(gpu.document)}
        if not isinstance(groups, list | tuple) or len(groups) > MAX_GROUPS:
            return cluster  # refused when it is read; each name costs a query
        filled = []
        for group in groups:
            gpu = self._of_name(tenant, "gpu", group.get("gpu") if isinstance(group, Mapping) else None)
            filled.append(group if gpu is None else {**group, "gpu": dict(gpu.document)})
        return {**cluster, "groups": filled}

    def _put_once(
        self, tenant: str, kind: Kind, name: str, document: Mapping[str, object]
    ) -> tuple[DefinitionRecord, bool]:
        """Compare with the newest version, and add one where it differs."""
        with self._database.write() as connection:
            newest = _found(connection, tenant, kind, name, None)
            if newest is not None and newest.document == document:
                return newest, False
            names = select(func.count(definitions.c.name.distinct())).where(*_there(tenant, kind))
            if newest is None and connection.execute(names).scalar_one() >= MAX_NAMES:
                raise InvalidProblemError.of(
                    "/path/name", f"there are {MAX_NAMES} of this kind. Delete one first"
                )
            own = *_there(tenant, kind), definitions.c.name == name
            versions = select(func.count()).select_from(definitions).where(*own)
            if newest is not None and connection.execute(versions).scalar_one() >= MAX_VERSIONS:
                raise InvalidProblemError.of(
                    "/path/name", f"there are {MAX_VERSIONS} versions. Delete them, or use another name"
                )
            last = select(func.coalesce(func.max(definitions.c.version), 0) + 1)
            last = last.where(*_own(tenant, kind), definitions.c.name == name)
            new = insert(definitions).values(
                tenant=tenant,
                kind=kind,
                name=name,
                version=last.scalar_subquery(),
                document=document,
                created_at_s=now_s(),
            )
            # IntegrityError if another request did at the same time: ``settled`` tries again
            return added_to(connection, DefinitionRecord, new.returning(*_RECORD)), True

    def _named(self, tenant: str, kind: Kind, body: Mapping[str, object]) -> DefinitionRecord | None:
        part = body.get(kind)
        if not isinstance(part, dict) or not part.keys() <= {"name", "num_nodes", "num_gpus"}:
            return None
        return self._of_name(tenant, kind, part.get("name"))

    def _of_name(self, tenant: str, kind: Kind, name: object) -> DefinitionRecord | None:
        match = _REFERENCE.fullmatch(name) if isinstance(name, str) else None
        if match is None or match[1] in CATALOG[kind][0]():
            return None
        version = int(match[2]) if match[2] else None
        with self._database.read() as connection:
            found = _found(connection, tenant, kind, match[1], version)
        why = None if found is None else why_unreadable(kind, found)
        if found is not None and why is not None:
            raise InvalidProblemError.of(
                f"/{'cluster' if kind == 'gpu' else kind}/name",
                f"the stored {kind} {found.name}@{found.version} can't be read: {why}",
                allowed=f"save it again with PUT /v1/{kind}s/{found.name}",
            )
        return found


def _own(tenant: str, kind: Kind) -> tuple[ColumnElement[bool], ...]:
    return definitions.c.tenant == tenant, definitions.c.kind == kind


def _there(tenant: str, kind: Kind) -> tuple[ColumnElement[bool], ...]:
    return *_own(tenant, kind), definitions.c.deleted_at_s.is_(None)


def _found(
    connection: Connection, tenant: str, kind: Kind, name: str, version: int | None
) -> DefinitionRecord | None:
    query = select(*_RECORD).where(*_there(tenant, kind), definitions.c.name == name)
    if version is not None:
        query = query.where(definitions.c.version == version)
    return one_of(connection, DefinitionRecord, query.order_by(definitions.c.version.desc()).limit(1))


def _canonical(kind: Kind, name: str, raw: Mapping[str, object]) -> dict[str, Any]:
    with faults_as(lambda fault: replace(fault, pointer=fault.pointer.removeprefix(f"/{kind}"))):
        if kind == "model":
            return dict(model_to_mapping(model_from_mapping({**raw, "name": name})))
        if kind == "gpu":
            return dict(gpu_to_mapping(gpu_from_mapping({**raw, "name": name})))
        if "groups" not in raw:
            raise InvalidProblemError.of("/cluster/groups", "is required")
        return dict(cluster_to_mapping(replace(cluster_from_mapping(raw), name=name)))


def _resized(document: Mapping[str, Any], part: object) -> dict[str, Any]:
    reader = FieldReader(part, "/cluster")
    sizes = {
        "num_nodes": reader.optional_integer("num_nodes", high=MAX_NODES),
        "num_gpus": reader.optional_integer("num_gpus", high=MAX_GPUS),
    }
    reader.finish()
    stated = {name: size for name, size in sizes.items() if size is not None}
    if not stated:
        return dict(document)
    groups = document["groups"]
    if len(groups) != 1:
        raise InvalidProblemError.of(
            f"/cluster/{next(iter(stated))}",
            f"this cluster has {len(groups)} groups, each with its own number of nodes",
        )
    group = {name: value for name, value in groups[0].items() if name != "num_nodes"}
    return {**document, "groups": [{**group, **stated}]}
