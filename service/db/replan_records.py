"""Queries over re-plans that launchers were answered; they run in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from meshwright.service.db.clock import now_s
from meshwright.service.db.records import is_identifier
from meshwright.service.db.rows import all_of, newest_first, one_of
from meshwright.service.db.tables import replans

MAX_REPLANS = 100  # of one job on record; a new one takes the place of the oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanRecord:
    """One row of ``replans`` without its answer."""

    id: str
    job_id: str
    key_id: str | None  # of the caller; None: no keys are demanded
    request: Mapping[str, Any]
    created_at_s: float


_RECORD = tuple(replans.c[one.name] for one in fields(ReplanRecord))


def insert_replan(
    connection: Connection, tenant: str, record_id: str, *, job_id: str, key_id: str | None,
    request: Mapping[str, object], answer: Mapping[str, object],
) -> None:  # fmt: skip
    """Add what a launcher was answered, and forget the oldest of its job beyond ``MAX_REPLANS``."""
    connection.execute(
        insert(replans).values(
            id=record_id, tenant=tenant, job_id=job_id, key_id=key_id, request=dict(request),
            answer=dict(answer), created_at_s=now_s(),
        )
    )  # fmt: skip
    newest = (replans.c.created_at_s.desc(), replans.c.id.desc())
    beyond = select(replans.c.id).where(replans.c.job_id == job_id).order_by(*newest)
    connection.execute(
        delete(replans).where(replans.c.id.in_(beyond.limit(MAX_REPLANS).offset(MAX_REPLANS)))
    )


def newest_replans(
    connection: Connection, tenant: str, job_id: str, *, limit: int, before: tuple[float, str] | None
) -> list[ReplanRecord]:
    """Return up to ``limit`` re-plans of a job, newest first, after ``before`` (created_at_s, id)."""
    query = select(*_RECORD).where(replans.c.job_id == job_id, replans.c.tenant == tenant)
    return all_of(connection, ReplanRecord, newest_first(query, replans, before=before, limit=limit))


def find_replan(
    connection: Connection, tenant: str, job_id: str, replan_id: str
) -> tuple[ReplanRecord, Mapping[str, Any]] | None:
    """Return one re-plan of a job, and what was answered."""
    if not is_identifier(replan_id):
        return None
    own = replans.c.id == replan_id, replans.c.job_id == job_id, replans.c.tenant == tenant
    found = one_of(connection, ReplanRecord, select(*_RECORD).where(*own))
    if found is None:
        return None
    return found, connection.execute(select(replans.c.answer).where(*own)).scalar_one()
