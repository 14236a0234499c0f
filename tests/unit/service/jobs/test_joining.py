"""Points of a sweep joined: plain values in, plain values out."""

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, update

from meshwright.service.db.database import Database
from meshwright.service.db.records import JobRecord, child_at
from meshwright.service.db.tables import jobs as job_table
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.joining import Joined, SolvedPoint, join
from meshwright.service.jobs.states import MAX_ATTEMPTS, EndState
from meshwright.service.jobs.sweeps import Sweeps
from meshwright.solver.answer import Answer, Plan
from tests.builders import a_plan, a_prediction, an_answer, an_infeasible_answer
from tests.served.job_records import TENANT, let_lease_run_out
from tests.served.sweep_jobs import BATCHES, a_sweep, an_answered_sweep, answer_child, record_in


def plan(step_s: float, *, data_parallel: int = 4, rate: float = 1000.0, rank: int = 1) -> Plan:
    """tp 8 * pp 4 * ``data_parallel`` GPUs, each of which sees ``rate`` tokens a second."""
    found = a_plan(rank=rank, plan_id=f"{step_s}-{data_parallel}", data_parallel_size=data_parallel)
    return replace(found, prediction=a_prediction(step_time_s=step_s, tokens_per_s_per_gpu=rate))


def point(
    value: int, *plans: Plan, answer: Answer | None = None, state: EndState = "succeeded"
) -> SolvedPoint:
    found = (
        answer or an_answer(*plans, gap=0.1, bound_step_time_s=0.9 * plans[0].prediction.step_time_s)
    ).to_json()
    own: list[Any] = found.pop("plans")
    return SolvedPoint(values={"num_nodes": value}, state=state, answer=found, plans=own)


def joined(
    *points: SolvedPoint, objective: str = "step_time", top_k: int = 3, cancelled: bool = False
) -> Joined:
    return join(points, objective=objective, top_k=top_k, cancelled=cancelled)


SMALL = point(
    4, plan(20.0, rate=1100.0), plan(22.0, rate=1000.0, rank=2)
)  # 128 GPUs: 140 800, 128 000 tokens/s
LARGE = point(8, plan(11.0, data_parallel=8, rate=1000.0))  # 256 GPUs: 256 000 tokens/s
NOTHING = point(1, answer=an_infeasible_answer(), state="infeasible")
LOST = SolvedPoint(
    values={"num_nodes": 2}, state="failed", problem={"code": "out_of_memory", "detail": "too much"}
)


def test_plans_of_all_points_are_one_ranking_by_time_of_a_token() -> None:
    whole = joined(SMALL, LARGE)
    assert [(one["rank"], one["point"], one["plan_id"]) for one in whole.plans] == [
        (1, 1, "11.0-8"),
        (2, 0, "20.0-4"),
        (3, 0, "22.0-4"),
    ]
    assert [row["rank"] for row in whole.answer["points"]] == [2, 1]
    assert [row["tokens_per_s"] for row in whole.answer["points"]] == [140800.0, 256000.0]


def test_by_tokens_of_a_gpu_the_small_cluster_is_first() -> None:
    whole = joined(SMALL, LARGE, objective="tokens_per_s_per_gpu")
    assert [one["plan_id"] for one in whole.plans] == ["20.0-4", "22.0-4", "11.0-8"]  # equal: by point


def test_no_more_plans_are_kept_than_were_asked_for() -> None:
    whole = joined(SMALL, LARGE, top_k=1)
    assert [one["plan_id"] for one in whole.plans] == ["11.0-8"]
    assert [row["rank"] for row in whole.answer["points"]] == [None, 1]


def test_the_whole_is_proved_where_every_point_is() -> None:
    near = point(4, answer=an_answer(plan(20.0, rate=1100.0)))
    assert joined(near, NOTHING).answer["status"] == "optimal"
    whole = joined(SMALL, LARGE, NOTHING).answer  # complete rankings, but 10 % from their bounds
    assert (whole["status"], whole["objective_gap"]) == ("feasible", 0.0)
    assert whole["certified_by"] == ["exact-dp", "cp-sat"]
    open_point = point(2, answer=an_answer(plan(30.0), status="feasible", certified_by=()))
    for other in (open_point, LOST):
        assert joined(SMALL, other).answer["status"] == "feasible"
        assert joined(SMALL, other).answer["certified_by"] == []


def test_the_bound_is_the_least_and_none_where_a_point_has_none() -> None:
    assert joined(SMALL, LARGE, NOTHING).answer["bound_step_time_s"] == pytest.approx(0.9 * 11.0)
    assert joined(SMALL, LARGE, LOST).answer["bound_step_time_s"] is None
    assert joined(SMALL, LARGE, LOST).answer["gap"] is None


def test_the_gap_is_that_of_the_first_plan_to_any_points_bound() -> None:
    # by tokens of a GPU: scores 1/1100 (gap 10 %) and 1/1000 (gap 10 %); the bound is 0.9/1100
    assert joined(SMALL, LARGE, objective="tokens_per_s_per_gpu").answer["gap"] == pytest.approx(0.1)
    wide = point(8, answer=an_answer(plan(11.0, data_parallel=8, rate=1000.0), gap=0.5))  # bound 0.5/1000
    found = joined(SMALL, wide, objective="tokens_per_s_per_gpu").answer["gap"]
    assert found == pytest.approx(1.0 - 0.5 / 1000 * 1100)


def test_counts_are_those_of_all_points_together() -> None:
    answer = joined(SMALL, LARGE).answer
    assert (answer["space_size"], answer["legal"], answer["fit"]) == (2 * 184320, 2 * 3912, 2 * 1204)


def test_a_point_is_efficient_unless_another_is_faster_on_as_few_gpus() -> None:
    slow = point(8, plan(30.0, data_parallel=8, rate=500.0))  # 256 GPUs: 128 000 tokens/s, behind both
    assert [row["efficient"] for row in joined(SMALL, LARGE, slow, NOTHING).answer["points"]] == [
        True,
        True,
        False,
        False,
    ]


def test_how_the_points_ended_decides_how_the_whole_did() -> None:
    late = SolvedPoint(values={"num_nodes": 2}, state="expired")
    assert joined(SMALL, LOST, late).state == "succeeded"
    assert joined(NOTHING, NOTHING).state == "infeasible"
    assert joined(NOTHING, LOST).state == "failed"
    assert joined(late, late).state == "expired"
    assert joined(SMALL, late, cancelled=True).state == "cancelled"


def test_a_whole_that_failed_says_why_its_first_point_did() -> None:
    assert joined(NOTHING, LOST).problem == {
        "code": "out_of_memory",
        "detail": "1 of 2 points have no answer; the first, num_nodes = 2: too much",
    }


def test_an_infeasible_whole_gives_a_reason_for_every_point() -> None:
    answer = joined(NOTHING, NOTHING).answer
    assert len(answer["infeasible"]["reasons"]) == 2
    assert all(reason.startswith("num_nodes = 1: ") for reason in answer["infeasible"]["reasons"])


def test_points_without_an_answer_are_warned_of() -> None:
    assert "num_nodes = 2: failed" in joined(SMALL, LOST).answer["warnings"]


# Sweeps whose children have ended: joined once, whoever dies meanwhile; on a real SQLite file.


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


def test_a_join_that_takes_longer_than_a_lease_keeps_it(
    jobs: Jobs, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = JobEngine(database, lease_s=2.0)
    parent = an_answered_sweep(jobs, engine)

    def slowly(connection: Connection, parent_id: str, position: int) -> JobRecord | None:
        time.sleep(0.7)  # three of them take 2.1 s
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
