"""The state machine of jobs, on a real SQLite file."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.states import MAX_ATTEMPTS, Claim, Outcome
from tests.served.job_records import (
    PLANS,
    SUCCESS,
    TENANT,
    add_job,
    claimed,
    job_in,
    let_lease_run_out,
    num_plans,
)


def test_the_oldest_job_is_claimed_first_and_each_only_once(database: Database, engine: JobEngine) -> None:
    add_job(database, "older")
    time.sleep(0.01)  # SQLite's clock has milliseconds
    add_job(database, "newer")
    assert [claimed(engine).job_id, claimed(engine).job_id] == ["older", "newer"]
    assert engine.claim_one("worker") is None


def test_a_claim_raises_the_fence_counts_the_attempt_and_names_the_worker(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    claim = claimed(engine)
    assert (claim.fence, claim.attempts, job_in(database).state) == (1, 1, "running")
    assert engine.release(claim)
    again = claimed(engine)
    assert (again.fence, again.attempts) == (3, 1)  # a job that is given back costs no attempt
    assert engine.release(again)
    assert not engine.abandon(again)  # nor is a claim uncounted twice
    assert job_in(database).attempts == 0


def test_fresh_jobs_are_left_to_the_workers_that_the_queue_wakes(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    assert engine.claim_one("slow poller", min_age_s=5.0) is None
    assert engine.claim_one("woken") is not None


def test_eight_threads_claim_twenty_jobs_once_each(database: Database, engine: JobEngine) -> None:
    for number in range(20):
        add_job(database, f"job-{number:02}")
    taken: list[str] = []

    def work() -> None:
        while (claim := engine.claim_one("worker")) is not None:
            taken.append(claim.job_id)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [f"job-{number:02}" for number in range(20)]


def test_a_worker_that_lost_its_lease_writes_nothing(database: Database, engine: JobEngine) -> None:
    add_job(database)
    frozen = claimed(engine, "frozen")
    let_lease_run_out(database)
    assert engine.sweep().requeued == 1
    current = claimed(engine, "current")
    assert (frozen.fence, current.fence) == (1, 2)
    assert engine.heartbeat(frozen, {"stage": "stale"}) == "lost"
    assert engine.look(frozen) == "lost"
    assert not engine.complete(frozen, SUCCESS)
    assert not engine.fail(frozen, code="stale", detail="")
    assert not engine.release(frozen)
    assert (job_in(database).state, job_in(database).progress, num_plans(database)) == ("running", None, 0)
    assert engine.complete(current, SUCCESS)
    assert (job_in(database).state, num_plans(database)) == ("succeeded", 2)


def test_a_heartbeat_keeps_the_lease_and_shows_progress(database: Database, engine: JobEngine) -> None:
    add_job(database)
    claim = claimed(engine)
    let_lease_run_out(database)
    assert engine.heartbeat(claim, {"stage": "solving"}) == "ok"
    assert engine.sweep().requeued == 0
    assert job_in(database).progress == {"stage": "solving"}


def test_a_job_whose_worker_dies_three_times_is_poison_and_others_go_on(
    database: Database, engine: JobEngine
) -> None:
    add_job(database, "poison")
    for _ in range(MAX_ATTEMPTS):
        claimed(engine)
        let_lease_run_out(database)
        engine.sweep()
    job = job_in(database, "poison")
    assert job.state == "failed"
    assert job.problem is not None
    assert job.problem["code"] == "poison"
    add_job(database, "healthy")
    assert claimed(engine).job_id == "healthy"


def test_cancelling_a_queued_job_ends_it_at_once(database: Database, engine: JobEngine) -> None:
    add_job(database)
    assert engine.cancel(TENANT, "job")
    assert engine.cancel(TENANT, "job")  # as often as you like
    assert job_in(database).state == "cancelled"
    assert engine.claim_one("worker") is None


def test_cancelling_a_running_job_reaches_its_worker(database: Database, engine: JobEngine) -> None:
    add_job(database)
    claim = claimed(engine)
    assert engine.look(claim) == "ok"
    engine.cancel(TENANT, "job")
    assert engine.look(claim) == "cancel"
    assert engine.heartbeat(claim) == "cancel"
    assert engine.complete(claim, Outcome(state="cancelled"))
    assert job_in(database).state == "cancelled"


@pytest.mark.parametrize("cancel_first", [True, False])
def test_cancel_against_finish_leaves_one_terminal_state(
    database: Database, engine: JobEngine, *, cancel_first: bool
) -> None:
    add_job(database)
    claim = claimed(engine)
    steps: list[Callable[[], bool]] = [
        lambda: engine.cancel(TENANT, "job"),
        lambda: engine.complete(claim, SUCCESS),
    ]
    for step in steps if cancel_first else steps[::-1]:
        step()
    assert job_in(database).state == "succeeded"
    assert not engine.complete(claim, Outcome(state="cancelled"))
    assert job_in(database).state == "succeeded"


def test_cancelling_a_finished_job_changes_nothing_of_it(database: Database, engine: JobEngine) -> None:
    add_job(database)
    assert engine.complete(claimed(engine), SUCCESS)
    finished = job_in(database)
    assert engine.cancel(TENANT, "job")
    assert job_in(database) == finished


def test_a_cancelled_job_whose_worker_died_or_left_is_cancelled(
    database: Database, engine: JobEngine
) -> None:
    add_job(database, "died")
    claimed(engine)
    engine.cancel(TENANT, "died")
    let_lease_run_out(database)
    assert engine.sweep().cancelled == 1
    add_job(database, "left")
    claim = claimed(engine)
    engine.cancel(TENANT, "left")
    assert engine.release(claim)
    assert [job_in(database, name).state for name in ("died", "left")] == ["cancelled", "cancelled"]


def test_another_tenant_cannot_cancel(database: Database, engine: JobEngine) -> None:
    add_job(database)
    assert not engine.cancel("somebody else", "job")
    assert job_in(database).state == "queued"


def test_what_nobody_claims_in_time_expires_and_is_never_claimed(
    database: Database, engine: JobEngine
) -> None:
    add_job(database, queue_timeout_s=-1.0)
    assert engine.claim_one("worker") is None
    assert engine.sweep().expired == 1
    assert job_in(database).state == "expired"


def test_a_job_that_was_claimed_in_time_does_not_expire_when_its_worker_dies_or_leaves(
    database: Database, engine: JobEngine
) -> None:
    for name in ("died", "left"):
        add_job(database, name)
        claim = claimed(engine)
        with database.write() as connection:  # its deadline passes while it is searched
            connection.execute(update(jobs).where(jobs.c.id == name).values(expires_at_s=0.0))
        if name == "died":
            let_lease_run_out(database)
            swept = engine.sweep()
        else:
            assert engine.release(claim)
            swept = engine.sweep()
        assert (swept.expired, job_in(database, name).state) == (0, "queued")
        again = claimed(engine)
        assert again.job_id == name
        assert engine.complete(again, replace(SUCCESS, plans=()))


FOUND = {"status": "feasible", "plans": [{"plan_id": "ccc", "rank": 1}]}


@pytest.mark.parametrize("asked", ["before it is given back", "after it", "after another worker died"])
def test_what_a_worker_found_that_had_to_leave_is_kept_when_the_job_is_cancelled(
    database: Database, engine: JobEngine, asked: str
) -> None:
    add_job(database)
    claim = claimed(engine)
    if asked == "before it is given back":
        engine.cancel(TENANT, "job")  # too late for its worker to hear of
    assert engine.release(claim, FOUND)
    if asked == "after another worker died":
        claimed(engine)
        engine.cancel(TENANT, "job")
        let_lease_run_out(database)
        engine.sweep()
    engine.cancel(TENANT, "job")
    job = job_in(database)
    assert (job.state, job.answer) == ("cancelled", {"status": "feasible"})
    assert num_plans(database) == 1


def test_the_sweeper_publishes_a_waiting_job_again_once_per_period(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    assert engine.sweep().waiting == ()  # too fresh to be lost
    with database.write() as connection:
        connection.execute(update(jobs).values(created_at_s=jobs.c.created_at_s - 10))
    assert engine.sweep().waiting == ("job",)
    assert engine.sweep().waiting == ()


def test_a_result_is_stored_wholly_or_not_at_all(database: Database, engine: JobEngine) -> None:
    add_job(database)
    claim = claimed(engine)
    twice_the_same_rank = [PLANS[0], PLANS[0]]
    with pytest.raises(IntegrityError):
        engine.complete(claim, Outcome(state="succeeded", answer={}, plans=twice_the_same_rank))
    assert (job_in(database).state, num_plans(database)) == ("running", 0)
    assert engine.look(claim) == "ok"


def test_a_claim_carries_the_question(database: Database, engine: JobEngine) -> None:
    add_job(database)
    claim: Claim = claimed(engine)
    assert claim.request["launcher"] == "megatron-lm"
    assert claim.time_limit_s == 30.0


def test_a_living_worker_that_lost_its_lease_uncounts_its_claim_once(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    claim = claimed(engine)
    let_lease_run_out(database)
    assert engine.abandon(claim)  # before the sweep has seen it
    assert (job_in(database).state, job_in(database).attempts) == ("queued", 0)
    assert not engine.abandon(claim)
    again = claimed(engine)
    let_lease_run_out(database)
    assert engine.sweep().requeued == 1
    assert engine.abandon(again)  # after it, while nobody has the job
    assert (job_in(database).state, job_in(database).attempts) == ("queued", 0)


def test_a_worker_whose_job_another_has_uncounts_nothing(database: Database, engine: JobEngine) -> None:
    add_job(database)
    claim = claimed(engine)
    let_lease_run_out(database)
    engine.sweep()
    claimed(engine, "another")
    assert not engine.abandon(claim)
    assert job_in(database).attempts == 2


def test_a_job_that_always_starves_its_worker_is_poison_in_the_end(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    claims = 0
    while job_in(database).state == "queued":
        claim = claimed(engine)
        claims += 1
        let_lease_run_out(database)
        engine.sweep()
        engine.abandon(claim)
    # the fence grows by 2 with an excused claim: 1, 3, 5, 7, 9 are excused, then 3 count
    assert (job_in(database).state, claims) == ("failed", 5 + 3)
