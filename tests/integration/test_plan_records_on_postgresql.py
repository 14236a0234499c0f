"""Lists of plans on PostgreSQL: the very same tests as on SQLite."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete

from meshwright.service.api.app import create_app
from meshwright.service.db import tables
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.settings import Settings
from tests.served.job_records import RememberingQueue
from tests.unit.service.db.test_plan_records import *  # noqa: F403 - every test of it, over the fixtures below


@pytest.fixture
def database(postgres: Database) -> Database:
    with postgres.write() as connection:
        for table in (tables.jobs, tables.measurements, tables.profiles):
            connection.execute(delete(table))
    return postgres


@pytest.fixture
def jobs(database: Database, engine: JobEngine) -> Jobs:
    return Jobs(database, engine, RememberingQueue(), queue_timeout_s=3600.0)


@pytest.fixture
def client(database: Database) -> Iterator[TestClient]:
    app = create_app(Settings(database_url=database.url.render_as_string(hide_password=False)))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as made:
        yield made
