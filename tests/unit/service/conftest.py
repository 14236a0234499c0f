"""A real database file for every test that wants one."""

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from meshwright.service.api.app import create_app
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.settings import Settings
from meshwright.workers.fleet import FleetWork
from meshwright.workers.roles import RolesWork
from meshwright.workers.runner import Runner
from meshwright.workers.search import StoredSearch
from tests.served.commands import answer_once
from tests.served.job_records import RememberingQueue
from tests.served.migrated import migrated


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(migrated(tmp_path / "meshwright.db"))
    yield made
    made.close()


@pytest.fixture
def engine(database: Database) -> JobEngine:
    return JobEngine(database, lease_s=30.0)


@pytest.fixture
def worker(database: Database, engine: JobEngine, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A real worker, for every kind of question; it answers the same one once, without levers."""
    answer_once(monkeypatch)
    return Runner(
        engine, StoredSearch(database), worker="w", leaving=threading.Event(),
        fleet=partial(FleetWork.on, database), roles=partial(RolesWork.on, database),
    )  # fmt: skip


@pytest.fixture
def queue() -> RememberingQueue:
    return RememberingQueue()


@pytest.fixture
def jobs(database: Database, engine: JobEngine, queue: RememberingQueue) -> Jobs:
    return Jobs(database, engine, queue, queue_timeout_s=3600.0)


@pytest.fixture
def client(database: Database) -> Iterator[TestClient]:
    settings = Settings(database_url=str(database.url))
    app = create_app(settings)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client
