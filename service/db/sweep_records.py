"""Queries over sweeps and their children; they run in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, literal, select

from service.db.clock import now_s
from service.db.records import JobRecord, JobSummary, NewJob, job_values, record_columns, summary_columns
from service.db.tables import jobs, plans

MAX_NAMES = 500  # in one statement; SQLite of some age allows 999 parameters
_COPIED = ("tenant", "state", "progress", "answer", "problem", "cache_key")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChild:
    """One point of a new sweep; ``known``: the job that has answered it already."""

    values: Mapping[str, object]
    request: Mapping[str, object]
    known: str | None = None


def insert_sweep(connection: Connection, new: NewJob, children: Sequence[NewChild], stem: str) -> JobRecord:
    """Add a sweep that runs, and its children; the name of a child is ``stem`` and its place, in hex."""
    own = {"state": "running", "num_children": len(children)}
    whole = insert(jobs).values({**job_values(new), **own}).returning(*record_columns())
    row = connection.execute(whole).mappings().one()
    for position, child in enumerate(children):
        values = {**job_values(new), "id": f"{stem}{position:04x}", "request": child.request}
        values |= {"parent_id": new.id, "position": position}
        values["point"] = {"values": dict(child.values), "reused_from": child.known}
        if child.known is None or not _copy(connection, new.tenant, child.known, values):
            values["point"] = {"values": dict(child.values), "reused_from": None}
            connection.execute(insert(jobs).values(values))
    return JobRecord(**row)


def children_of(
    connection: Connection, tenant: str, parent_id: str, *, after: int, limit: int
) -> list[JobSummary]:
    """Up to ``limit`` children of a sweep, in order, after the position ``after``."""
    query = (
        select(*summary_columns())
        .where(jobs.c.tenant == tenant, jobs.c.parent_id == parent_id, jobs.c.position > after)
        .order_by(jobs.c.position)
        .limit(limit)
    )
    return [JobSummary(**row) for row in connection.execute(query).mappings()]


def child_at(connection: Connection, parent_id: str, position: int) -> JobRecord | None:
    """One child with its question and its answer."""
    query = select(*record_columns()).where(jobs.c.parent_id == parent_id, jobs.c.position == position)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else JobRecord(**row)


def child_keys(connection: Connection, parent_id: str) -> list[tuple[Mapping[str, Any], str | None]]:
    """The children's values and what their answers may be reused under, in order; None: not at all."""
    query = select(jobs.c.point, jobs.c.cache_key).where(jobs.c.parent_id == parent_id)
    rows = connection.execute(query.order_by(jobs.c.position))
    return [(point["values"], key) for point, key in rows]


def answered_jobs(connection: Connection, tenant: str, cache_keys: Collection[str]) -> dict[str, str]:
    """The newest job that has answered each question, of those questions that were answered."""
    names, found = list(cache_keys), dict[str, str]()
    for start in range(0, len(names), MAX_NAMES):
        some = jobs.c.cache_key.in_(names[start : start + MAX_NAMES])
        ended = jobs.c.state.in_(["succeeded", "infeasible"])
        query = select(jobs.c.cache_key, jobs.c.id).where(jobs.c.tenant == tenant, some, ended)
        for key, job_id in connection.execute(query.order_by(jobs.c.finished_at_s)):
            found[key] = job_id
    return found


def _copy(connection: Connection, tenant: str, known: str, values: Mapping[str, Any]) -> bool:
    """Add a child that has ended already, with the answer and the plans of the job ``known``.

    False: that job was forgotten a moment ago. Else it stays until all of it is copied.
    """
    moments = {"started_at_s": now_s(), "finished_at_s": now_s()}
    own = {name: value for name, value in {**values, **moments}.items() if name not in _COPIED}
    new = [literal(value, jobs.c[name].type) if _is_plain(value) else value for name, value in own.items()]
    source = select(*(jobs.c[name] for name in _COPIED), *new).where(
        jobs.c.id == known, jobs.c.tenant == tenant
    )
    held = source.with_for_update(read=True)
    copied = insert(jobs).from_select([*_COPIED, *own], held).returning(jobs.c.id)
    if connection.execute(copied).first() is None:  # psycopg has forgotten how many rows it inserted
        return False
    body = select(literal(values["id"]), plans.c.rank, plans.c.tenant, plans.c.plan_id, plans.c.body)
    names = ["job_id", "rank", "tenant", "plan_id", "body"]
    connection.execute(insert(plans).from_select(names, body.where(plans.c.job_id == known)))
    return True


def _is_plain(value: object) -> bool:
    """Whether a value is no expression of SQL."""
    return not hasattr(value, "self_group")
