"""Plans as rows; and what a worker had found that had to leave, kept when its job is then cancelled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Row, insert, update

from service.db.tables import jobs, plans

MOVED = (jobs.c.id, jobs.c.tenant, jobs.c.state, jobs.c.checkpoint)  # what a transition returns to be kept


def plan_rows(job_id: str, tenant: str, found: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Plans of a job as rows."""
    return [
        {
            "job_id": job_id,
            "tenant": tenant,
            "rank": plan["rank"],
            "plan_id": plan["plan_id"],
            "body": dict(plan),
        }
        for plan in found
    ]


def keep_found(connection: Connection, moved: Iterable[Row[tuple[object, ...]]]) -> None:
    """Make the checkpoints of jobs that were just cancelled their answers, in the same transaction."""
    for row in moved:
        if row.state != "cancelled" or row.checkpoint is None:
            continue
        answer = dict(row.checkpoint)
        found = answer.pop("plans", ())
        own = update(jobs).where(jobs.c.id == row.id)
        connection.execute(own.values(answer=answer, checkpoint=None))
        if found:
            connection.execute(insert(plans), plan_rows(row.id, row.tenant, found))
