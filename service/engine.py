"""The SQL state machine of jobs: claim, heartbeat, complete, give back, cancel, sweep.

    queued ──claim──▶ running ──complete──▶ succeeded | infeasible | failed | cancelled
      │ ▲                │
      │ └──release/sweep─┘            a lease that ran out; after 3 attempts: failed (poison)
      ├──cancel──▶ cancelled
      └──sweep───▶ expired            nobody claimed it in time

Rules that every statement here keeps:
  1. A transition names the state it leaves; a terminal state is never left.
  2. Each claim raises ``fence``; whatever a worker writes later names its fence, so that a worker
     that lost its lease writes nothing.
  3. Time is the database's (``now_s``), never a worker's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import (
    Connection,
    ScalarSelect,
    Update,
    and_,
    case,
    func,
    insert,
    literal,
    or_,
    select,
    text,
    update,
)

from service.db.clock import now_s
from service.db.database import Database
from service.db.tables import jobs, plans

TERMINAL_STATES = frozenset({"succeeded", "infeasible", "failed", "cancelled", "expired"})
MAX_ATTEMPTS = 3  # a job whose worker died this often is poison
SWEEP_LOCK = 6_377_422  # PostgreSQL advisory lock: one sweeper at a time
MAX_HINTS = 100  # jobs republished by one sweep

Beat = Literal["ok", "cancel", "lost"]
FinalState = Literal["succeeded", "infeasible", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right of one worker to run one job, until its lease ends or the fence moves on."""

    job_id: str
    tenant: str
    fence: int
    attempts: int
    request: Mapping[str, Any]
    time_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended, and everything that is stored about it in one transaction."""

    state: FinalState
    answer: Mapping[str, Any] | None = None  # without its plans
    plans: Sequence[Mapping[str, Any]] = ()  # plan_id, rank, …; best first
    problem: Mapping[str, str] | None = None  # code and detail of a failure
    progress: Mapping[str, Any] | None = None  # the last report
    cache_key: str | None = None  # None: never reuse this answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What one sweep changed."""

    requeued: int = 0
    poisoned: int = 0
    cancelled: int = 0
    expired: int = 0
    waiting: tuple[str, ...] = field(default=())  # queued jobs to publish again


_CLAIMED = (
    jobs.c.id.label("job_id"),
    jobs.c.tenant,
    jobs.c.fence,
    jobs.c.attempts,
    jobs.c.request,
    jobs.c.time_limit_s,
)


class JobEngine:
    """The only code that changes a job's state."""

    def __init__(self, database: Database, *, lease_s: float) -> None:
        self._database = database
        self.lease_s = lease_s

    def claim_one(self, worker: str, *, job_id: str | None = None, min_age_s: float = 0.0) -> Claim | None:
        """Claim the oldest queued job (or just ``job_id``); None when there is none to claim.

        ``min_age_s`` leaves fresh jobs to the workers that a queue wakes up.
        """
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
                lease_expires_at_s=now_s() + self.lease_s,
            )
            .returning(*_CLAIMED)
        )
        with self._database.write() as connection:
            row = connection.execute(claim).mappings().one_or_none()
        return None if row is None else Claim(**row)

    def heartbeat(self, claim: Claim, progress: Mapping[str, Any] | None = None) -> Beat:
        """Renew the lease and report progress; says whether to go on, stop for a cancel, or give up."""
        values: dict[str, Any] = {"lease_expires_at_s": now_s() + self.lease_s}
        if progress is not None:
            values["progress"] = dict(progress)
        beat = _held(claim).values(values).returning(jobs.c.cancel_requested)
        with self._database.write() as connection:
            return _verdict(connection.execute(beat).scalar_one_or_none())

    def look(self, claim: Claim) -> Beat:
        """The same verdict as ``heartbeat`` without writing anything; cheap enough for 4 times a second."""
        query = select(jobs.c.cancel_requested).where(*_is_held(claim))
        with self._database.read() as connection:
            return _verdict(connection.execute(query).scalar_one_or_none())

    def complete(self, claim: Claim, outcome: Outcome) -> bool:
        """Store how a job ended, its answer and its plans, or nothing; False: the claim was lost."""
        end = _held(claim).values(
            state=outcome.state,
            finished_at_s=now_s(),
            lease_expires_at_s=None,
            answer=outcome.answer,
            problem=outcome.problem,
            cache_key=outcome.cache_key,
        )
        if outcome.progress is not None:
            end = end.values(progress=dict(outcome.progress))
        rows = [
            {
                "job_id": claim.job_id,
                "tenant": claim.tenant,
                "rank": plan["rank"],
                "plan_id": plan["plan_id"],
                "body": dict(plan),
            }
            for plan in outcome.plans
        ]
        with self._database.write() as connection:
            held = connection.execute(end).rowcount == 1
            if held and rows:
                connection.execute(insert(plans), rows)
        return held

    def fail(self, claim: Claim, *, code: str, detail: str) -> bool:
        """End the job as failed; False: the claim was lost."""
        return self.complete(claim, Outcome(state="failed", problem={"code": code, "detail": detail}))

    def release(self, claim: Claim) -> bool:
        """Give a job back unfinished and uncounted: the worker is leaving; False: the claim was lost."""
        back = _held(claim).values(
            state=case((jobs.c.cancel_requested, "cancelled"), else_="queued"),
            finished_at_s=case((jobs.c.cancel_requested, now_s()), else_=None),
            attempts=jobs.c.attempts - 1,
            worker=None,
            lease_expires_at_s=None,
            progress=None,
        )
        with self._database.write() as connection:
            return connection.execute(back).rowcount == 1

    def cancel(self, tenant: str, job_id: str) -> bool:
        """Cancel a queued job now, ask a running one to stop, leave a finished one; False: no such job."""
        own = and_(jobs.c.id == job_id, jobs.c.tenant == tenant)
        queued = jobs.c.state == "queued"
        # One statement: in two, a job that moves between them would miss both.
        asked = (
            update(jobs)
            .where(own, jobs.c.state.in_(["queued", "running"]))
            .values(
                cancel_requested=True,
                state=case((queued, "cancelled"), else_=jobs.c.state),
                finished_at_s=case((queued, now_s())),
            )
        )
        with self._database.write() as connection:
            if connection.execute(asked).rowcount:
                return True
            return connection.execute(select(jobs.c.id).where(own)).first() is not None

    def sweep(self, *, hint_after_s: float = 3.0) -> Sweep:
        """End leases that ran out, expire what nobody claimed, and list queued jobs to publish again.

        ``hint_after_s``: how long a queued job waits before its wake-up is taken for lost.
        """
        with self._database.write() as connection:
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


def _oldest_queued(job_id: str | None, min_age_s: float) -> ScalarSelect[str]:
    """The id of the queued job that is next, skipping rows that another worker is claiming now."""
    wanted = [jobs.c.state == "queued", jobs.c.expires_at_s > now_s()]
    if job_id is not None:
        wanted.append(jobs.c.id == job_id)
    if min_age_s > 0:
        wanted.append(jobs.c.created_at_s <= now_s() - min_age_s)
    oldest = select(jobs.c.id).where(*wanted).order_by(jobs.c.created_at_s, jobs.c.id).limit(1)
    return oldest.with_for_update(skip_locked=True).scalar_subquery()


def _is_held(claim: Claim) -> tuple[Any, ...]:
    """The fence: the row as this claim left it."""
    return jobs.c.id == claim.job_id, jobs.c.fence == claim.fence, jobs.c.state == "running"


def _held(claim: Claim) -> Update:
    """An update of a job that this claim still holds."""
    return update(jobs).where(*_is_held(claim))


def _verdict(cancel_requested: bool | None) -> Beat:
    """What a worker is to do; no row under its fence means that the claim is lost."""
    if cancel_requested is None:
        return "lost"
    return "cancel" if cancel_requested else "ok"


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
