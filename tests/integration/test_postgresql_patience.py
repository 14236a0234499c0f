"""What PostgreSQL does for us: who freezes inside a transaction, or vanishes, holds up nobody for long."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, text

from meshwright.service.db import migrations
from meshwright.service.db.database import DATABASE_AWAY, Database
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.engine import JobEngine
from tests.processes.servers import HANGS_S, environment, is_stopped, until
from tests.reliability.figures import measured
from tests.served.job_records import SUCCESS, TENANT, add_job, claimed, job_in, let_lease_run_out, num_plans

MIGRATION_LOCK = 6_377_421  # of migrations/env.py
INSIDE = "3"  # BEGIN, UPDATE jobs; stopped before INSERT plans: it holds the lock of its job's row


@pytest.fixture
def database(postgres: Database) -> Iterator[Database]:
    with postgres.write() as connection:
        connection.execute(delete(jobs))
    yield postgres
    with postgres.write() as connection:
        connection.execute(delete(jobs))


def test_f06_a_job_is_taken_from_a_worker_that_froze_inside_a_transaction(
    database: Database, engine: JobEngine
) -> None:
    add_job(database, "other")
    claimed(engine)
    let_lease_run_out(database)
    add_job(database)
    soon = database.url.update_query_dict({"options": "-c idle_in_transaction_session_timeout=2000"})
    url = soon.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "tests.processes.dying_writer", url, INSIDE, "SIGSTOP"]
    with subprocess.Popen(command, env=environment({}), stderr=subprocess.PIPE, text=True) as frozen:
        until(lambda: is_stopped(frozen.pid))
        stopped_at = time.monotonic()
        # the other one alone: had it waited for the frozen one to be cut off, it would be both
        assert engine.sweep().requeued == 1
        until(lambda: engine.sweep().requeued == 1)
        measured(6, "queued again, frozen inside a transaction", time.monotonic() - stopped_at, "s")
        ended = [engine.complete(claim, SUCCESS) for claim in (claimed(engine), claimed(engine))]
        frozen.send_signal(signal.SIGCONT)
        _, said = frozen.communicate(timeout=HANGS_S)
    assert ended == [True, True]
    assert frozen.returncode == 1
    assert "sqlalchemy.exc.OperationalError" in said  # a database that is away, not a bug of the worker's
    assert (job_in(database).state, job_in(database).attempts, num_plans(database)) == ("succeeded", 2, 4)


def write_to_a_standby(database: Database) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("SET TRANSACTION READ ONLY")  # as every one of a standby is
        connection.execute(delete(jobs))


def test_a_server_that_takes_no_writes_since_it_lost_its_lead_is_away(
    database: Database, engine: JobEngine
) -> None:
    add_job(database)
    with pytest.raises(DATABASE_AWAY):
        write_to_a_standby(database)
    assert engine.cancel(TENANT, "job")  # over another connection


def test_a_server_with_files_that_may_not_grow_is_full(database: Database) -> None:
    """As over a quota: PostgreSQL reports an internal error for both, unlike for a full disk."""
    with pytest.raises(DATABASE_AWAY) as refused:
        fill_files_of_16_mib(database)  # as long as a piece of PostgreSQL's own log, which has to go on
    assert database.is_full(refused.value)
    database.close()  # the connection with this limit


def fill_files_of_16_mib(database: Database) -> None:
    with database.write() as connection:
        connection.execute(text("COPY (SELECT 1) TO PROGRAM 'prlimit --pid $PPID --fsize=16777216'"))
        rows = "SELECT repeat('x', 2000) FROM generate_series(1, 9000)"  # 18 MB
        connection.execute(text(f"CREATE TABLE long AS {rows}"))


def test_a_server_that_starts_waits_for_another_ones_migration_however_long_it_takes(
    database: Database,
) -> None:
    patience = {"options": "-c lock_timeout=100"}
    second = Database(database.url.update_query_dict(patience).render_as_string(hide_password=False))
    with ThreadPoolExecutor() as pool:
        with database.write() as first:
            first.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
            starting = pool.submit(migrations.upgrade, second, migrations.head())
            with pytest.raises(TimeoutError):
                starting.result(timeout=0.5)
        starting.result(timeout=HANGS_S)
    second.close()


def test_what_the_url_says_of_a_connection_goes_before(database: Database) -> None:
    given = {"options": "-c lock_timeout=200", "application_name": "somebody"}
    other = Database(database.url.update_query_dict(given).render_as_string(hide_password=False))
    shown = []
    for name in ("lock_timeout", "idle_in_transaction_session_timeout", "application_name"):
        with other.read() as connection:
            shown.append(connection.execute(text(f"SHOW {name}")).scalar_one())
    other.close()
    assert shown == ["200ms", "5s", "somebody"]
