"""What is forgotten in time, and what is not, on both databases."""

from sqlalchemy import func, select, update

from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.records import find_job
from meshwright.service.db.tables import job_events, jobs, plans
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.idempotency import Repeatable, made_before, remember
from meshwright.service.jobs.retention import BATCH, Retention
from tests.served.job_records import SUCCESS, TENANT, add_job, claimed

TTL_S = 60.0


def retention(database: Database) -> Retention:
    return Retention(database, keep_jobs_days=1.0, idempotency_ttl_s=TTL_S)


def rows_of(database: Database, job_id: str) -> int:
    with database.read() as connection:
        return sum(
            connection.scalar(select(func.count()).where(table.c.job_id == job_id)) or 0
            for table in (plans, job_events)
        )


def age(database: Database, job_id: str, days: float) -> None:
    with database.write() as connection:
        old = update(jobs).where(jobs.c.id == job_id).values(finished_at_s=now_s() - days * 86_400)
        connection.execute(old)


def test_a_finished_job_goes_with_its_results_and_a_waiting_one_stays(
    database: Database, engine: JobEngine
) -> None:
    for job_id, days in (("old", 1.1), ("young", 0.9)):
        add_job(database, job_id)
        engine.complete(claimed(engine), SUCCESS)
        age(database, job_id, days)
    add_job(database, "waiting")
    with database.write() as connection:
        connection.execute(update(jobs).where(jobs.c.id == "waiting").values(created_at_s=0.0))
        remember(connection, TENANT, Repeatable(key="key", ttl_s=TTL_S), job_id="old")
    assert retention(database).prune().jobs == 1
    with database.read() as connection:
        left = [job for job in ("old", "young", "waiting") if find_job(connection, TENANT, job)]
        assert made_before(connection, TENANT, Repeatable(key="key", ttl_s=TTL_S)) is None
    assert left == ["young", "waiting"]
    assert rows_of(database, "old") == 0
    assert rows_of(database, "young") == 5  # two plans; queued, running, succeeded


def test_many_are_removed_a_batch_at_a_time(database: Database) -> None:
    for number in range(BATCH + 1):
        add_job(database, f"many-{number}")
    with database.write() as connection:
        connection.execute(
            update(jobs).where(jobs.c.id.like("many-%")).values(state="expired", finished_at_s=0.0)
        )
    first, second = retention(database).prune(), retention(database).prune()
    assert (first.jobs, first.may_be_more, second.jobs, second.may_be_more) == (BATCH, True, 1, False)


def test_keys_are_forgotten_when_they_are_free_again(database: Database) -> None:
    add_job(database, "keyed")
    with database.write() as connection:
        for key in ("old", "young"):
            remember(connection, TENANT, Repeatable(key=key, ttl_s=TTL_S), job_id="keyed")
        connection.exec_driver_sql("UPDATE idempotency_keys SET created_at_s = 0 WHERE key = 'old'")
    assert retention(database).prune().keys == 1
    with database.read() as connection:
        assert made_before(connection, TENANT, Repeatable(key="young", ttl_s=TTL_S)) is not None


def test_of_the_reports_of_a_finished_job_each_second_of_over_60_is_kept(
    database: Database, engine: JobEngine
) -> None:
    for other in ("waiting", "keyed"):
        engine.cancel(TENANT, other)  # of the tests before
    add_job(database, "reported")
    claim = claimed(engine)
    for explored in range(70):
        engine.heartbeat(claim, {"stage": "solving", "explored": explored})
    assert rows_of(database, "reported") == 72
    engine.complete(claim, SUCCESS)
    # 73 events: queued, running, 70 reports, succeeded; each second one and the 3 changes, one of them both
    assert rows_of(database, "reported") == 36 + 3 - 1 + 2  # and two plans
