"""The database's clock is set while workers run: open jobs keep the time that they have."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import event, insert, select

from meshwright.service.db.clock import ClockWatch, now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import verifications
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.stores.verifications import Verifications
from tests.served.job_records import add_job, claimed, job_in
from tests.served.migrated import migrated

DAY_S = 86_400.0
TICK_S = 5.0
LEAD_S = 7.5
LEASE_S = 15.0
EPOCH_DAYS = 2440587.5  # 1970-01-01 as a Julian day
STEPS = pytest.mark.parametrize("step_s", [DAY_S, -DAY_S])


@dataclass
class Clocks:
    """The database's clock and the steady one of every worker."""

    now_s: float = 1e9
    steady_s: float = 0.0

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds
        self.steady_s += seconds


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def database(tmp_path: Path, clocks: Clocks) -> Iterator[Database]:
    def install(connection: object, _entry: object) -> None:
        days = lambda _now: EPOCH_DAYS + clocks.now_s / DAY_S  # noqa: E731
        connection.create_function("julianday", 1, days)  # type: ignore[attr-defined]

    database = Database(migrated(tmp_path / "jobs.db"))
    event.listen(database._engine, "connect", install)
    yield database
    database.close()


@pytest.fixture
def worker(database: Database, clocks: Clocks) -> Callable[[], JobEngine]:
    def make() -> JobEngine:
        engine = JobEngine(database, lease_s=LEASE_S)
        engine._clock = ClockWatch(steady_s=lambda: clocks.steady_s)
        return engine

    return make


def tick(engine: JobEngine, name: str) -> bool:
    """Sweep if this worker leads, as its loop does every few seconds."""
    leads = engine.leads(name, LEAD_S)
    if leads:
        engine.sweep()
    return leads


@STEPS
@pytest.mark.parametrize("first", ["leader", "other"])
def test_a_step_of_a_day_expires_no_job_and_ends_no_lease_whoever_leads_after_it(
    database: Database, clocks: Clocks, worker: Callable[[], JobEngine], step_s: float, first: str
) -> None:
    leader, other = worker(), worker()
    for name in ("running", "waiting"):
        add_job(database, name, queue_timeout_s=60.0)
    claim = claimed(leader)
    assert tick(leader, "leader")
    assert not tick(other, "other")
    clocks.now_s += step_s
    clocks.pass_by(1.0)
    engines = {"leader": leader, "other": other}
    assert tick(engines.pop(first), first)  # the lease of the leader is over, or a day too long
    (rest,) = engines
    assert not tick(engines[rest], rest)
    assert leader.look(claim) == "ok"
    assert job_in(database, "waiting").state == "queued"

    clocks.pass_by(LEASE_S - 2.0)  # what was left of the lease, and the new leader is gone
    assert tick(engines[rest], rest)
    assert leader.look(claim) == "ok"
    clocks.pass_by(2.0)
    assert tick(engines[rest], rest)
    assert leader.look(claim) == "lost"
    assert job_in(database, "running").state == "queued"
    clocks.pass_by(60.0)
    assert tick(engines[rest], rest)
    assert job_in(database, "waiting").state == "expired"


@STEPS
def test_what_was_written_after_a_step_is_not_moved(
    database: Database, clocks: Clocks, worker: Callable[[], JobEngine], step_s: float
) -> None:
    engine = worker()
    add_job(database, "running", queue_timeout_s=60.0)
    claim = claimed(engine)
    assert tick(engine, "leader")
    clocks.pass_by(1.0)
    clocks.now_s += step_s
    clocks.pass_by(1.0)
    assert engine.heartbeat(claim) == "ok"
    add_job(database, "waiting", queue_timeout_s=60.0)
    clocks.pass_by(3.0)
    assert tick(engine, "leader")
    assert engine.look(claim) == "ok"
    assert job_in(database, "waiting").state == "queued"

    clocks.pass_by(LEASE_S - 2.5)  # the lease was renewed LEASE_S + 0.5 ago
    assert tick(engine, "leader")
    assert engine.look(claim) == "lost"
    clocks.pass_by(60.0 - LEASE_S - 1.0)  # 59.5 of 60 s
    assert tick(engine, "leader")
    assert job_in(database, "waiting").state == "queued"
    clocks.pass_by(1.0)
    assert tick(engine, "leader")
    assert job_in(database, "waiting").state == "expired"


def test_a_clock_that_is_set_there_and_back_leaves_jobs_their_time(
    database: Database, clocks: Clocks, worker: Callable[[], JobEngine]
) -> None:
    engine = worker()
    assert tick(engine, "leader")
    add_job(database, "early", queue_timeout_s=60.0)
    for at, step_s in enumerate((DAY_S, -DAY_S, -DAY_S, DAY_S)):
        clocks.pass_by(TICK_S)
        clocks.now_s += step_s
        clocks.pass_by(1.0)
        add_job(database, f"after-{at}", queue_timeout_s=60.0)
        assert tick(engine, "leader")
    names = ["early", *(f"after-{at}" for at in range(4))]
    assert {job_in(database, name).state for name in names} == {"queued"}
    clocks.pass_by(61.0)
    assert tick(engine, "leader")
    assert {job_in(database, name).state for name in names} == {"expired"}


def test_a_step_in_the_middle_of_a_tick_is_left_to_the_next(
    database: Database, clocks: Clocks, worker: Callable[[], JobEngine]
) -> None:
    engine = worker()
    add_job(database, "waiting", queue_timeout_s=60.0)
    assert engine.leads("leader", LEAD_S)
    clocks.now_s += DAY_S
    assert engine.sweep().expired == 0
    assert tick(engine, "leader")
    assert job_in(database, "waiting").state == "queued"


def test_a_worker_with_an_old_look_does_not_move_moments_a_second_time(
    database: Database, clocks: Clocks, worker: Callable[[], JobEngine]
) -> None:
    frozen, leader = worker(), worker()
    add_job(database, "waiting", queue_timeout_s=600.0)
    assert tick(leader, "leader")
    assert not tick(frozen, "frozen")
    clocks.now_s += DAY_S
    clocks.pass_by(TICK_S)
    assert tick(leader, "leader")
    clocks.pass_by(300.0)  # both were silent
    assert tick(frozen, "frozen")
    clocks.pass_by(300.0)
    assert tick(frozen, "frozen")
    assert job_in(database, "waiting").state == "expired"


def test_a_machine_that_slept_alone_moves_nothing_when_it_leads_later(
    database: Database, clocks: Clocks, worker: Callable[[], JobEngine]
) -> None:
    leader, sleeper = worker(), JobEngine(database, lease_s=LEASE_S)
    slept_s = 0.0
    sleeper._clock = ClockWatch(steady_s=lambda: clocks.steady_s - slept_s)
    add_job(database, "waiting", queue_timeout_s=4000.0)
    assert tick(leader, "leader")
    assert not tick(sleeper, "sleeper")
    clocks.pass_by(3600.0)
    slept_s = 3600.0
    for _ in range(20):  # 100 s
        clocks.pass_by(TICK_S)
        assert tick(leader, "leader")
        assert not tick(sleeper, "sleeper")
    clocks.pass_by(301.0)
    assert tick(sleeper, "sleeper")  # 4 001 s after the job was submitted
    assert job_in(database, "waiting").state == "expired"


@STEPS
def test_a_verification_is_claimed_for_as_long_as_before_whatever_the_clock_says(
    database: Database, clocks: Clocks, worker: Callable[[], JobEngine], step_s: float
) -> None:
    leader = worker()
    assert tick(leader, "leader")

    def age_s() -> float:
        with database.read() as connection:
            return float(connection.execute(select(now_s() - verifications.c.claimed_at_s)).scalar_one())

    def state() -> str:
        with database.read() as connection:
            return str(connection.execute(select(verifications.c.state)).scalar_one())

    with database.write() as connection:
        connection.execute(
            insert(verifications).values(
                tenant="", plan_id="plan", state="running", asked_at_s=now_s(), claimed_at_s=now_s(),
                fence=1, attempts=1,
            )
        )  # fmt: skip
    clocks.pass_by(3.0)
    clocks.now_s += step_s
    clocks.pass_by(1.0)
    jobs = Jobs(database, leader, PollingQueue(), queue_timeout_s=60.0)
    store = Verifications(database, jobs, PollingQueue(), lease_s=LEASE_S, max_attempts=3)
    assert store.claim() is None  # whatever a worker sees before the leader has moved the claim
    assert tick(leader, "leader")
    assert age_s() == pytest.approx(4.0, abs=0.1)  # a day more, or a day less, without the move
    clocks.pass_by(LEASE_S - 4.5)
    assert tick(leader, "leader")
    assert state() == "running"
    clocks.pass_by(1.0)
    assert tick(leader, "leader")
    assert state() == "queued"
