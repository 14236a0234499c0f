"""Sweeps as jobs: children that workers share, joined once, on a real SQLite file."""

from dataclasses import replace

import pytest
from sqlalchemy import update

from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.plan_records import PlanFilter
from meshwright.service.db.records import JobRecord
from meshwright.service.db.tables import jobs as job_table
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs, TenantLimits
from meshwright.service.jobs.retention import DAY_S, Retention
from meshwright.service.jobs.submission import Submission
from meshwright.service.jobs.sweeps import Sweeps
from tests.builders import a_plan, an_infeasible_answer
from tests.served.job_records import TENANT, RememberingQueue, claimed
from tests.served.sweep_jobs import (
    BATCHES,
    a_sweep,
    an_answered_sweep,
    answer_child,
    children_in,
    record_in,
)


@pytest.fixture
def sweeps(database: Database, engine: JobEngine) -> Sweeps:
    return Sweeps(database, engine, worker="worker")


def states_of(database: Database, parent_id: str) -> list[str]:
    return [child.state for child in children_in(database, parent_id)]


def test_a_sweep_runs_without_a_worker_while_its_children_wait(
    jobs: Jobs, database: Database, queue: RememberingQueue
) -> None:
    parent = jobs.submit(TENANT, replace(a_sweep(), priority=2, deadline_s=60.0))
    assert (parent.state, parent.num_children, parent.attempts) == ("running", 3, 0)
    children = children_in(database, parent.id)
    assert [child.state for child in children] == ["queued"] * 3
    assert [(child.priority, child.parent_id) for child in children] == [(2, parent.id)] * 3
    assert all(
        child.expires_at_s == pytest.approx(child.created_at_s + 60.0, abs=1.0) for child in children
    )
    assert [(child.point or {})["values"] for child in children] == [
        {"global_batch_size": batch} for batch in BATCHES
    ]
    assert queue.woken == [parent.id] * 3


def test_children_are_claimed_in_their_order_and_the_sweep_never(jobs: Jobs, engine: JobEngine) -> None:
    parent = jobs.submit(TENANT, a_sweep())
    claims = [claimed(engine) for _ in BATCHES]
    assert [claim.request["workload"]["global_batch_size"] for claim in claims] == BATCHES
    assert {claim.parent_id for claim in claims} == {parent.id}
    assert engine.claim_one("worker") is None


def test_a_child_that_was_answered_before_is_not_searched_again(
    jobs: Jobs, engine: JobEngine, database: Database
) -> None:
    first = jobs.submit(TENANT, a_sweep(global_batch_size=[8, 16]))
    known = [answer_child(engine) for _ in range(2)]
    wider = jobs.submit(TENANT, a_sweep(global_batch_size=[16, 32, 8]))
    assert states_of(database, wider.id) == ["succeeded", "queued", "succeeded"]
    reused = [(child.point or {})["reused_from"] for child in children_in(database, wider.id)]
    assert reused == [known[1], None, known[0]]
    assert states_of(database, jobs.submit(TENANT, a_sweep(fresh=True)).id) == ["queued"] * 3
    assert first.id != wider.id


def test_a_job_answers_a_point_and_a_point_answers_no_job(
    jobs: Jobs, engine: JobEngine, database: Database
) -> None:
    """A point's search looks for no changes that train faster, which a job's answer has."""

    def alone(batch: int) -> JobRecord:
        sweep = a_sweep(global_batch_size=[batch]).sweep
        assert sweep is not None
        return jobs.submit(TENANT, Submission(problem=sweep.problems[0], body={}))

    jobs.submit(TENANT, a_sweep(global_batch_size=[8]))
    answer_child(engine)
    assert alone(8).state == "queued"
    answer_child(engine)
    known = alone(16)
    answer_child(engine)
    (child,) = children_in(database, jobs.submit(TENANT, a_sweep(global_batch_size=[16])).id)
    assert (child.state, (child.point or {})["reused_from"]) == ("succeeded", known.id)


def test_a_sweep_of_known_answers_ends_at_once_and_the_same_sweep_is_the_same_job(
    jobs: Jobs, engine: JobEngine, sweeps: Sweeps
) -> None:
    first = an_answered_sweep(jobs, engine)
    sweeps.child_ended(first.id)
    assert jobs.submit(TENANT, a_sweep()).id == first.id
    fewer = jobs.submit(TENANT, a_sweep(global_batch_size=[8, 32]))
    assert jobs.read(TENANT, fewer.id).state == "succeeded"
    _, page = jobs.plans(TENANT, fewer.id, page_size=10, page_token=None)
    assert len(page.items) == 1


def test_a_plan_belongs_to_the_child_that_found_it_and_not_to_the_sweep(
    jobs: Jobs, engine: JobEngine, sweeps: Sweeps
) -> None:
    parent = jobs.submit(TENANT, a_sweep(global_batch_size=[8]))
    child = answer_child(engine)
    sweeps.child_ended(parent.id)
    _, page = jobs.plans(TENANT, parent.id, page_size=10, page_token=None)
    assert jobs.plan(TENANT, page.items[0]["plan_id"])[0].id == child


def test_cancelling_a_sweep_cancels_what_is_open_and_keeps_what_was_found(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = jobs.submit(TENANT, a_sweep())
    answer_child(engine)
    running = claimed(engine)
    jobs.cancel(TENANT, parent.id)
    assert states_of(database, parent.id) == ["succeeded", "running", "cancelled"]
    assert engine.look(running) == "cancel"
    assert engine.release(running)  # cancelled: its worker had no plan
    sweeps.child_ended(parent.id)
    record, page = jobs.plans(TENANT, parent.id, page_size=10, page_token=None)
    assert (record.state, len(page.items)) == ("cancelled", 1)


def test_cancelling_a_sweep_of_which_nothing_runs_ends_it_at_once(jobs: Jobs, database: Database) -> None:
    parent = jobs.submit(TENANT, a_sweep())
    assert jobs.cancel(TENANT, parent.id).state == "cancelled"
    assert states_of(database, parent.id) == ["cancelled"] * 3
    assert jobs.cancel(TENANT, parent.id).state == "cancelled"


def test_one_point_can_be_cancelled_by_itself(jobs: Jobs, engine: JobEngine, database: Database) -> None:
    parent = jobs.submit(TENANT, a_sweep())
    for _ in range(2):
        answer_child(engine)
    jobs.cancel(TENANT, children_in(database, parent.id)[2].id)  # the last that is open
    record = record_in(database, parent.id)
    assert record.answer is not None
    assert (record.state, record.answer["status"]) == ("succeeded", "feasible")
    assert "global_batch_size = 32: cancelled" in record.answer["warnings"]


def test_a_sweep_that_nobody_began_in_time_is_expired(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = jobs.submit(TENANT, a_sweep())
    with database.write() as connection:
        connection.execute(update(job_table).values(expires_at_s=now_s() - 1))
    assert engine.sweep().expired == 3
    assert sweeps.join_ready() == 1
    assert record_in(database, parent.id).state == "expired"


def test_a_sweep_without_any_plan_is_infeasible_or_failed(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = jobs.submit(TENANT, a_sweep(global_batch_size=[8, 16]))
    for _ in range(2):
        answer_child(engine, an_infeasible_answer())
    sweeps.child_ended(parent.id)
    assert record_in(database, parent.id).state == "infeasible"
    lost = jobs.submit(TENANT, a_sweep(global_batch_size=[64]))
    assert engine.fail(claimed(engine), code="out_of_memory", detail="too much")
    sweeps.child_ended(lost.id)
    record = record_in(database, lost.id)
    assert (record.state, (record.problem or {})["code"]) == ("failed", "out_of_memory")


def test_a_sweep_counts_once_in_lists_and_by_its_points_in_the_queue(
    database: Database, engine: JobEngine, queue: RememberingQueue
) -> None:
    limits = TenantLimits(max_queued_jobs=5, max_submits_per_minute=2)
    jobs = Jobs(database, engine, queue, queue_timeout_s=60.0, limits=limits)
    first = jobs.submit(TENANT, a_sweep())
    second = jobs.submit(TENANT, a_sweep(global_batch_size=[64, 128]))  # 5 children, 2 jobs
    shown = jobs.page(TENANT, page_size=10, page_token=None).items
    assert {job.id for job in shown} == {first.id, second.id}
    assert len(jobs.children(TENANT, first.id, page_size=2, page_token=None).items) == 2


def test_children_come_page_by_page_in_order(jobs: Jobs) -> None:
    parent = jobs.submit(TENANT, a_sweep())
    page = jobs.children(TENANT, parent.id, page_size=2, page_token=None)
    rest = jobs.children(TENANT, parent.id, page_size=2, page_token=page.next_page_token)
    assert [child.position for child in (*page.items, *rest.items)] == [0, 1, 2]
    assert rest.next_page_token is None


def test_a_running_sweep_does_not_cost_its_tenant_a_turn(jobs: Jobs, engine: JobEngine) -> None:
    for _ in range(3):
        jobs.submit(TENANT, a_sweep(fresh=True))
    jobs.submit("zebra", a_sweep(fresh=True))  # neither has a worker, neither was served: by name
    assert claimed(engine).tenant == TENANT


def test_an_old_sweep_is_forgotten_with_its_children(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = an_answered_sweep(jobs, engine)
    retention = Retention(database, keep_jobs_days=1.0, idempotency_ttl_s=60.0)
    with database.write() as connection:
        ended = job_table.c.finished_at_s.is_not(None)
        connection.execute(update(job_table).where(ended).values(finished_at_s=now_s() - 2 * DAY_S))
    assert retention.prune().jobs == 0  # its sweep still needs them
    sweeps.child_ended(parent.id)
    with database.write() as connection:
        connection.execute(update(job_table).values(finished_at_s=now_s() - 2 * DAY_S))
    assert [retention.prune().jobs for _ in range(3)] == [3, 1, 0]


def test_the_points_of_a_sweep_that_took_long_are_kept_as_long_as_the_sweep(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    parent = an_answered_sweep(jobs, engine)
    with database.write() as connection:  # the first points ended long before the last one
        ended = job_table.c.finished_at_s.is_not(None)
        connection.execute(update(job_table).where(ended).values(finished_at_s=now_s() - 2 * DAY_S))
    sweeps.child_ended(parent.id)
    assert Retention(database, keep_jobs_days=1.0, idempotency_ttl_s=60.0).prune().jobs == 0
    assert len(children_in(database, parent.id)) == 3


def test_a_known_answer_that_is_forgotten_at_that_moment_is_searched_again(
    jobs: Jobs, engine: JobEngine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "meshwright.service.jobs.submission.answered_jobs",
        lambda _connection, _tenant, keys: dict.fromkeys(keys, "gone"),
    )
    parent = jobs.submit(TENANT, a_sweep(global_batch_size=[8, 32]))
    assert states_of(database, parent.id) == ["queued", "queued"]
    for _ in range(2):
        answer_child(engine)
    Sweeps(database, engine, worker="worker").child_ended(parent.id)
    record = record_in(database, parent.id)
    assert [row["reused"] for row in (record.answer or {})["points"]] == [False, False]


def test_the_closest_plan_of_a_point_is_found_by_its_id_there_and_in_no_list(
    jobs: Jobs, engine: JobEngine, database: Database, sweeps: Sweeps
) -> None:
    nothing = an_infeasible_answer()
    assert nothing.infeasible is not None
    closest = replace(a_plan(plan_id="c105e57", rank=0), ranked=False)
    near = replace(nothing, infeasible=replace(nothing.infeasible, closest=closest))
    first = jobs.submit(TENANT, a_sweep(global_batch_size=[8]))
    point = answer_child(engine, near)
    sweeps.child_ended(first.id)
    assert ((record_in(database, first.id).answer or {})["infeasible"]["closest"]["plan_id"]) == "c105e57"
    assert jobs.plan(TENANT, "c105e57")[0].id == point
    again = jobs.submit(TENANT, a_sweep(global_batch_size=[8, 16]))  # its first point is a copy
    (copy, _) = children_in(database, again.id)
    assert copy.state == "infeasible"
    assert jobs.plan(TENANT, "c105e57")[0].id in {point, copy.id}
    assert jobs.plans_like(TENANT, PlanFilter(), page_size=10, page_token=None).items == ()
