"""F5 to F10, F13, F14, F19: what happens to workers, on both databases, with real processes and signals."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import delete, select, text

from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.engine import JobEngine
from tests.integration.places import LEASE_S, SWEEP_S, Place
from tests.processes.quiet_clock import quiet_seconds
from tests.processes.servers import HANGS_S, Settings, freeze, until, working
from tests.reliability.figures import measured
from tests.served.job_records import TENANT, add_tiny_job, job_in

SLOW, ODD = "tests.processes.slow_worker", "tests.processes.odd_worker"
POLL_S = 0.2
SLACK_S = 1.5  # to start the next search, on a busy machine


@pytest.fixture
def place(database: Database) -> Place:
    with database.write() as connection:
        connection.execute(delete(jobs))
    settings = {
        "database_url": database.url.render_as_string(hide_password=False),
        "lease_s": str(LEASE_S),
        "sweep_s": str(SWEEP_S),
        "poll_s": str(POLL_S),
    }
    return Place(database=database, settings=settings)


@contextmanager
def second_worker(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """A worker that is up and idle before anything happens to another one."""
    with working(settings) as worker:
        time.sleep(0.5)  # to start
        yield worker


def busy_slow_worker(place: Place, worker: subprocess.Popen[str]) -> None:
    until(lambda: str(place.worker_of()).endswith(f":{worker.pid}"))


def test_f05_worker_sigkill_mid_solve_is_taken_over_within_lease_and_sweep(place: Place) -> None:
    add_tiny_job(place.database)
    with working(place.settings, module=SLOW) as victim:
        busy_slow_worker(place, victim)
        with second_worker(place.settings):
            victim.kill()
            with quiet_seconds() as clock:
                place.await_state("queued", "succeeded")
                until(lambda: job_in(place.database).attempts == 2)
            assert clock.took_s < LEASE_S + SWEEP_S + POLL_S + SLACK_S
            place.measured(5, f"claimed again, lease {LEASE_S:g} s", clock.took_s, "s")
            assert place.await_end() == "succeeded"
    add_tiny_job(place.database, "undisturbed")
    with working(place.settings):
        assert place.await_end("undisturbed") == "succeeded"
    assert place.plans() == place.plans("undisturbed")  # the same seed, the same answer


def test_f06_worker_frozen_past_its_lease_writes_nothing_when_it_wakes_up(place: Place) -> None:
    add_tiny_job(place.database)
    with working(place.settings, module=SLOW) as frozen:
        busy_slow_worker(place, frozen)
        freeze(frozen.pid, place.settings["database_url"])
        with working(place.settings):
            assert place.await_end() == "succeeded"
        done = job_in(place.database)
        frozen.send_signal(signal.SIGCONT)
        time.sleep(1.0)  # time enough to write, were it allowed to
        assert (job_in(place.database), done.attempts) == (done, 2)
    place.measured(6, "stale writes that changed anything", 0)


def test_f07_poison_job_fails_after_three_attempts_and_others_are_unaffected(place: Place) -> None:
    add_tiny_job(place.database, "poison", batch=13)
    add_tiny_job(place.database)
    settings = {**place.settings, "lease_s": "1", "sweep_s": "0.3"}
    started = 0
    while job_in(place.database, "poison").state in {"queued", "running"}:
        with working(settings, "poison", module=ODD) as worker:
            started += 1
            until(
                lambda: worker.poll() is not None or job_in(place.database, "poison").state == "failed",
            )
        assert started <= 6
    poison = job_in(place.database, "poison")
    assert (poison.state, poison.attempts) == ("failed", 3)
    assert poison.problem is not None
    assert poison.problem["code"] == "poison"
    place.measured(7, "attempts of the poison job", poison.attempts)
    with working(place.settings):  # its turn may not have come before the poison was out of the way
        assert place.await_end() == "succeeded"


def test_f07_search_over_the_memory_limit_fails_at_once_and_its_worker_goes_on(place: Place) -> None:
    add_tiny_job(place.database)
    limited = {**place.settings, "worker_memory_bytes": str(2 * 2**30)}
    with working(limited, "hungry", module=ODD) as worker:
        assert place.await_end() == "failed"
        assert worker.poll() is None
    job = job_in(place.database)
    assert (job.attempts, (job.problem or {})["code"]) == (1, "out_of_memory")


def test_f08_search_over_its_time_limit_ends_within_a_second_with_plans_and_bound(place: Place) -> None:
    add_tiny_job(place.database, limit_s=1.0)
    with working(place.settings, module=SLOW):  # it knows no limit of its own
        place.await_state("running", "succeeded")
        with quiet_seconds() as clock:
            assert place.await_end() == "succeeded"
    job = job_in(place.database)
    assert (job.answer or {})["bound_step_time_s"] > 0
    assert clock.took_s < 1.0 + 1.0
    place.measured(8, "stored after the limit", clock.took_s - 1.0, "s")
    assert len(place.plans()) == 1


def test_f09_cancel_of_a_running_job_takes_less_than_a_second_and_frees_the_worker(place: Place) -> None:
    engine = JobEngine(place.database, lease_s=LEASE_S)
    took_s = []
    with working(place.settings, module=SLOW):
        for number in range(5):
            job_id = add_tiny_job(place.database, f"job-{number}")  # taken by the worker that was freed
            place.await_state("running", job_id=job_id)
            with quiet_seconds() as clock:
                assert engine.cancel(TENANT, job_id)
                assert place.await_end(job_id) == "cancelled"
            took_s.append(clock.took_s)
            assert len(place.plans(job_id)) == 1  # what it had found
    assert max(took_s) < 1.0
    place.measured(9, "slowest of 5 cancels", max(took_s), "s")


def test_f10_sigterm_gives_the_job_back_uncounted_with_what_was_found(place: Place) -> None:
    add_tiny_job(place.database)
    with working(place.settings, module=SLOW) as leaving:
        busy_slow_worker(place, leaving)
        with quiet_seconds() as clock:
            leaving.terminate()
            assert leaving.wait(HANGS_S) == 0
        assert clock.took_s < 4.0  # the 2 s in which a search has to stop, and 2 s
    place.measured(10, "left after", clock.took_s, "s")
    job = job_in(place.database)
    assert (job.state, job.attempts) == ("queued", 0)
    with place.database.read() as connection:
        kept = connection.scalar(select(jobs.c.checkpoint).where(jobs.c.id == "job"))
    assert kept is not None
    assert kept["status"] == "feasible"
    with working(place.settings):
        assert place.await_end() == "succeeded"
    assert job_in(place.database).attempts == 1


def test_f13_worker_whose_heartbeats_do_not_get_through_for_a_lease_stops_itself(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "stopped"
    monkeypatch.setenv("STOPPED_FILE", str(stopped))
    add_tiny_job(place.database)
    with working(place.settings, "slow", module=ODD) as worker:
        busy_slow_worker(place, worker)
        with place.database.write() as connection:  # as slow as a database that is overloaded
            connection.execute(text("UPDATE jobs SET worker = worker"))
            began = time.monotonic()
            with quiet_seconds() as clock:
                until(stopped.exists)  # the write lock is held: nothing else would stop it
            took_s = time.monotonic() - began
            assert took_s > LEASE_S / 2
            assert clock.took_s < LEASE_S + SLACK_S + 1.0
            place.measured(13, f"stopped after, lease {LEASE_S:g} s", took_s, "s")
        worker.kill()
    job = job_in(place.database)
    assert job.state in {"running", "queued"}  # nobody ended it; the next worker will
    with working({**place.settings, "lease_s": "60"}):  # which a slow machine does not use up
        assert place.await_end() == "succeeded"


@pytest.mark.parametrize("clock", ["early", "late"])
def test_f14_worker_whose_clock_is_an_hour_off_works_like_any_other(postgres: Database, clock: str) -> None:
    """On SQLite the database's clock is the worker's machine's, and there is only one machine."""
    with postgres.write() as connection:
        connection.execute(delete(jobs))
    place = Place(database=postgres, settings={"database_url": str(postgres.url), "sweep_s": "0.2"})
    add_tiny_job(postgres)
    with working(place.settings, clock, module=ODD):
        assert place.await_end() == "succeeded"
    job = job_in(postgres)
    assert job.finished_at_s is not None
    assert job.attempts == 1
    assert 0 <= job.finished_at_s - job.created_at_s < 1800.0  # by the database's clock, not the worker's
    measured(14, "attempts", job.attempts)


def test_f19_a_flood_of_one_tenant_delays_anothers_job_by_one_search_at_most(place: Place) -> None:
    for number in range(12):
        add_tiny_job(place.database, f"flood-{number:02}", tenant="flood")
    with working(place.settings):
        until(lambda: state_of(place.database, "flood-00") == "succeeded")
        add_tiny_job(place.database, "quiet", tenant="quiet")
        until(lambda: state_of(place.database, "quiet") == "succeeded")
    with place.database.read() as connection:
        rows = connection.execute(select(jobs.c.id, jobs.c.created_at_s, jobs.c.claimed_at_s)).all()
    quiet = next(row for row in rows if row.id == "quiet")
    claims = [row.claimed_at_s for row in rows if row.claimed_at_s is not None]
    before = sum(quiet.created_at_s < claimed_at_s < quiet.claimed_at_s for claimed_at_s in claims)
    assert before <= 1
    place.measured(19, "searches of the flood before the other job", before)


def state_of(database: Database, job_id: str) -> str | None:
    with database.read() as connection:
        found: str | None = connection.scalar(select(jobs.c.state).where(jobs.c.id == job_id))
        return found
