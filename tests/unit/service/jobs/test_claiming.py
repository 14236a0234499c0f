"""Whose job is next, who sweeps, and what is published again; on a real SQLite file."""

import time

from sqlalchemy import update

from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.records import NewJob, insert_job
from meshwright.service.db.tables import jobs, leaders
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.states import Outcome
from tests.served.job_records import SUCCESS, add_job, claimed


def queue_up(database: Database, tenant: str, *job_ids: str, priority: int = 5) -> None:
    for job_id in job_ids:
        with database.write() as connection:
            new = NewJob(
                id=job_id,
                tenant=tenant,
                request={},
                time_limit_s=1.0,
                queue_timeout_s=60.0,
                priority=priority,
            )
            insert_job(connection, new)


def one_after_another(engine: JobEngine, number: int) -> list[str]:
    """Ids in the order in which one worker takes and ends them."""
    order = []
    for _ in range(number):
        claim = claimed(engine)
        order.append(claim.job_id)
        assert engine.complete(claim, Outcome(state="succeeded", answer={}))
        time.sleep(0.002)  # the next claim is a later one also by a clock of milliseconds
    return order


def let_pass(database: Database, seconds: float) -> None:
    """Everything that happened is that much longer ago."""
    with database.write() as connection:
        connection.execute(
            update(jobs).values(
                created_at_s=jobs.c.created_at_s - seconds, hinted_at_s=jobs.c.hinted_at_s - seconds
            )
        )


def hints_after(engine: JobEngine, database: Database, seconds: float) -> tuple[str, ...]:
    """What a sweep publishes again that much later."""
    let_pass(database, seconds)
    return engine.sweep().waiting


def test_a_tenant_that_floods_the_queue_delays_its_own_jobs_only(
    database: Database, engine: JobEngine
) -> None:
    queue_up(database, "flood", *(f"flood-{number:02}" for number in range(20)))
    queue_up(database, "quiet", "quiet-1", "quiet-2")
    order = one_after_another(engine, 6)
    assert order == ["flood-00", "quiet-1", "flood-01", "quiet-2", "flood-02", "flood-03"]


def test_the_tenant_with_fewer_running_jobs_is_next(database: Database, engine: JobEngine) -> None:
    queue_up(database, "a", "a-1", "a-2", "a-3")
    assert [claimed(engine).job_id for _ in range(2)] == ["a-1", "a-2"]
    queue_up(database, "b", "b-1", "b-2", "b-3")
    # a has two running: b is served until it has two as well; then a, as it waited longer
    assert [claimed(engine).job_id for _ in range(3)] == ["b-1", "b-2", "a-3"]


def test_a_tenants_more_urgent_job_overtakes_its_own_but_no_other_tenants(
    database: Database, engine: JobEngine
) -> None:
    queue_up(database, "a", "a-usual")
    queue_up(database, "a", "a-urgent", priority=0)
    queue_up(database, "b", "b-patient", priority=9)
    assert one_after_another(engine, 3) == ["a-urgent", "b-patient", "a-usual"]


def test_one_worker_leads_until_it_was_silent_for_longer_than_its_lease(
    database: Database, engine: JobEngine
) -> None:
    assert engine.leads("first", 10.0)
    assert engine.leads("first", 10.0)
    assert not engine.leads("second", 10.0)
    with database.write() as connection:
        connection.execute(update(leaders).values(expires_at_s=now_s() - 1))  # the first one froze
    assert engine.leads("second", 10.0)
    assert not engine.leads("first", 10.0)


def test_a_waiting_job_is_published_again_ever_more_rarely(database: Database, engine: JobEngine) -> None:
    add_job(database)
    # first after 3 s; at 3.5 s, so then after 3.5 s more; at 7.5 s, so then after 7.5 s more
    pauses_s = (2.5, 1.0, 3.0, 1.0, 7.0, 1.0)
    published = [hints_after(engine, database, seconds) for seconds in pauses_s]
    assert published == [(), ("job",), (), ("job",), (), ("job",)]


def test_a_long_queue_gets_no_more_hints_than_a_sweep_looks_at(
    database: Database, engine: JobEngine
) -> None:
    for number in range(130):
        add_job(database, f"job-{number:03}")
    let_pass(database, 10.0)
    first, second = (hints_after(engine, database, 1.0) for _ in range(2))
    assert first == tuple(f"job-{number:03}" for number in range(100))  # the oldest stand for all
    assert second == ()


def test_a_given_back_job_keeps_what_was_found_until_it_ends(database: Database, engine: JobEngine) -> None:
    add_job(database)
    assert engine.release(claimed(engine), {"status": "feasible"})
    again = claimed(engine)
    assert again.checkpoint == {"status": "feasible"}
    assert engine.release(again)  # it found nothing: the earlier one stands
    last = claimed(engine)
    assert last.checkpoint == {"status": "feasible"}
    assert engine.complete(last, SUCCESS)
    with database.read() as connection:
        assert connection.execute(jobs.select()).mappings().one()["checkpoint"] is None
