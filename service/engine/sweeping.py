"""The sweep: ends leases that ran out, expires what nobody claimed, names jobs to publish again."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, and_, case, literal, or_, select, text, update

from service.db.clock import now_s
from service.db.tables import jobs
from service.engine.states import MAX_ATTEMPTS, Sweep

SWEEP_LOCK = 6_377_422  # PostgreSQL advisory lock: one sweeper at a time
MAX_HINTS = 100  # jobs republished by one sweep


def sweep(connection: Connection, hint_after_s: float) -> Sweep:
    """One sweep, unless another process sweeps now."""
    if not _leads(connection):
        return Sweep()
    ended = _end_leases(connection)
    return Sweep(
        cancelled=ended["cancelled"],
        poisoned=ended["failed"],
        requeued=ended["queued"],
        expired=_expire(connection),
        waiting=_unhinted(connection, hint_after_s),
    )


def _leads(connection: Connection) -> bool:
    """Whether this process may sweep now; on SQLite the write lock itself makes sweepers take turns."""
    if connection.dialect.name != "postgresql":
        return True
    lock = text("SELECT pg_try_advisory_xact_lock(:lock)")
    return bool(connection.execute(lock, {"lock": SWEEP_LOCK}).scalar_one())


def _end_leases(connection: Connection) -> Counter[str]:
    """Take the running jobs whose lease ran out from their workers; how many went to which state.

    One statement, so that a lease that runs out meanwhile is judged wholly or by the next sweep.
    """
    poison = and_(jobs.c.attempts >= MAX_ATTEMPTS, ~jobs.c.cancel_requested)
    detail = f"its worker died or froze {MAX_ATTEMPTS} times; the job is not tried again"
    state = case((jobs.c.cancel_requested, "cancelled"), (poison, "failed"), else_="queued")
    lapsed = (
        update(jobs)
        .where(jobs.c.state == "running", jobs.c.lease_expires_at_s < now_s())
        .values(
            state=state,
            worker=None,
            lease_expires_at_s=None,
            finished_at_s=case((or_(jobs.c.cancel_requested, poison), now_s())),
            problem=case((poison, literal({"code": "poison", "detail": detail}, jobs.c.problem.type))),
        )
        .returning(jobs.c.state)
    )
    return Counter(connection.execute(lapsed).scalars())


def _expire(connection: Connection) -> int:
    """Expire the queued jobs that nobody claimed in time."""
    late = and_(jobs.c.state == "queued", jobs.c.expires_at_s <= now_s())
    values = {"state": "expired", "finished_at_s": now_s()}
    return connection.execute(update(jobs).where(late).values(values)).rowcount


def _unhinted(connection: Connection, hint_after_s: float) -> tuple[str, ...]:
    """Queued jobs whose wake-up seems lost, oldest first; marked, so that each is named once per period."""
    before = now_s() - hint_after_s
    stale = or_(jobs.c.hinted_at_s.is_(None), jobs.c.hinted_at_s < before)
    waiting = (
        select(jobs.c.id)
        .where(jobs.c.state == "queued", jobs.c.created_at_s < before, stale)
        .order_by(jobs.c.created_at_s)
        .limit(MAX_HINTS)
    )
    marked = update(jobs).where(jobs.c.id.in_(waiting)).values(hinted_at_s=now_s())
    return tuple(connection.execute(marked.returning(jobs.c.id)).scalars())
