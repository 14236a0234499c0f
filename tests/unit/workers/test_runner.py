"""One worker with a search of ours: how a job ends, and who stops whom."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from meshwright.profiles.errors import InternalError
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from meshwright.solver.answer import Answer
from meshwright.solver.problem import OnProgress, Problem, Progress, ShouldStop
from meshwright.workers.runner import Runner, SearchCall
from tests.builders import a_plan, a_problem, an_answer, an_infeasible_answer
from tests.processes.quiet_clock import quiet_seconds
from tests.processes.servers import HANGS_S, until
from tests.served.job_records import TENANT, add_job, job_in, let_lease_run_out, num_plans
from tests.served.sweep_jobs import a_sweep, children_in

REPORT = Progress(
    stage="solving",
    explored=1,
    total=2,
    incumbent_step_time_s=33.0,
    bound_step_time_s=32.0,
    gap=0.03,
    elapsed_s=0.1,
)


def answering(answer: Answer) -> SearchCall:
    def search(
        problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
    ) -> Answer:
        assert problem.workload == a_problem().workload
        on_progress(REPORT)
        assert not should_stop()
        return answer

    return search


def searching_until_stopped(started: threading.Event, answer: Answer) -> SearchCall:
    def search(
        problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
    ) -> Answer:
        del problem
        on_progress(REPORT)
        started.set()
        while not should_stop():
            time.sleep(0.01)
        return answer

    return search


def breaking(error: BaseException) -> SearchCall:
    def search(
        problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
    ) -> Answer:
        del problem, on_progress, should_stop
        raise error

    return search


def runner_of(engine: JobEngine, search: SearchCall, leaving: threading.Event | None = None) -> Runner:
    return Runner(engine, search, worker="test", leaving=leaving or threading.Event())


def run_while(runner: Runner, started: threading.Event, act: Callable[[], object]) -> float:
    """Seconds from ``act``, done while the search runs, to the end of the run."""
    thread = threading.Thread(target=runner.run_next)
    thread.start()
    assert started.wait(HANGS_S)
    act()
    with quiet_seconds() as clock:
        thread.join(HANGS_S)
    assert not thread.is_alive()
    return clock.took_s


def test_nothing_to_do_is_said_at_once(engine: JobEngine) -> None:
    assert not runner_of(engine, answering(an_answer())).run_next()


@pytest.mark.parametrize(
    ("answer", "state", "plans"),
    [
        (an_answer(), "succeeded", 1),
        (an_answer(status="feasible"), "succeeded", 1),
        (an_infeasible_answer(), "infeasible", 0),
        (replace(an_answer(), status="unknown", plans=()), "failed", 0),
    ],
)
def test_how_the_search_ended_is_how_the_job_ends(
    database: Database, engine: JobEngine, answer: Answer, state: str, plans: int
) -> None:
    add_job(database)
    assert runner_of(engine, answering(answer)).run_next()
    job = job_in(database)
    assert (job.state, num_plans(database)) == (state, plans)
    assert job.answer is not None
    assert job.answer["status"] == answer.status  # bound and reasons are kept, also without a plan
    assert job.progress is not None
    assert job.progress["explored"] == REPORT.explored  # the last report, however short the search was


def test_a_bug_of_the_search_fails_the_job_without_telling_its_text(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    runner_of(engine, breaking(ZeroDivisionError("secret"))).run_next()
    job = job_in(database)
    assert (job.state, job.attempts) == ("failed", 1)
    assert job.problem == {
        "code": "internal_error",
        "detail": "the search failed with ZeroDivisionError. For details, see the worker's log",
    }


def test_a_search_that_cannot_read_its_profile_is_tried_again(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    away = OperationalError("SELECT", {}, Exception("the database is starting up"))
    runner_of(engine, breaking(away)).run_next()
    let_lease_run_out(database)
    assert engine.sweep().requeued == 1
    runner_of(engine, answering(an_answer())).run_next()
    assert (job_in(database).state, job_in(database).attempts) == ("succeeded", 2)


def test_an_error_of_the_planner_keeps_its_code(database: Database, engine: JobEngine) -> None:
    add_job(database)
    runner_of(engine, breaking(InternalError("two proofs disagree"))).run_next()
    assert job_in(database).problem == {"code": "internal_error", "detail": "two proofs disagree"}


def test_an_answer_that_is_no_json_fails_the_job(database: Database, engine: JobEngine) -> None:
    add_job(database)
    runner_of(engine, answering(an_answer(gap=float("nan")))).run_next()
    assert job_in(database).state == "failed"


def test_a_cancel_stops_the_search_within_a_second_and_keeps_its_plans(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    started = threading.Event()
    runner = runner_of(engine, searching_until_stopped(started, an_answer(status="feasible")))
    took_s = run_while(runner, started, lambda: engine.cancel(TENANT, "job"))
    assert took_s < 1.0
    assert (job_in(database).state, num_plans(database)) == ("cancelled", 1)


def test_a_leaving_worker_gives_its_job_back_uncounted(database: Database, engine: JobEngine) -> None:
    add_job(database)
    started, leaving = threading.Event(), threading.Event()
    runner = runner_of(engine, searching_until_stopped(started, an_answer(status="feasible")), leaving)
    assert run_while(runner, started, leaving.set) < 1.0
    assert (job_in(database).state, job_in(database).attempts) == ("queued", 0)
    assert not runner.run_next()  # it claims no more


def test_what_a_leaving_worker_had_found_is_the_answer_of_a_job_that_then_runs_out_of_time(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    started, leaving = threading.Event(), threading.Event()
    first = runner_of(engine, searching_until_stopped(started, an_answer(status="feasible")), leaving)
    run_while(first, started, leaving.set)
    runner_of(engine, answering(replace(an_answer(), status="unknown", plans=()))).run_next()
    assert (job_in(database).state, num_plans(database)) == ("succeeded", 1)


def test_a_lost_lease_stops_the_search_and_drops_its_result(database: Database, engine: JobEngine) -> None:
    add_job(database)
    started = threading.Event()
    runner = runner_of(engine, searching_until_stopped(started, an_answer(status="feasible")))

    def lose() -> None:
        let_lease_run_out(database)
        engine.sweep()

    assert run_while(runner, started, lose) < 1.0
    assert (job_in(database).state, num_plans(database)) == ("queued", 0)


def test_what_a_search_found_that_was_stopped_for_a_lost_lease_is_no_answer(database: Database) -> None:
    engine = JobEngine(database, lease_s=0.5)
    add_job(database)
    started = threading.Event()

    def hold_the_write_lock() -> None:
        with database.write():
            time.sleep(1.0)  # no heartbeat gets through for a whole lease, then they do again

    runner = runner_of(engine, searching_until_stopped(started, an_answer(status="feasible")))
    run_while(runner, started, hold_the_write_lock)
    job = job_in(database)
    assert (job.state, job.attempts, num_plans(database)) == ("queued", 0, 0)  # it lives to give it back


def test_progress_is_stored_while_the_search_runs(database: Database, engine: JobEngine) -> None:
    add_job(database)
    started, leaving = threading.Event(), threading.Event()
    runner = runner_of(engine, searching_until_stopped(started, an_answer()), leaving)
    seen: list[object] = []

    def look() -> None:
        until(lambda: job_in(database).progress is not None)
        seen.append(job_in(database).progress)
        leaving.set()

    run_while(runner, started, look)
    assert isinstance(seen[0], dict)
    assert seen[0]["incumbent_step_time_s"] == 33.0


def test_progress_that_is_no_json_costs_a_report_and_not_the_lease(database: Database) -> None:
    engine = JobEngine(database, lease_s=2.0)
    add_job(database)

    def search(
        problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
    ) -> Answer:
        del problem
        on_progress(replace(REPORT, bound_step_time_s=float("inf")))
        ends = time.monotonic() + 2.2
        while time.monotonic() < ends and not should_stop():
            time.sleep(0.02)
        return an_answer(status="feasible")

    runner_of(engine, search).run_next()
    assert (job_in(database).state, job_in(database).attempts, num_plans(database)) == ("succeeded", 1, 1)


def test_a_search_that_does_not_stop_is_given_up_and_its_worker_leaves(
    database: Database, engine: JobEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshwright.workers.runner.STOP_WAIT_S", 0.1)
    add_job(database)
    started, leaving, over = threading.Event(), threading.Event(), threading.Event()

    def deaf(
        problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
    ) -> Answer:
        del problem, on_progress, should_stop
        started.set()
        over.wait(HANGS_S)
        return an_answer()

    took_s = run_while(runner_of(engine, deaf, leaving), started, lambda: engine.cancel(TENANT, "job"))
    over.set()
    assert took_s < 1.0
    assert (job_in(database).state, leaving.is_set()) == ("cancelled", True)


def test_a_search_over_its_limit_is_told_to_stop_and_its_plans_are_kept(
    database: Database, engine: JobEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "meshwright.workers.runner.SOFT_LIMIT_S", -29.9
    )  # of 30 s: told to stop after 0.1 s
    add_job(database)
    started = threading.Event()
    runner = runner_of(engine, searching_until_stopped(started, an_answer(status="feasible")))
    assert run_while(runner, started, lambda: None) < 1.0
    assert (job_in(database).state, num_plans(database)) == ("succeeded", 1)


def test_a_result_that_cannot_be_stored_fails_the_job_instead_of_trying_for_ever(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    runner_of(engine, answering(an_answer(a_plan(), a_plan()))).run_next()  # twice the same rank
    job = job_in(database)
    assert (job.state, num_plans(database)) == ("failed", 0)
    assert job.problem == {"code": "internal_error", "detail": "its result could not be stored"}


def test_a_database_that_comes_back_within_the_lease_gets_the_answer(
    database: Database, engine: JobEngine, tmp_path: Path
) -> None:
    add_job(database)
    file, away = tmp_path / "meshwright.db", tmp_path / "away.db"

    def come_back() -> None:
        file.rmdir()
        away.rename(file)

    def search(
        problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
    ) -> Answer:
        del problem, on_progress, should_stop
        with database.write() as connection:  # nothing is left in the log beside the file
            connection.exec_driver_sql("UPDATE jobs SET worker = worker")
        database.close()
        file.rename(away)
        file.mkdir()  # not a database
        threading.Timer(0.8, come_back).start()
        return an_answer()

    runner_of(engine, search).run_next()
    assert (job_in(database).state, num_plans(database)) == ("succeeded", 1)


def test_a_point_of_a_sweep_is_not_compared_with_faster_changes(database: Database) -> None:
    engine, asked = JobEngine(database, lease_s=30.0), list[bool]()

    def search(problem: Problem, *, compared: bool, **_how: object) -> Answer:
        del problem
        asked.append(compared)
        return an_answer()

    jobs = Jobs(database, engine, PollingQueue(), queue_timeout_s=3600.0)
    parent = jobs.submit(TENANT, a_sweep(global_batch_size=[8]))
    runner = Runner(engine, search, worker="w", leaving=threading.Event())
    assert runner.run_next()
    add_job(database, "alone")
    assert runner.run_next()
    assert asked == [False, True]
    assert [child.state for child in children_in(database, parent.id)] == ["succeeded"]
