"""The sweep: ends expired leases, expires unclaimed jobs, names jobs to publish again.

One worker of the fleet sweeps, the *leader*: it holds a lease too, by the database's clock, so that a
leader that froze is replaced (a session's advisory lock would stay with it). Two sweeps at once would
do no harm: each statement names the state that it leaves.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace

from sqlalchemy import (
    ColumnElement,
    Connection,
    ScalarSelect,
    and_,
    case,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from meshwright.service.db.clock import CLOCK, MIN_STEP_S, ClockWatch, now_s
from meshwright.service.db.database import Database
from meshwright.service.db.plan_records import MOVED, keep_found, note_verified
from meshwright.service.db.tables import is_queued, jobs, leaders, verifications
from meshwright.service.jobs.states import MAX_ATTEMPTS, QueueCleanup
from meshwright.service.jobs.sweep_jobs import is_sweep

ROLE = "sweeper"
HINT_AFTER_S = 3.0  # a queued job waits so long before its wake-up is taken for lost
MAX_HINTS = 100  # waiting jobs, oldest first, that a sweep looks at to publish again
SLACK_S = 1.0  # of a statement that compares moments with the clock
_log = logging.getLogger(__name__)


def leads(
    database: Database, name: str, lease_s: float, *, watch: ClockWatch, longest_lease_s: float
) -> bool:
    """Return whether ``name`` is the one to sweep, now and for ``lease_s``.

    Move the moments of jobs first if the clock was set: a step of the clock may end the leader's lease, so
    that another worker leads, which has seen the step too.

    Args:
        database: The database.
        name: The worker that asks.
        lease_s: How long it leads, in seconds.
        watch: The looks of this process at the database's clock.
        longest_lease_s: How long a job's lease lasts, in seconds.
    """
    with database.read() as connection:
        seen = watch.look(connection)
        over = leaders.c.expires_at_s < now_s()
        of_another_clock = leaders.c.expires_at_s > now_s() + (lease_s + MIN_STEP_S)
        free = or_(leaders.c.holder == name, over, of_another_clock)
        found = connection.execute(select(free).where(leaders.c.role == ROLE)).scalar_one_or_none()
    if found is None:
        watch.keep(seen)
        return _first_leader(database, name, lease_s)
    if not found:
        watch.follow(seen)
        return False
    held = update(leaders).where(leaders.c.role == ROLE, free)
    with database.write() as connection:
        if connection.execute(held.values(_lease(name, lease_s))).rowcount != 1:
            return False
        seen = watch.look(connection)
        step_s = watch.step_s(seen)
        if step_s != 0.0:
            _log.warning("the clock of the database was set by %+.0f s; jobs keep their time", step_s)
            move_moments(connection, step_s, age_s=watch.age_s(seen), longest_lease_s=longest_lease_s)
            seen = replace(seen, moved_s=seen.moved_s + step_s)
            _note_moved(connection, seen.moved_s)
    watch.keep(seen)
    return True


def sweep(connection: Connection, *, lease_s: float) -> QueueCleanup:
    """Return one sweep; ``lease_s``: how long the claim of a verification lasts, in seconds."""
    ended = _end_leases(connection)
    _end_claims(connection, lease_s)
    return QueueCleanup(
        cancelled=ended["cancelled"],
        poisoned=ended["failed"],
        requeued=ended["queued"],
        expired=_expire(connection),
        waiting=_unhinted(connection),
    )


def move_moments(connection: Connection, step_s: float, *, age_s: float, longest_lease_s: float) -> None:
    """Move deadlines and leases of open jobs, and claims of verifications, with a clock that was set.

    They are spans of time.

    What was written after the step stays. Where that is not known, the later of the two moments counts.

    Args:
        connection: A transaction of the leader.
        step_s: By how many seconds the clock was set.
        age_s: How many seconds ago, at most.
        longest_lease_s: How long a lease lasts when it is written, in seconds.
    """
    ago_s = min(age_s, step_s) if step_s > 0 else age_s
    since = jobs.c.created_at_s.between(now_s() - (ago_s + SLACK_S), now_s() + SLACK_S)
    queued = update(jobs).where(jobs.c.id.in_(_free(jobs.c.state == "queued", not_(since))))
    connection.execute(queued.values(expires_at_s=jobs.c.expires_at_s + step_s))
    latest = now_s() + (longest_lease_s + SLACK_S)  # a lease that was written under this clock ends by then
    lease = jobs.c.lease_expires_at_s
    before = lease + step_s <= latest if step_s > 0 else lease > latest
    running = update(jobs).where(jobs.c.id.in_(_free(jobs.c.state == "running", before)))
    connection.execute(running.values(lease_expires_at_s=lease + step_s))
    latest = now_s() + SLACK_S  # a claim that was made or renewed under this clock
    claimed = verifications.c.claimed_at_s
    before = claimed + step_s <= latest if step_s > 0 else claimed > latest
    built = update(verifications).where(verifications.c.state == "running", before)
    connection.execute(built.values(claimed_at_s=claimed + step_s))


def _note_moved(connection: Connection, moved_s: float) -> None:
    """Store how far moments were moved; the leader's row, which this transaction has, keeps others out."""
    noted = update(leaders).where(leaders.c.role == CLOCK).values(expires_at_s=moved_s)
    if connection.execute(noted).rowcount == 0:
        connection.execute(insert(leaders).values(role=CLOCK, holder="", expires_at_s=moved_s))


def _first_leader(database: Database, name: str, lease_s: float) -> bool:
    """Become the first leader that this database ever had, unless another was faster."""
    try:
        with database.write() as connection:
            connection.execute(insert(leaders).values(role=ROLE, **_lease(name, lease_s)))
    except IntegrityError:
        return False
    return True


def _lease(name: str, lease_s: float) -> dict[str, object]:
    return {"holder": name[:128], "expires_at_s": now_s() + lease_s}


def _end_leases(connection: Connection) -> Counter[str]:
    """Take running jobs with expired leases from their workers; return how many went to which state.

    A sweep with an interrupted join runs on, for another process to join.
    One statement, so that a lease that runs out meanwhile is judged wholly or by the next sweep.
    """
    poison = and_(jobs.c.attempts >= MAX_ATTEMPTS, or_(is_sweep, ~jobs.c.cancel_requested))
    detail = f"its worker died or froze {MAX_ATTEMPTS} times, so the job is not retried"
    cancelled = and_(jobs.c.cancel_requested, ~is_sweep)  # what a sweep's points found is still joined
    state = case((cancelled, "cancelled"), (poison, "failed"), (is_sweep, "running"), else_="queued")
    lapsed = (
        update(jobs)
        .where(jobs.c.id.in_(_free(jobs.c.state == "running", jobs.c.lease_expires_at_s < now_s())))
        .values(
            state=state,
            worker=None,
            lease_expires_at_s=None,
            finished_at_s=case((or_(cancelled, poison), now_s())),
            problem=case((poison, literal({"code": "poison", "detail": detail}, jobs.c.problem.type))),
        )
        .returning(*MOVED)
    )
    moved = connection.execute(lapsed).all()
    keep_found(connection, moved)
    return Counter(row.state for row in moved)


def _end_claims(connection: Connection, lease_s: float) -> None:
    """Queue verifications again whose workers were silent; as for jobs, only the leader judges that."""
    table = verifications.c
    lapsed = table.state == "running", table.claimed_at_s < now_s() - lease_s
    back = update(verifications).where(*lapsed).values(state="queued", claimed_at_s=None)
    for row in connection.execute(back.returning(table.tenant, table.plan_id)).all():
        note_verified(connection, row.tenant, [row.plan_id])


def _expire(connection: Connection) -> int:
    """Expire queued jobs not claimed in time; one that came back to the queue was claimed."""
    now = select(now_s()).scalar_subquery()  # read once: PostgreSQL then finds the late ones by index
    late = _free(jobs.c.state == "queued", jobs.c.expires_at_s <= now, jobs.c.started_at_s.is_(None))
    return connection.execute(
        update(jobs).where(jobs.c.id.in_(late)).values({"state": "expired", "finished_at_s": now_s()})
    ).rowcount


def _free(*wanted: ColumnElement[bool]) -> ScalarSelect[str]:
    """Return the ids of jobs except those that another transaction is changing: a sweep never waits.

    A worker that froze inside a transaction would hold up the jobs of all others; and who never waits
    for a row while it holds others has no part in a deadlock.
    """
    return select(jobs.c.id).where(*wanted).with_for_update(skip_locked=True).scalar_subquery()


def _unhinted(connection: Connection) -> tuple[str, ...]:
    """Return the longest waiting jobs with a wake-up that seems lost, oldest first; each is marked.

    A hint wakes a worker, which claims the next job: hints for the oldest are enough. A job is published
    again when it has waited twice as long as it had at its last hint (``HINT_AFTER_S`` at first), so
    that a long queue of n jobs behind busy workers gets few hints and not n in every sweep.
    """
    oldest = select(jobs.c.id).where(is_queued).order_by(jobs.c.created_at_s)
    hinted_at_s = func.coalesce(jobs.c.hinted_at_s, jobs.c.created_at_s)
    waited_s = hinted_at_s - jobs.c.created_at_s
    due = hinted_at_s < now_s() - case((waited_s > HINT_AFTER_S, waited_s), else_=HINT_AFTER_S)
    first = oldest.limit(MAX_HINTS).with_for_update(skip_locked=True).scalar_subquery()
    marked = update(jobs).where(jobs.c.id.in_(first), due).values(hinted_at_s=now_s())
    found = connection.execute(marked.returning(jobs.c.created_at_s, jobs.c.id)).all()
    return tuple(job_id for _, job_id in sorted((created_at_s, job_id) for created_at_s, job_id in found))
