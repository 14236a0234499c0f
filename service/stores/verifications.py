"""Verifications of plans by their launchers: requested, claimed by one worker, and their results.

The table is the queue. A worker renews its claim while its launcher builds, as it renews a job's lease;
the sweep, which knows when the clock was set, queues a claim again that was not renewed for ``lease_s``,
and a worker that leaves gives it back.
Each claim raises ``fence``: a worker that lost its claim writes nothing. A plan with workers lost
``max_attempts`` times is not tried again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, insert, select, update

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.plan_records import note_verified
from meshwright.service.db.tables import verifications
from meshwright.service.db.usage_records import add_usage
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs.answers import stored_plan
from meshwright.service.jobs.idempotency import ONCE, Repeatable, made_before, remember, settled
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import WakeUpQueue
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Plan
from meshwright.solver.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationClaim:
    """The right of one worker to verify one plan, until its lease ends or the fence moves on."""

    tenant: str
    plan_id: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPlan(VerificationClaim):
    """One plan that a worker has claimed."""

    plan: Plan
    problem: Problem


class Verifications:
    """The use cases of verified plans."""

    def __init__(
        self,
        database: Database,
        jobs: Jobs,
        queue: WakeUpQueue,
        *,
        lease_s: float,
        max_attempts: int,
    ) -> None:
        self._database = database
        self._jobs = jobs
        self._queue = queue
        self._max_attempts = max_attempts
        self.lease_s = lease_s

    def ask(
        self, tenant: str, plan_id: str, *, owner: str | None = None, repeatable: Repeatable = ONCE
    ) -> None:
        """Queue a plan; if it is queued or running, nothing changes; if it was built, it is built again.

        ``owner``: the key whose CPU seconds it takes.
        ``repeatable``: what such a request has queued before is not queued again.

        Raises:
            NotFoundError: this tenant has no such plan.
            IdempotencyConflictError: the key was used for something else.
        """
        self._jobs.plan(tenant, plan_id)
        settled(lambda: self._queued(tenant, plan_id, owner, repeatable))
        self._queue.wake_verifier(plan_id)

    def _queued(self, tenant: str, plan_id: str, owner: str | None, repeatable: Repeatable) -> None:
        with self._database.write() as connection:
            if made_before(connection, tenant, repeatable) is not None:
                return
            remember(connection, tenant, repeatable, subject=plan_id)
            known = connection.execute(_state_of(tenant, plan_id).with_for_update()).first()
            fresh = {"state": "queued", "asked_at_s": now_s(), "owner": owner}
            if known is None:
                connection.execute(insert(verifications).values(tenant=tenant, plan_id=plan_id, **fresh))
            elif known.state == "done":
                again = update(verifications).where(*_is(tenant, plan_id))
                connection.execute(again.values(**fresh, attempts=0, body=None))
            note_verified(connection, tenant, [plan_id])

    def find(self, tenant: str, plan_id: str) -> tuple[str, Mapping[str, Any] | None]:
        """Return the state of a plan's verification, and its result.

        Raises:
            NotFoundError: this tenant has no such plan, or its verification was not requested.
        """
        with self._database.read() as connection:
            known = connection.execute(_state_of(tenant, plan_id)).first()
        if known is None:
            self._jobs.plan(tenant, plan_id)
            raise NotFoundError("this plan was not verified: POST to its address with :verify behind it")
        return known.state, known.body

    def verdicts(self, tenant: str, plan_ids: Sequence[str]) -> dict[str, str]:
        """Return the launcher's verdict on some plans, or how far it has come."""
        query = select(verifications.c.plan_id, verifications.c.state, verifications.c.body)
        query = query.where(verifications.c.tenant == tenant, verifications.c.plan_id.in_(plan_ids))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return {row.plan_id: (row.body or {}).get("verdict", row.state) for row in rows}

    def claim(self) -> ClaimedPlan | None:
        """Claim the plan that waits longest, for this worker alone; None: none waits.

        Plans that no launcher can build are settled on the way.
        """
        while (row := self._next()) is not None:
            claim = VerificationClaim(tenant=row.tenant, plan_id=row.plan_id, fence=row.fence)
            if row.attempts > self._max_attempts:
                lost = f"its worker was lost while its launcher built it, {row.attempts - 1} times"
                self.settle(claim, not_built(lost))
                continue
            try:
                job, body = self._jobs.plan(row.tenant, row.plan_id)
                plan, problem = stored_plan(body), parse_problem(job.request)
            except NotFoundError:  # forgotten by now
                self.settle(claim, not_built("the plan is gone"))
            except (InvalidProblemError, KeyError, TypeError, ValueError) as fault:  # of another version
                self.settle(claim, not_built(f"its stored request or plan cannot be read: {fault}"))
            else:
                return ClaimedPlan(
                    tenant=row.tenant, plan_id=row.plan_id, fence=row.fence, plan=plan, problem=problem
                )
        return None

    def _next(self) -> Row[Any] | None:
        table = verifications.c
        query = select(table.tenant, table.plan_id).where(table.state == "queued")
        query = query.order_by(table.asked_at_s).limit(1)
        with self._database.read() as connection:  # most looks find nothing, and must not block others
            if connection.execute(query).first() is None:
                return None
        with self._database.write() as connection:
            found = connection.execute(query.with_for_update(skip_locked=True)).first()
            if found is None:
                return None
            ours = update(verifications).where(*_is(found.tenant, found.plan_id))
            ours = ours.values(
                state="running", claimed_at_s=now_s(), fence=table.fence + 1, attempts=table.attempts + 1
            )
            columns = (table.tenant, table.plan_id, table.fence, table.attempts)
            row = connection.execute(ours.returning(*columns)).one()
            note_verified(connection, row.tenant, [row.plan_id])
        return row

    def keep(self, claim: VerificationClaim) -> bool:
        """Renew a claim during a build; return False if it was lost."""
        return self._write(claim, claimed_at_s=now_s())

    def give_back(self, claim: VerificationClaim) -> bool:
        """Queue a claimed plan again, uncounted: this worker leaves first; False: the claim was lost."""
        given = self._write(claim, state="queued", claimed_at_s=None, attempts=verifications.c.attempts - 1)
        self._queue.wake_verifier(claim.plan_id)
        return given

    def settle(self, claim: VerificationClaim, found: Mapping[str, Any]) -> bool:
        """Keep the result, and the verdict with the plan; return False if the claim was lost."""
        return self._write(claim, state="done", body=dict(found))

    def spent(self, claim: VerificationClaim, cpu_s: float) -> None:
        """Count the CPU seconds of a build as its owner's."""
        with self._database.write() as connection:
            own = select(verifications.c.owner).where(*_is(claim.tenant, claim.plan_id))
            owner = connection.execute(own).scalar_one_or_none()
            add_usage(connection, claim.tenant, owner, cpu_s=cpu_s, ended=False)

    def _write(self, claim: VerificationClaim, **values: object) -> bool:
        """Write some columns of a claimed plan, unless another worker has claimed it since."""
        held = (*_is(claim.tenant, claim.plan_id), verifications.c.fence == claim.fence)
        mine = update(verifications).where(*held, verifications.c.state == "running")
        with self._database.write() as connection:
            written = connection.execute(mine.values(**values)).rowcount == 1
            note_verified(connection, claim.tenant, [claim.plan_id])
        return written


def not_built(*reasons: str) -> dict[str, Any]:
    """Return the stored result for a plan that no launcher built."""
    return {"verdict": "not built", "reasons": list(reasons)}


def _is(tenant: str, plan_id: str) -> tuple[ColumnElement[bool], ...]:
    return verifications.c.tenant == tenant, verifications.c.plan_id == plan_id


def _state_of(tenant: str, plan_id: str) -> Any:  # noqa: ANN401 - a select of two columns
    return select(verifications.c.state, verifications.c.body).where(*_is(tenant, plan_id))
