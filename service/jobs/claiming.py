"""The choice of the next queued job, and the one statement that claims it.

Tenants take turns: first who has the fewest jobs running, then who waited longest since a job of theirs
was claimed. So a tenant that floods the queue delays its own jobs, and another's next job waits for one
worker to become free. Among a tenant's own jobs, priority 0 goes before 9, then the older one. A
worker leaves kinds of jobs that it does not know to workers of a later release.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    ScalarSelect,
    Select,
    case,
    func,
    literal_column,
    or_,
    select,
    update,
)

from meshwright.service.db.clock import now_s
from meshwright.service.db.rows import one_of
from meshwright.service.db.tables import jobs
from meshwright.service.db.usage_records import NO_KEY
from meshwright.service.jobs.states import FLEET, KINDS, Claim

_CLAIMED = (
    jobs.c.id.label("job_id"),
    jobs.c.tenant,
    jobs.c.fence,
    jobs.c.attempts,
    jobs.c.request,
    jobs.c.time_limit_s,
    jobs.c.request_id,
    jobs.c.traceparent,
    jobs.c.checkpoint,
    jobs.c.parent_id,
    jobs.c.owner,
    jobs.c.kind,
)
_RUNNING = jobs.alias("running")


def tenants_by_turn(connection: Connection) -> list[str]:
    """Return tenants with queued jobs in the order of their turn; advice only, as it may change at once."""
    return [tenant for (tenant,) in connection.execute(_TENANTS_BY_TURN)]


def claim_first(
    connection: Connection,
    tenant: str,
    worker: str,
    *,
    lease_s: float,
    min_age_s: float,
    most: int | None = None,
    waiting: Collection[str] = (),
) -> Claim | None:
    """Claim a tenant's next queued job, in one statement; None when there is none to claim.

    A tenant that has ``most`` jobs running waits, and so do jobs of the keys ``waiting``.
    """
    wanted = [jobs.c.id == _first_of(tenant, min_age_s, waiting), jobs.c.state == "queued"]
    if most is not None:
        _take_turn(connection, tenant)
        wanted.append(_running_of(tenant) < most)
    claim = (
        update(jobs)
        .where(*wanted)
        .values(
            state="running",
            fence=jobs.c.fence + 1,
            kind_fence=case((jobs.c.kind == FLEET, jobs.c.fence + 1), else_=-1 - jobs.c.fence),
            attempts=jobs.c.attempts + 1,
            worker=worker[:128],
            claimed_at_s=now_s(),
            started_at_s=func.coalesce(jobs.c.started_at_s, now_s()),
            lease_expires_at_s=now_s() + lease_s,
        )
        .returning(*_CLAIMED)
    )
    return one_of(connection, Claim, claim)


def _take_turn(connection: Connection, tenant: str) -> None:
    """Serialise a tenant's claims, so that two do not take the last free place; SQLite does so itself."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(tenant, 0))))


def _running_of(tenant: ColumnElement[str] | str) -> ScalarSelect[int]:
    """Return how many jobs of a tenant have a worker; a sweep has none, its points have."""
    # Written out, as a partial index holds just these (``tables.has_worker``).
    has_worker = _RUNNING.c.state == literal_column("'running'"), _RUNNING.c.num_children.is_(None)
    return select(func.count()).where(*has_worker, _RUNNING.c.tenant == tenant).scalar_subquery()


def _first_of(tenant: str, min_age_s: float, waiting: Collection[str]) -> ScalarSelect[str]:
    """Return the id of a tenant's next queued job, skipping rows that another worker is claiming now."""
    # Expressions, as no index is to be used for them: SQLite would sort the whole queue.
    in_time = or_(jobs.c.expires_at_s + 0.0 > now_s(), jobs.c.started_at_s.is_not(None))
    known = func.coalesce(jobs.c.kind, "").in_(("", *KINDS))
    wanted = [jobs.c.state == "queued", jobs.c.tenant == tenant, in_time, known]
    if min_age_s > 0:
        wanted.append(jobs.c.created_at_s + 0.0 <= now_s() - min_age_s)
    if waiting:
        wanted.append(func.coalesce(jobs.c.owner, NO_KEY).not_in(waiting))
    order = (jobs.c.priority, jobs.c.created_at_s, jobs.c.id)
    first = select(jobs.c.id).where(*wanted).order_by(*order).limit(1)
    return first.with_for_update(skip_locked=True).scalar_subquery()


def _queued_tenants() -> CTE:
    """Return tenants that have queued jobs, one index probe each however many jobs are queued."""
    queued = jobs.c.state == "queued"
    found = select(func.min(jobs.c.tenant).label("tenant")).where(queued).cte("tenants", recursive=True)
    after = select(func.min(jobs.c.tenant)).where(queued, jobs.c.tenant > found.c.tenant)
    return found.union_all(
        select(after.correlate(found).scalar_subquery()).where(found.c.tenant.is_not(None))
    )


def _tenants_by_turn() -> Select[str]:
    tenant = _queued_tenants().c.tenant
    served_at_s = select(func.max(jobs.c.claimed_at_s)).where(jobs.c.tenant == tenant)
    turn = (_running_of(tenant), func.coalesce(served_at_s.scalar_subquery(), 0.0), tenant)
    return select(tenant).where(tenant.is_not(None)).order_by(*turn)


_TENANTS_BY_TURN = _tenants_by_turn()
