"""The SQL state machine of jobs: claim, heartbeat, complete, give back, cancel, sweep.

    queued ──claim──▶ running ──complete──▶ succeeded | infeasible | failed | cancelled
      │ ▲                │
      │ └──release/sweep─┘            a lease that ran out; after 3 attempts: failed (poison)
      ├──cancel──▶ cancelled
      └──sweep───▶ expired            not claimed in time

Rules that every statement here keeps:
  1. A transition names the state it leaves; a terminal state is never left.
  2. Each claim raises ``fence``; whatever a worker writes later names its fence, so that a worker
     that lost its lease writes nothing.
  3. Time is the database's (``now_s``), never a worker's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Update, and_, case, func, select, update

from meshwright.service.db.clock import ClockWatch, now_s
from meshwright.service.db.database import Database
from meshwright.service.db.metric_records import fold_totals
from meshwright.service.db.plan_records import MOVED, insert_closest, insert_plans, keep_found
from meshwright.service.db.records import NewJob, insert_answered
from meshwright.service.db.tables import jobs
from meshwright.service.db.usage_records import add_usage, over_quota
from meshwright.service.jobs import sweep_jobs as families
from meshwright.service.jobs import sweeper as sweeping
from meshwright.service.jobs.claiming import claim_first, tenants_by_turn
from meshwright.service.jobs.states import MAX_EXCUSED, Beat, Claim, Outcome, QueueCleanup
from meshwright.service.requests.fields import DEFAULT_PRIORITY

REMEMBER_S = 1.0  # which keys have used up their CPU seconds


class JobEngine:
    """The only code that changes a job's state."""

    def __init__(
        self,
        database: Database,
        *,
        lease_s: float,
        max_running_jobs: int | None = None,
        max_cpu_s_per_day: float | None = None,
    ) -> None:
        self._database = database
        self._most = max_running_jobs  # of one tenant at once; None: as many as there are workers
        self._most_cpu_s = max_cpu_s_per_day  # of keys without a quota of their own
        self._over: dict[str, tuple[float, list[str]]] = {}  # keys that wait, by tenant, and until when
        self.lease_s = lease_s
        self._clock = ClockWatch()
        self._looking = threading.Lock()  # the threads of a worker that ask who leads share the watch

    def claim_one(self, worker: str, *, min_age_s: float = 0.0) -> Claim | None:
        """Claim the queued job that is next (``claiming``); None when there is none to claim.

        ``min_age_s`` leaves fresh jobs to the workers that a queue wakes up.
        """
        with self._database.read() as connection:  # an idle worker looks often, and locks nothing
            tenants = tenants_by_turn(connection)
        for tenant in tenants:
            waiting = self._over_quota(tenant)
            with self._database.write() as connection:
                claim = claim_first(
                    connection, tenant, worker, lease_s=self.lease_s, min_age_s=min_age_s, most=self._most,
                    waiting=waiting,
                )  # fmt: skip
            if claim is not None:
                return claim
        return None

    def _over_quota(self, tenant: str) -> list[str]:
        """Return keys whose jobs wait for tomorrow; asked once in ``REMEMBER_S``."""
        until, found = self._over.get(tenant, (0.0, []))
        if time.monotonic() >= until:
            with self._database.read() as connection:
                found = over_quota(connection, tenant, most_s=self._most_cpu_s)
            self._over = {**self._over, tenant: (time.monotonic() + REMEMBER_S, found)}
        return found

    def heartbeat(
        self, claim: Claim, progress: Mapping[str, Any] | None = None, *, cpu_s: float = 0.0
    ) -> Beat:
        """Renew the lease and report progress; return whether to go on, stop for a cancel, or give up.

        ``cpu_s``: CPU seconds that the worker spent on the job since it last said so.
        """
        values: dict[str, Any] = {"lease_expires_at_s": now_s() + self.lease_s}
        if progress is not None:
            values["progress"] = dict(progress)
        if cpu_s:
            values |= _spent(cpu_s)
        beat = _held(claim).values(values).returning(jobs.c.cancel_requested)
        with self._database.write() as connection:
            found = connection.execute(beat).scalar_one_or_none()
            if cpu_s and found is not None:
                add_usage(connection, claim.tenant, claim.owner, cpu_s=cpu_s, ended=False)
        return _verdict(found)

    def look(self, claim: Claim) -> Beat:
        """Return the verdict of ``heartbeat`` without a write; cheap enough for 4 times a second."""
        query = select(jobs.c.cancel_requested).where(*_is_held(claim))
        with self._database.read() as connection:
            return _verdict(connection.execute(query).scalar_one_or_none())

    def complete(self, claim: Claim, outcome: Outcome, *, cpu_s: float | None = None) -> bool:
        """Store how a job ended, its answer and its plans, or nothing; False: the claim was lost.

        ``cpu_s``: CPU seconds that the worker spent on it.
        """
        end = _held(claim).values(
            state=outcome.state,
            finished_at_s=now_s(),
            lease_expires_at_s=None,
            answer=outcome.answer,
            problem=outcome.problem,
            cache_key=outcome.cache_key,
            checkpoint=None,
            **_spent(cpu_s),
        )
        if outcome.progress is not None:
            end = end.values(progress=dict(outcome.progress))
        with self._database.write() as connection:
            held = connection.execute(end).rowcount == 1
            if held:
                insert_plans(connection, claim.job_id, claim.tenant, outcome.plans, claim.request)
                insert_closest(connection, claim.job_id, claim.tenant, outcome.answer, claim.request)
                _add_parts(connection, claim, outcome)
                add_usage(
                    connection, claim.tenant, claim.owner, cpu_s=cpu_s or 0.0, ended=claim.parent_id is None
                )
        return held

    def fail(self, claim: Claim, *, code: str, detail: str) -> bool:
        """End the job as failed; False: the claim was lost."""
        return self.complete(claim, Outcome(state="failed", problem={"code": code, "detail": detail}))

    def claim_ready(self, worker: str, *, parent_id: str | None = None) -> Claim | None:
        """Claim a sweep (the named one, if given) with all children ended, to join them."""
        with self._database.write() as connection:
            return families.claim_ready(connection, worker, lease_s=self.lease_s, parent_id=parent_id)

    def note_child(self, parent_id: str) -> None:
        """Note on a running sweep that one of its children has ended."""
        with self._database.write() as connection:
            families.note_progress(connection, parent_id)

    def release(
        self, claim: Claim, checkpoint: Mapping[str, Any] | None = None, *, cpu_s: float | None = None
    ) -> bool:
        """Give a job back unfinished and uncounted: the worker is leaving; False: the claim was lost.

        ``checkpoint`` is what the worker has found so far; None keeps an earlier one. ``cpu_s``: CPU
        seconds that it spent.
        """
        found = {} if checkpoint is None else {"checkpoint": dict(checkpoint)}
        back = _held(claim).values(**_given_back(), **found, **_spent(cpu_s), fence=jobs.c.fence + 1)
        with self._database.write() as connection:  # a fence of its own: applied once
            moved = connection.execute(back.returning(*MOVED)).all()
            keep_found(connection, moved)
            if moved:
                add_usage(connection, claim.tenant, claim.owner, cpu_s=cpu_s or 0.0, ended=False)
        return bool(moved)

    def abandon(self, claim: Claim) -> bool:
        """Uncount a claim with an expired lease if its worker is still alive; False: too late.

        Too late is when another has claimed the job: a worker without the fence writes nothing. A job
        that starves its own heartbeat every time is not excused for ever (``MAX_EXCUSED``).
        """
        still = jobs.c.id == claim.job_id, jobs.c.fence == claim.fence
        mild = jobs.c.state.in_(["queued", "running"]), jobs.c.fence <= MAX_EXCUSED
        back = update(jobs).where(*still, *mild)
        with self._database.write() as connection:  # a fence of its own: applied once
            moved = connection.execute(
                back.values(**_given_back(), fence=jobs.c.fence + 1).returning(*MOVED)
            ).all()
            keep_found(connection, moved)
        return bool(moved)

    def cancel(self, tenant: str, job_id: str) -> bool:
        """Cancel a queued job now, ask a running one to stop, leave a finished one; False: no such job."""
        own = and_(jobs.c.id == job_id, jobs.c.tenant == tenant)
        # One statement: in two, a job that moves between them would miss both.
        asked = update(jobs).where(own, jobs.c.state.in_(families.OPEN_STATES)).values(families.CANCELLED)
        with self._database.write() as connection:
            moved = connection.execute(asked.returning(*MOVED)).all()
            if moved:
                keep_found(connection, [*moved, *families.cancel_children(connection, tenant, job_id)])
                return True
            return connection.execute(select(jobs.c.id).where(own)).first() is not None

    def leads(self, worker: str, lease_s: float) -> bool:
        """Return whether ``worker`` is the one that sweeps now; it stays so for ``lease_s``.

        Every call looks at the database's clock. If that was set since the last look, the leader moves the
        moments that jobs wait for, in the transaction in which it becomes or stays the leader.
        """
        with self._looking:
            return sweeping.leads(
                self._database, worker, lease_s, watch=self._clock, longest_lease_s=self.lease_s
            )

    def sweep(self) -> QueueCleanup:
        """End expired leases, expire unclaimed jobs, and list queued jobs to publish again.

        Do nothing if the database's clock was set since this process last led: ``leads`` first moves the
        moments that jobs wait for.
        """
        with self._database.write() as connection:
            if self._clock.step_s(self._clock.look(connection)) != 0.0:
                return QueueCleanup()
            found = sweeping.sweep(connection, lease_s=self.lease_s)
        with self._database.write() as connection:
            fold_totals(connection)
        return found


def _add_parts(connection: Connection, claim: Claim, outcome: Outcome) -> None:
    for position, part in enumerate(outcome.parts):
        new = NewJob(
            id=part.job_id, tenant=claim.tenant, request=part.request, time_limit_s=claim.time_limit_s,
            queue_timeout_s=0.0, priority=DEFAULT_PRIORITY, owner=claim.owner, kind=part.kind,
        )  # fmt: skip
        own: dict[str, Any] = {
            "parent_id": claim.job_id,
            "point": {"values": {"job": part.name}, "reused_from": None},
        }
        own |= {"answer": part.answer, "cache_key": part.cache_key}
        insert_answered(connection, new, position, own)
        insert_plans(connection, part.job_id, claim.tenant, part.plans, part.request)


def _is_held(claim: Claim) -> tuple[Any, ...]:
    """Return the fence: the row as this claim left it."""
    return jobs.c.id == claim.job_id, jobs.c.fence == claim.fence, jobs.c.state == "running"


def _held(claim: Claim) -> Update:
    return update(jobs).where(*_is_held(claim))


def _spent(cpu_s: float | None) -> dict[str, ColumnElement[float]]:
    return {} if cpu_s is None else {"cpu_s": func.coalesce(jobs.c.cpu_s, 0.0) + cpu_s}


def _given_back() -> dict[str, Any]:
    """Return the changes to a job with a claim that does not count; if it was to be cancelled, it is."""
    return {
        "state": case((jobs.c.cancel_requested, "cancelled"), else_="queued"),
        "finished_at_s": case((jobs.c.cancel_requested, now_s()), else_=None),
        "attempts": jobs.c.attempts - 1,
        "worker": None,
        "lease_expires_at_s": None,
    }


def _verdict(cancel_requested: bool | None) -> Beat:
    """Return the verdict for a worker; no row under its fence means that the claim is lost."""
    if cancel_requested is None:
        return "lost"
    return "cancel" if cancel_requested else "ok"
