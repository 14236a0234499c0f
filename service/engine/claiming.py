"""Which queued job is next, and the one statement that claims it."""

from __future__ import annotations

from sqlalchemy import Connection, ScalarSelect, func, select, update

from service.db.clock import now_s
from service.db.tables import jobs
from service.engine.states import Claim

_CLAIMED = (
    jobs.c.id.label("job_id"),
    jobs.c.tenant,
    jobs.c.fence,
    jobs.c.attempts,
    jobs.c.request,
    jobs.c.time_limit_s,
)


def claim_next(
    connection: Connection, worker: str, *, lease_s: float, job_id: str | None, min_age_s: float
) -> Claim | None:
    """Claim the oldest queued job, or just ``job_id``; None when there is none to claim."""
    claim = (
        update(jobs)
        .where(jobs.c.id == _oldest_queued(job_id, min_age_s), jobs.c.state == "queued")
        .values(
            state="running",
            fence=jobs.c.fence + 1,
            attempts=jobs.c.attempts + 1,
            worker=worker[:128],
            claimed_at_s=now_s(),
            started_at_s=func.coalesce(jobs.c.started_at_s, now_s()),
            lease_expires_at_s=now_s() + lease_s,
        )
        .returning(*_CLAIMED)
    )
    row = connection.execute(claim).mappings().one_or_none()
    return None if row is None else Claim(**row)


def _oldest_queued(job_id: str | None, min_age_s: float) -> ScalarSelect[str]:
    """The id of the queued job that is next, skipping rows that another worker is claiming now."""
    wanted = [jobs.c.state == "queued", jobs.c.expires_at_s > now_s()]
    if job_id is not None:
        wanted.append(jobs.c.id == job_id)
    if min_age_s > 0:
        wanted.append(jobs.c.created_at_s <= now_s() - min_age_s)
    oldest = select(jobs.c.id).where(*wanted).order_by(jobs.c.created_at_s, jobs.c.id).limit(1)
    return oldest.with_for_update(skip_locked=True).scalar_subquery()
