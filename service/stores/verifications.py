"""Plans that are put before their launchers: asked for, claimed by one worker, and what was built.

The table is the queue. A worker renews its claim while its launcher builds, as it renews a job's lease;
a claim that was not renewed for ``lease_s`` is another worker's, and a worker that leaves gives it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, or_, select, update

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.plan_records import note_verified
from meshwright.service.db.tables import verifications
from meshwright.service.errors import IdempotencyConflictError, NotFoundError
from meshwright.service.jobs.idempotency import settled
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import WakeUpQueue
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Plan, plan_from_json
from meshwright.solver.problem import Problem

LEASE_S = 15.0  # the default of ``Settings.lease_s``


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One plan that a worker has claimed."""

    tenant: str
    plan_id: str
    plan: Plan
    problem: Problem


class Verifications:
    """The use cases of verified plans."""

    def __init__(
        self, database: Database, jobs: Jobs, queue: WakeUpQueue, *, lease_s: float = LEASE_S
    ) -> None:
        self._database = database
        self._jobs = jobs
        self._queue = queue
        self.lease_s = lease_s

    def ask(self, tenant: str, plan_id: str, *, key: str | None = None) -> None:
        """Queue a plan; one that is queued or running stays as it is, one that was built is built again.

        ``key``: of a request that may be repeated; what it has queued before is not queued again.

        Raises:
            NotFoundError: this tenant has no such plan.
            IdempotencyConflictError: the key was used for another plan.
        """
        self._jobs.plan(tenant, plan_id)
        settled(lambda: self._queued(tenant, plan_id, key))
        self._queue.wake_verifier(plan_id)

    def _queued(self, tenant: str, plan_id: str, key: str | None) -> None:
        """The row of a plan, queued unless it is already."""
        with self._database.write() as connection:
            if key is not None and connection.execute(_of_another(tenant, plan_id, key)).first():
                raise IdempotencyConflictError("this idempotency key was used with another plan")
            known = connection.execute(_this(tenant, plan_id).with_for_update()).first()
            if known is None:
                new = insert(verifications).values(tenant=tenant, plan_id=plan_id)
                connection.execute(new.values(state="queued", asked_at_s=now_s(), idempotency_key=key))
            elif known.state == "done" and (key is None or key != known.idempotency_key):
                again: dict[str, Any] = {"state": "queued", "asked_at_s": now_s(), "body": None}
                _set(connection, tenant, plan_id, idempotency_key=key, **again)
            note_verified(connection, tenant, [plan_id])

    def find(self, tenant: str, plan_id: str) -> tuple[str, Mapping[str, Any] | None]:
        """The state of a plan's verification, and what was built.

        Raises:
            NotFoundError: nobody has asked for it.
        """
        with self._database.read() as connection:
            known = connection.execute(_this(tenant, plan_id)).first()
        if known is None:
            raise NotFoundError("this plan was not verified: POST to its address with :verify behind it")
        return known.state, known.body

    def verdicts(self, tenant: str, plan_ids: Sequence[str]) -> dict[str, str]:
        """What is known of some plans: the launcher's verdict, or how far it has come."""
        query = select(verifications.c.plan_id, verifications.c.state, verifications.c.body)
        query = query.where(verifications.c.tenant == tenant, verifications.c.plan_id.in_(plan_ids))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return {row.plan_id: (row.body or {}).get("verdict", row.state) for row in rows}

    def claim(self) -> Asked | None:
        """The plan that waits longest, for this worker alone; None: none waits."""
        waits = or_(
            verifications.c.state == "queued",
            (verifications.c.state == "running") & (verifications.c.claimed_at_s < now_s() - self.lease_s),
        )
        query = select(verifications.c.tenant, verifications.c.plan_id).where(waits)
        query = query.order_by(verifications.c.asked_at_s).limit(1)
        with self._database.read() as connection:  # most looks find nothing, and hold up nobody
            if connection.execute(query).first() is None:
                return None
        with self._database.write() as connection:
            row = connection.execute(query.with_for_update(skip_locked=True)).first()
            if row is None:
                return None
            _set(connection, row.tenant, row.plan_id, state="running", claimed_at_s=now_s())
            note_verified(connection, row.tenant, [row.plan_id])
        try:
            job, body = self._jobs.plan(row.tenant, row.plan_id)
            plan, problem = plan_from_json(body), parse_problem(job.request)
        except NotFoundError:  # forgotten by now
            found = not_built("the plan is gone")
        except (InvalidProblemError, KeyError, TypeError, ValueError) as fault:  # of another version
            found = not_built(f"its stored request or plan cannot be read: {fault}")
        else:
            return Asked(tenant=row.tenant, plan_id=row.plan_id, plan=plan, problem=problem)
        self.settle(row.tenant, row.plan_id, found)
        return None

    def keep(self, asked: Asked) -> None:
        """Renew a claim: its launcher still builds."""
        with self._database.write() as connection:
            _set(connection, asked.tenant, asked.plan_id, only="running", claimed_at_s=now_s())

    def give_back(self, asked: Asked) -> None:
        """Queue a claimed plan again: this worker leaves before its launcher has ended.

        What a worker has built that took the plan over meanwhile stays.
        """
        again = {"state": "queued", "claimed_at_s": None}
        with self._database.write() as connection:
            _set(connection, asked.tenant, asked.plan_id, only="running", **again)
            note_verified(connection, asked.tenant, [asked.plan_id])
        self._queue.wake_verifier(asked.plan_id)

    def settle(self, tenant: str, plan_id: str, found: Mapping[str, Any]) -> None:
        """Keep what was built, and the verdict beside the plan."""
        with self._database.write() as connection:
            _set(connection, tenant, plan_id, state="done", body=dict(found))
            note_verified(connection, tenant, [plan_id])


def not_built(*reasons: str) -> dict[str, Any]:
    """What is kept of a plan that no launcher built."""
    return {"verdict": "not built", "reasons": list(reasons)}


def _this(tenant: str, plan_id: str) -> Any:  # noqa: ANN401 - a select of three columns
    query = select(verifications.c.state, verifications.c.body, verifications.c.idempotency_key)
    return query.where(verifications.c.tenant == tenant, verifications.c.plan_id == plan_id)


def _of_another(tenant: str, plan_id: str, key: str) -> Any:  # noqa: ANN401 - a select of one column
    query = select(verifications.c.plan_id).where(verifications.c.tenant == tenant)
    return query.where(verifications.c.idempotency_key == key, verifications.c.plan_id != plan_id)


def _set(
    connection: Connection, tenant: str, plan_id: str, *, only: str | None = None, **values: object
) -> None:
    """Write some columns of a plan; ``only``: in this state."""
    this = update(verifications).where(verifications.c.tenant == tenant, verifications.c.plan_id == plan_id)
    if only is not None:
        this = this.where(verifications.c.state == only)
    connection.execute(this.values(**values))
