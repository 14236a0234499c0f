"""Queries over the events of jobs; they run in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, func, select

from meshwright.service.db.rows import all_of, in_parts
from meshwright.service.db.tables import job_events


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """One row of ``job_events``: the job as it was from ``at_s`` on."""

    id: int
    at_s: float
    state: str
    cancel_requested: bool
    progress: Mapping[str, Any] | None


_EVENT = tuple(job_events.c[name] for name in EventRecord.__slots__)
_AFTER = (
    select(*_EVENT)
    .where(
        job_events.c.tenant == bindparam("asker"),
        job_events.c.job_id == bindparam("asked"),
        job_events.c.id > bindparam("after"),
    )
    .order_by(job_events.c.id)
    .limit(bindparam("most", type_=Integer()))
)


def events_after(
    connection: Connection, tenant: str, job_id: str, *, after: int, limit: int
) -> list[EventRecord]:
    """Return up to ``limit`` events of a job, in order, after the event ``after``."""
    return all_of(
        connection, EventRecord, _AFTER, {"asker": tenant, "asked": job_id, "after": after, "most": limit}
    )


def newest_event_ids(connection: Connection, job_ids: Collection[str]) -> dict[str, int]:
    """Return the id of the newest event of each job of any tenant: numbers, never shown to a client.

    Ids of one job only grow, as its row is locked while it changes; those of different jobs may be
    committed in another order.
    """
    found = dict[str, int]()
    for some in in_parts(job_ids):
        query = select(job_events.c.job_id, func.max(job_events.c.id)).where(job_events.c.job_id.in_(some))
        for job_id, newest in connection.execute(query.group_by("job_id")):
            found[job_id] = newest
    return found
