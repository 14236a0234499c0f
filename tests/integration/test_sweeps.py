"""Sweeps with real workers and signals, on both databases."""

import signal
import time
from contextlib import ExitStack

import pytest
from sqlalchemy import delete, func, select, update

from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.records import JobSummary
from meshwright.service.db.tables import idempotency_keys, job_events, jobs
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.jobs.states import TERMINAL_STATES
from meshwright.service.jobs.sweeps import Sweeps
from tests.integration.places import LEASE_S, SWEEP_S, Place
from tests.processes.quiet_clock import quiet_seconds
from tests.processes.servers import environment, until, working
from tests.processes.warm import run_warm
from tests.served.job_records import TENANT
from tests.served.sweep_jobs import a_sweep, answer_child, children_in, record_in

SLOW, JOINER = "tests.processes.slow_worker", "tests.processes.dying_joiner"
STEPS = range(3, 15)  # of telling a sweep, claiming it and storing its answer; beyond them: all is done


@pytest.fixture
def place(database: Database) -> Place:
    with database.write() as connection:
        connection.execute(delete(idempotency_keys))
        connection.execute(delete(jobs))
    settings = {
        "database_url": database.url.render_as_string(hide_password=False),
        "lease_s": str(LEASE_S),
        "sweep_s": str(SWEEP_S),
        "poll_s": "0.1",
    }
    return Place(database=database, settings=settings)


@pytest.fixture
def use_cases(place: Place) -> Jobs:
    engine = JobEngine(place.database, lease_s=LEASE_S)
    return Jobs(place.database, engine, PollingQueue(), queue_timeout_s=3600.0)


def test_two_workers_share_the_points_of_a_sweep_and_one_joins_them(place: Place, use_cases: Jobs) -> None:
    parent = use_cases.submit(TENANT, a_sweep(global_batch_size=[8, 16, 24, 32]))
    with working(place.settings) as one, working(place.settings) as other:
        assert place.await_end(parent.id) == "succeeded"
    with place.database.read() as connection:
        query = select(jobs.c.worker).where(jobs.c.parent_id == parent.id)
        workers = {str(name).rpartition(":")[2] for name in connection.execute(query).scalars()}
    assert workers <= {str(one.pid), str(other.pid)}
    record, page = use_cases.plans(TENANT, parent.id, page_size=10, page_token=None)
    assert record.answer is not None
    points = record.answer["points"]
    assert [row["status"] for row in points] == ["optimal"] * 4
    fastest = max(points, key=lambda row: row["tokens_per_s"])
    assert (page.items[0]["point"], page.items[0]["plan_id"]) == (fastest["point"], fastest["plan_id"])
    assert (record.progress or {})["explored"] == 4


def test_a_sweep_whose_workers_are_killed_goes_on_point_by_point(place: Place, use_cases: Jobs) -> None:
    parent = use_cases.submit(TENANT, a_sweep(global_batch_size=[8, 16]))
    with working(place.settings):
        until(lambda: children_in(place.database, parent.id)[0].state == "succeeded")
        wider = use_cases.submit(TENANT, a_sweep(global_batch_size=[8, 24, 32, 40]))
        until(lambda: "succeeded" in states(place, wider.id)[1:])
    done = {child.id: child.finished_at_s for child in ended(place, wider.id)}
    with working(place.settings, module=SLOW) as victim:
        if record_in(place.database, wider.id).state == "running":
            until(lambda: "running" in states(place, wider.id) or not is_open(place, wider.id))
        victim.kill()
        victim.wait()
    with working(place.settings):
        assert place.await_end(wider.id) == "succeeded"
    after = {child.id: child.finished_at_s for child in children_in(place.database, wider.id)}
    assert {name: after[name] for name in done} == done  # what was answered was not asked again
    record = record_in(place.database, wider.id)
    assert record.answer is not None
    assert record.answer["points"][0]["reused"] is True


def test_cancelling_a_sweep_takes_less_than_a_second(place: Place, use_cases: Jobs) -> None:
    parent = use_cases.submit(TENANT, a_sweep(global_batch_size=[8, 16, 24, 32]))
    with working(place.settings, module=SLOW), working(place.settings, module=SLOW):
        until(lambda: states(place, parent.id).count("running") == 2)
        with quiet_seconds() as clock:
            use_cases.cancel(TENANT, parent.id)
            assert place.await_end(parent.id) == "cancelled"
        assert clock.took_s < 1.0
    assert set(states(place, parent.id)) == {"cancelled"}
    _, page = use_cases.plans(TENANT, parent.id, page_size=10, page_token=None)
    assert len(page.items) == 1  # of what both had found, the best


def test_sigkill_at_any_step_of_a_join_leaves_all_or_nothing_and_it_is_done_once(place: Place) -> None:
    database, engine = place.database, JobEngine(place.database, lease_s=LEASE_S)
    use_cases = Jobs(database, engine, PollingQueue(), queue_timeout_s=3600.0)
    url = database.url.render_as_string(hide_password=False)
    stored = []
    for step in STEPS:
        parent = use_cases.submit(TENANT, a_sweep(fresh=True, global_batch_size=[8, 16]))
        for _ in range(2):
            answer_child(engine)
        died = run_warm(
            "-m", "tests.processes.dying_joiner", url, parent.id, str(step), env=environment({})
        )
        assert died.returncode == -signal.SIGKILL
        now = (record_in(database, parent.id).state, len(place.plans(parent.id)))
        assert now in {("running", 0), ("succeeded", 1)}
        stored.append(now[0] == "succeeded")
        with database.write() as connection:
            leased = jobs.c.lease_expires_at_s.is_not(None)
            connection.execute(update(jobs).where(leased).values(lease_expires_at_s=now_s() - 1))
        engine.sweep()
        Sweeps(database, engine, worker="next").join_ready()
        assert (record_in(database, parent.id).state, len(place.plans(parent.id))) == ("succeeded", 1)
        assert endings(database, parent.id) == 1
    assert stored == sorted(stored)
    assert stored[0] is False
    assert stored[-1] is True


def test_a_tenant_runs_no_more_jobs_at_once_than_it_may(place: Place, use_cases: Jobs) -> None:
    parent = use_cases.submit(TENANT, a_sweep(global_batch_size=[8, 16, 24, 32]))
    settings = {**place.settings, "max_running_jobs": "1"}
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(working(settings, module=SLOW))
        until(lambda: "running" in states(place, parent.id))
        time.sleep(1.0)  # the others look ten times a second
        assert states(place, parent.id).count("running") == 1
        use_cases.cancel(TENANT, parent.id)
        place.await_end(parent.id)


def states(place: Place, parent_id: str) -> list[str]:
    return [child.state for child in children_in(place.database, parent_id)]


def ended(place: Place, parent_id: str) -> list[JobSummary]:
    return [child for child in children_in(place.database, parent_id) if child.state in TERMINAL_STATES]


def is_open(place: Place, parent_id: str) -> bool:
    return bool({"queued", "running"} & set(states(place, parent_id)))


def endings(database: Database, job_id: str) -> int:
    """How often a job came to its end, by the database's own log."""
    with database.read() as connection:
        ends = job_events.c.state.in_(sorted(TERMINAL_STATES))
        query = select(func.count()).where(job_events.c.job_id == job_id, ends)
        return connection.scalar(query) or 0
