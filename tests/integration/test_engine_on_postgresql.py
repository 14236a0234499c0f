"""The promises of the job engine hold on PostgreSQL as they do on SQLite: the very same tests."""

import pytest
from sqlalchemy import delete

from service.db.database import Database
from service.db.tables import jobs
from tests.unit.service.test_engine import *  # noqa: F403 - every test of it, over the fixture below


@pytest.fixture
def database(postgres: Database) -> Database:
    with postgres.write() as connection:
        connection.execute(delete(jobs))
    return postgres
