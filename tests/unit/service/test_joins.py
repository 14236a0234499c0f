"""Sweeps whose children have ended: joined once, whoever dies meanwhile; on a real SQLite file."""

import threading
import time

import pytest
from sqlalchemy import Connection, update

from meshwright.service.db.database import Database
from meshwright.service.db.records import JobRecord, child_at
from meshwright.service.db.tables import jobs as job_table
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.states import MAX_ATTEMPTS
from meshwright.service.jobs.sweeps import Sweeps
from tests.builders import an_answer
from tests.job_records import TENANT, let_lease_run_out
from tests.sweep_jobs import BATCHES, a_sweep, an_answered_sweep, answer_child, record_in


@pytest.fixture
def sweeps(database: Database, engine: JobEngine) -> Sweeps:
    return Sweeps(database, engine, worker="worker")


def test_the_last_child_joins_the_sweep(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = jobs.submit(TENANT, a_sweep())
    for done in (1, 2, 3):
        answer_child(engine)
        sweeps.child_ended(parent.id)
        progress = record_in(database, parent.id).progress or {}
        assert (progress["explored"], progress["total"]) == (done, 3)
    record, page = jobs.plans(TENANT, parent.id, page_size=10, page_token=None)
    assert (record.state, record.attempts) == ("succeeded", 1)
    assert record.answer is not None
    assert [row["values"] for row in record.answer["points"]] == [
        {"global_batch_size": batch} for batch in BATCHES
    ]
    assert [plan["rank"] for plan in page.items] == [1]  # top_k is 1
    assert record.started_at_s is not None


def test_however_many_find_a_sweep_ready_it_is_joined_once(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = an_answered_sweep(jobs, engine)
    threads = [threading.Thread(target=lambda: sweeps.child_ended(parent.id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (record_in(database, parent.id).state, record_in(database, parent.id).attempts) == (
        "succeeded",
        1,
    )


def test_a_join_that_was_broken_off_is_done_again_and_the_first_one_writes_nothing(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = an_answered_sweep(jobs, engine)
    lost = engine.claim_ready("dead")
    assert lost is not None
    assert sweeps.join_ready() == 0  # somebody is at it
    let_lease_run_out(database)
    assert engine.sweep().requeued == 0
    assert record_in(database, parent.id).state == "running"
    assert sweeps.join_ready() == 1
    assert record_in(database, parent.id).state == "succeeded"
    assert not engine.fail(lost, code="late", detail="")
    assert record_in(database, parent.id).state == "succeeded"


@pytest.mark.alone
def test_a_join_that_takes_longer_than_a_lease_keeps_it(
    jobs: Jobs, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = JobEngine(database, lease_s=0.4)
    parent = an_answered_sweep(jobs, engine)

    def slowly(connection: Connection, parent_id: str, position: int) -> JobRecord | None:
        time.sleep(0.25)  # three of them take 0.75 s
        engine.sweep()
        assert engine.claim_ready("another") is None
        return child_at(connection, parent_id, position)

    monkeypatch.setattr("meshwright.service.jobs.sweeps.child_at", slowly)
    Sweeps(database, engine, worker="slow").child_ended(parent.id)
    assert (record_in(database, parent.id).state, record_in(database, parent.id).attempts) == (
        "succeeded",
        1,
    )


def test_a_sweep_that_kills_whoever_joins_it_is_poison(
    jobs: Jobs, engine: JobEngine, database: Database
) -> None:
    parent = an_answered_sweep(jobs, engine)
    for _ in range(MAX_ATTEMPTS):
        assert engine.claim_ready("dead") is not None
        let_lease_run_out(database)
        engine.sweep()
    assert record_in(database, parent.id).state == "failed"
    assert engine.claim_ready("another") is None


def test_the_sweep_of_the_engine_joins_what_nobody_told_of(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = an_answered_sweep(jobs, engine)  # its worker is killed before it tells
    assert sweeps.join_ready() == 1
    assert record_in(database, parent.id).state == "succeeded"


def test_an_answer_that_is_no_json_of_ours_fails_the_sweep_and_no_other(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = jobs.submit(TENANT, a_sweep(global_batch_size=[8]))
    child = answer_child(engine, an_answer())
    with database.write() as connection:
        connection.execute(update(job_table).where(job_table.c.id == child).values(point=None))
    sweeps.child_ended(parent.id)
    record = record_in(database, parent.id)
    assert (record.state, (record.problem or {})["code"]) == ("failed", "internal_error")
