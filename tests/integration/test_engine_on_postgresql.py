"""The promises of the job engine hold on PostgreSQL as they do on SQLite: the very same tests.

And those that only a database with several writers at once can break.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import delete, event
from sqlalchemy.exc import OperationalError

from meshwright.service.db.database import Database
from meshwright.service.db.records import find_job, find_plan
from meshwright.service.db.tables import jobs, leaders
from meshwright.service.jobs.engine import JobEngine
from tests.served.job_records import TENANT, add_job, claimed, job_in, let_lease_run_out
from tests.unit.service.jobs.test_claiming import *  # noqa: F403 - the same
from tests.unit.service.jobs.test_engine import *  # noqa: F403 - every test of it, over the fixture below


@pytest.fixture
def database(postgres: Database) -> Database:
    with postgres.write() as connection:
        connection.execute(delete(jobs))
        connection.execute(delete(leaders))
    return postgres


@contextmanager
def after_first_update(database: Database, happens: Callable[[], object]) -> Iterator[None]:
    """Let something else happen on another connection once the first UPDATE of this one was sent."""
    waiting = [happens]

    def sent(_connection: object, _cursor: object, statement: str, *_details: object) -> None:
        if statement.startswith("UPDATE") and waiting:
            waiting.pop()()

    event.listen(database._engine, "after_cursor_execute", sent)
    try:
        yield
    finally:
        event.remove(database._engine, "after_cursor_execute", sent)


@pytest.fixture
def other(database: Database) -> Iterator[Database]:
    """Another process's connections; they do not wait long for a row that is locked."""
    patience = {"options": "-c lock_timeout=200"}
    made = Database(database.url.update_query_dict(patience).render_as_string(hide_password=False))
    yield made
    made.close()


def test_an_id_that_no_text_column_can_hold_is_simply_not_there(database: Database) -> None:
    with database.read() as connection:
        assert find_job(connection, TENANT, "\0") is None
        assert find_plan(connection, TENANT, "\0") is None


def test_a_cancel_is_not_lost_when_the_job_is_given_back_meanwhile(
    database: Database, engine: JobEngine, other: Database
) -> None:
    add_job(database)
    claim = claimed(engine)

    def give_back() -> None:
        with suppress(OperationalError):  # the row is locked: it comes after the cancel
            JobEngine(other, lease_s=30.0).release(claim)

    with after_first_update(database, give_back):
        assert engine.cancel(TENANT, "job")
    assert job_in(database).cancel_requested


def test_a_lease_that_runs_out_during_a_sweep_does_not_queue_a_cancelled_job(
    database: Database, engine: JobEngine, other: Database
) -> None:
    add_job(database)
    claimed(engine)
    engine.cancel(TENANT, "job")
    with after_first_update(database, lambda: let_lease_run_out(other)):
        assert engine.sweep().requeued == 0
    assert engine.sweep().cancelled == 1
