"""Real servers, started and stopped by the tests: PostgreSQL, Redis and the service itself."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from tests.processes.postgres_server import PostgresServer
from tests.processes.servers import RedisServer, RunningServer, free_port, serving
from tests.served.migrated import migrated


@pytest.fixture(scope="session", autouse=True)
def _sigterm_ends_what_was_started() -> Iterator[None]:
    """Whoever stops the tests, by Ctrl-C or a time limit, finds no server left running."""
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("told to end by SIGTERM"))
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a throw-away PostgreSQL."""
    with PostgresServer() as server:
        yield server.url


@contextmanager
def new_postgres(server: str) -> Iterator[Database]:
    """A new, empty database of a server, dropped at the end."""
    name = f"test_{time.monotonic_ns()}"
    admin = Database(server)
    with admin._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        made = Database(make_url(server).set(database=name).render_as_string(hide_password=False))
        yield made
        made.close()
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.close()


@pytest.fixture(scope="module")
def postgres(postgres_server: str) -> Iterator[Database]:
    """A migrated database of this module's own."""
    with new_postgres(postgres_server) as made:
        migrations.upgrade(made)
        yield made


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis of this module's own; who stops it starts it again."""
    server = RedisServer(port=free_port(), folder=tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One service with one worker for all tests of a module; each asks a question of its own."""
    url = migrated(tmp_path_factory.mktemp("served") / "meshwright.db")
    with serving({"database_url": url, "workers": "1"}) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated database of each kind."""
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres")
        return
    made = Database(migrated(tmp_path / "meshwright.db"))
    yield made
    made.close()


@pytest.fixture
def engine(database: Database) -> JobEngine:
    return JobEngine(database, lease_s=30.0)
