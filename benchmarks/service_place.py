"""What the service benchmarks share: a place to run, a cheap HTTP client, and a look at a process."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from tests.processes.postgres_server import PostgresServer
from tests.processes.servers import RedisServer, Settings, free_port

DOCUMENT = Path(__file__).parents[1] / "docs" / "reliability.md"
MIB = 2**20
Figures = dict[str, str]


class Connection:
    """One kept HTTP connection that costs little, so that the server is what is measured."""

    def __init__(self, url: str, token: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = host, int(port)
        self._head = f"Host: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(*self._address)

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def begin(self, path: str) -> None:
        """Ask for a stream."""
        self._writer.write(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())

    async def until(self, wanted: bytes) -> None:
        """Read a stream up to some bytes."""
        await self._reader.readuntil(wanted)

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of one answer."""
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{length}\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        return int(head[9:12]), await self._reader.readexactly(int(found[1]) if found else 0)


def rss_bytes(pid: int) -> int:
    """Resident memory of a process (Linux, ``/proc``)."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def cpu_s(pid: int) -> float:
    """Processor seconds that a process has used (Linux, ``/proc``)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_ms_exactly(pids: Collection[int]) -> float:
    """Return the processor milliseconds that the threads of some processes have used (Linux ``schedstat``).

    They are exact to the nanosecond, while ``cpu_s`` counts ticks of 10 ms. Ended threads are not counted.
    """
    used_ns = 0
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
            used_ns += int((task / "schedstat").read_text().split()[0])
    return used_ns / 1e6


def num_threads(pid: int) -> int:
    """Threads of a process (Linux, ``/proc``)."""
    found = re.search(r"Threads:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


@contextmanager
def place(kind: str, *, migrated: bool = True) -> Iterator[tuple[Settings, Database]]:
    """A database, and with PostgreSQL a queue."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"max_queued_jobs": "1000000", "lease_s": "15"}
        if kind == "sqlite":
            settings["database_url"] = f"sqlite:///{folder / 'jobs.db'}"
        else:
            settings["database_url"] = stack.enter_context(PostgresServer()).new_database("bench")
            redis = RedisServer(port=free_port(), folder=folder)
            redis.start()
            stack.callback(redis.stop)
            settings["redis_url"] = redis.url
        database = Database(settings["database_url"])
        stack.callback(database.close)
        if migrated:
            migrations.upgrade(database)
        yield settings, database


def write(text: str, *, mark: str) -> None:
    """Put a figure, or a table, between its marks in docs/reliability.md."""
    marks = rf"(<!-- {mark} -->).*?(<!-- end -->)"
    before = DOCUMENT.read_text(encoding="utf-8")
    after = re.sub(marks, lambda found: f"{found[1]}{text}{found[2]}", before, flags=re.DOTALL)
    DOCUMENT.write_text(after, encoding="utf-8")
