"""Any order of claims, beats, deaths, joins, cancels and sweeps keeps the promises, by a clock of ours."""

import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import event, select

from meshwright.service.db.clock import ClockWatch
from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.states import MAX_ATTEMPTS, TERMINAL_STATES, Claim, Outcome
from tests.served.job_records import SUCCESS, TENANT, add_tiny_job, add_tiny_sweep, num_plans
from tests.served.migrated import migrated

LEASE_S = 10.0
TENANTS = (TENANT, "another")
FOUND = {"status": "feasible", "plans": [{"plan_id": "ccc", "rank": 1}]}
EPOCH_DAYS = 2440587.5  # 1970-01-01 as a Julian day
SECONDS_PER_DAY = 86400.0
MEMORY = Path("/dev/shm")  # noqa: S108 - a file system without a disk; every commit waits for its disk


class JobsUnderFaults(RuleBasedStateMachine):
    """Workers hold claims; a claim is dead once its job was swept or ended."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1e9
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.database = Database(migrated(Path(self.folder.name) / "jobs.db"))
        event.listen(self.database._engine, "connect", self._install_clock)
        self.engine = JobEngine(self.database, lease_s=LEASE_S)
        self.engine._clock = ClockWatch(steady_s=lambda: self.now_s)  # both clocks pass the same time
        self.claims: list[Claim] = []
        self.joins: list[Claim] = []
        self.points: dict[str, list[str]] = {}  # of sweeps
        self.ended: dict[str, str] = {}
        self.fences: dict[str, int] = {}
        self.completed: list[str] = []
        self.leading = "", 0.0

    def _install_clock(self, connection: object, _entry: object) -> None:
        days = lambda _now: EPOCH_DAYS + self.now_s / SECONDS_PER_DAY  # noqa: E731
        connection.create_function("julianday", 1, days)  # type: ignore[attr-defined]

    def teardown(self) -> None:
        try:
            self.nothing_is_stuck()
        finally:
            self.database.close()
            self.folder.cleanup()

    def nothing_is_stuck(self) -> None:
        """Whatever happened: with one worker that lives, every job ends."""
        for _ in range(len(self.fences) + MAX_ATTEMPTS):
            self.now_s += LEASE_S + 1
            self.engine.sweep()
            while (claim := self.engine.claim_one("last")) or (claim := self.engine.claim_ready("last")):
                assert self.engine.complete(claim, SUCCESS)
        with self.database.read() as connection:
            left = connection.execute(select(jobs.c.id).where(jobs.c.finished_at_s.is_(None))).all()
        assert left == []

    @precondition(lambda self: len(self.fences) - 3 * len(self.points) < 4)
    @rule()
    def submit(self) -> None:
        job_id = f"job-{len(self.fences)}"
        self.fences[job_id] = 0
        add_tiny_job(self.database, job_id, tenant=TENANTS[len(self.fences) % 2])

    @precondition(lambda self: len(self.points) < 2)
    @rule()
    def submit_sweep(self) -> None:
        name = f"sweep-{len(self.points)}"
        add_tiny_sweep(self.database, name, num_points=2)
        self.points[name] = [f"{name}-{at:04x}" for at in range(2)]
        self.fences |= dict.fromkeys([name, *self.points[name]], 0)

    @rule()
    def claim_join(self) -> None:
        claim = self.engine.claim_ready("joiner")
        if claim is not None:
            assert claim.fence > self.fences[claim.job_id]
            assert set(self.points[claim.job_id]) <= self.ended.keys(), "a point was still open"
            self.joins.append(claim)

    @precondition(lambda self: self.joins)
    @rule(data=st.data(), beats=st.booleans())
    def end_join(self, data: st.DataObject, beats: bool) -> None:
        claim = data.draw(st.sampled_from(self.joins))
        if beats:
            self.engine.heartbeat(claim)
        elif self.engine.complete(claim, SUCCESS):
            self.completed.append(claim.job_id)

    @rule()
    def claim(self) -> None:
        claim = self.engine.claim_one("worker")
        if claim is not None:
            assert claim.fence > self.fences[claim.job_id]
            assert claim.attempts <= MAX_ATTEMPTS
            assert claim.job_id not in self.points, "a sweep was searched"
            self.claims.append(claim)

    @rule(seconds=st.floats(0.5, 12.0) | st.just(4000.0))  # longer than a job may wait for its first claim
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self.engine.heartbeat(data.draw(st.sampled_from(self.claims)))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), end=st.sampled_from(["complete", "fail", "release", "abandon", "cancel"]))
    def end(self, data: st.DataObject, end: str) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        if end == "complete" and self.engine.complete(claim, SUCCESS):
            self.completed.append(claim.job_id)
        elif end == "fail":
            self.engine.fail(claim, code="broken", detail="")
        elif end == "release":
            self.engine.release(claim, data.draw(st.sampled_from([None, FOUND])))
        elif end == "abandon":
            self.engine.abandon(claim)
        elif end == "cancel":
            self.engine.complete(claim, Outcome(state="cancelled"))

    @precondition(lambda self: self.fences)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.fences)))
        asked = [self.engine.cancel(tenant, job_id) for tenant in TENANTS]
        assert sum(asked) == 1  # whose job it is, and nobody else

    @rule(worker=st.sampled_from(["first", "second"]))
    def lead(self, worker: str) -> None:
        if self.engine.leads(worker, LEASE_S):
            other, until_s = self.leading
            assert other in {worker, ""} or self.now_s > until_s - 1e-3, "two lead at once"
            self.leading = worker, self.now_s + LEASE_S

    @rule()
    def sweep(self) -> None:
        self.engine.sweep()
        with self.database.read() as connection:
            running = connection.execute(
                select(jobs.c.lease_expires_at_s).where(
                    jobs.c.state == "running", jobs.c.worker.is_not(None)
                )
            ).scalars()
            # julianday keeps about 40 microseconds, so a lease may seem over by less than a millisecond
            assert all(lease_s > self.now_s - 1e-3 for lease_s in running)

    @invariant()
    def promises_hold(self) -> None:
        seen = (jobs.c.id, jobs.c.state, jobs.c.fence, jobs.c.attempts, jobs.c.started_at_s, jobs.c.answer)
        with self.database.read() as connection:
            rows = connection.execute(select(*seen)).all()
        for row in rows:
            assert row.fence >= self.fences[row.id], "the fence went back"
            self.fences[row.id] = row.fence
            assert 0 <= row.attempts <= MAX_ATTEMPTS
            if row.id in self.ended:
                assert row.state == self.ended[row.id], "a terminal state changed"
            elif row.state in TERMINAL_STATES:
                self.ended[row.id] = row.state
            assert row.state != "expired" or row.started_at_s is None, "a job that had begun expired"
        for sweep, points in self.points.items():
            assert sweep not in self.ended or set(points) <= self.ended.keys(), "a point outlives its sweep"
        assert len(self.completed) == len(set(self.completed)), "two results for one job"
        kept = sum(row.state == "cancelled" and row.answer is not None for row in rows)
        assert num_plans(self.database) == 2 * len(self.completed) + kept


RUNS, STEPS = (500, 250) if os.environ.get("MESHWRIGHT_TEST_LONG") else (25, 25)  # 125 000 steps, or few
JobsUnderFaults.TestCase.settings = settings(
    max_examples=RUNS,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestJobsUnderFaults = JobsUnderFaults.TestCase
