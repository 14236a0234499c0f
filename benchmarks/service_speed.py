"""How fast the service answers: ``python -m benchmarks.service_speed [--write]``; both databases, keys on.

A real server in a process of its own is asked over kept connections; this process asks, on the same
cores. POST stores a new job each time, GET reads one by its id, list reads a page of 50. Claims are
counted with 100 000 jobs queued by three tenants. The start of a job is the database's time between its
row and its claim, when nothing else runs. ``--write`` puts the table into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from benchmarks.service_claims import claims_per_s
from service.db import migrations
from service.db.database import Database
from service.keys import Keys, NewKey
from tests.job_records import TINY_PROBLEM
from tests.postgres_server import PostgresServer
from tests.servers import RedisServer, RunningServer, Settings, free_port, serving, working

DOCUMENT = Path(__file__).parents[1] / "docs" / "reliability.md"
CONNECTIONS = 8
SECONDS = 6.0  # of each kind of request
STARTS = 20  # jobs whose start is timed
IDLE_S = 0.3  # before each of them
WORKER_START_S = 4.0
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

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of one answer."""
        length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{length}\r\n".encode() + body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        return int(head[9:12]), await self._reader.readexactly(int(found[1]) if found else 0)


async def load(url: str, token: str, one: Callable[[Connection], Awaitable[None]]) -> tuple[float, str]:
    """Requests a second, and ``p50 / p99`` in ms, of ``CONNECTIONS`` clients that never pause."""
    took_s: list[float] = []
    over = time.monotonic() + SECONDS

    async def client() -> None:
        connection = Connection(url, token)
        await connection.open()
        while (began := time.monotonic()) < over:
            await one(connection)
            took_s.append(time.monotonic() - began)

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    p50, p99 = np.percentile(np.array(took_s) * 1e3, [50, 99])
    return len(took_s) / SECONDS, f"{p50:.1f} / {p99:.1f}"


async def requests(server: RunningServer, token: str) -> Figures:
    """Rates and times of POST, GET and list, and what the server's memory grows by."""
    body = json.dumps(TINY_PROBLEM).encode()
    connection = Connection(server.url, token)
    await connection.open()
    status, first = await connection.ask("POST", "/v1/jobs?fresh=true", body)
    if status != 202:  # noqa: PLR2004 - accepted
        raise SystemExit(f"error: the server answered {status} {first[:200]!r}")
    job = json.loads(first)["id"]
    asked = {
        "POST /v1/jobs": ("POST", "/v1/jobs?fresh=true", body, 202),
        "GET /v1/jobs/{id}": ("GET", f"/v1/jobs/{job}", b"", 200),
        "GET /v1/jobs (50)": ("GET", "/v1/jobs?page_size=50", b"", 200),
    }
    figures: Figures = {}
    before = rss_bytes(server.process.pid)
    for name, (method, path, content, wanted) in asked.items():

        async def one(
            connection: Connection, what: tuple[str, str, bytes, int] = (method, path, content, wanted)
        ) -> None:
            status, answer = await connection.ask(*what[:3])
            if status != what[3]:
                raise SystemExit(f"error: {what[0]} {what[1]} answered {status} {answer[:200]!r}")

        rate, times = await load(server.url, token, one)
        figures[f"{name}, a second"] = f"{rate:.0f}"
        figures[f"{name}, p50 / p99 ms"] = times
    after = rss_bytes(server.process.pid)
    figures["memory of the API, before and after, MiB"] = f"{before / MIB:.0f}, {after / MIB:.0f}"
    return figures


def rss_bytes(pid: int) -> int:
    """Resident memory of a process (Linux, ``/proc``)."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def starts(server: RunningServer, token: str) -> str:
    """``p50 / p95`` in ms from a job's row to its claim, one job at a time."""
    waited_ms = []
    headers = {"Authorization": f"Bearer {token}"}
    for _ in range(STARTS):
        time.sleep(IDLE_S)
        job = server.post_job(dict(TINY_PROBLEM), params={"fresh": "true"}, headers=headers)
        waited_ms.append(_claimed_after_ms(server, job["id"], headers))
    p50, p95 = np.percentile(waited_ms, [50, 95])
    return f"{p50:.0f} / {p95:.0f}"


def _claimed_after_ms(server: RunningServer, job_id: str, headers: dict[str, str]) -> float:
    import httpx  # noqa: PLC0415 - the only use

    while True:
        job = httpx.get(f"{server.url}/v1/jobs/{job_id}", params={"wait": 5}, headers=headers).json()
        if job.get("finished_at"):
            created, started = (
                np.datetime64(job[name].rstrip("Z")) for name in ("created_at", "started_at")
            )
            return float((started - created) / np.timedelta64(1, "us")) / 1e3


@contextmanager
def place(kind: str) -> Iterator[tuple[Settings, Database]]:
    """A migrated database, and with PostgreSQL a queue."""
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
        migrations.upgrade(database)
        yield settings, database


def measure(kind: str) -> Figures:
    """Every figure of one database."""
    with place(kind) as (settings, database):
        _, token = Keys(database, actor="benchmark").create(NewKey(tenant="bench"))
        with serving({**settings, "workers": "0"}) as server:
            options = ["--celery"] if kind == "postgresql" else []
            with working(settings, *options, quiet=True):
                time.sleep(WORKER_START_S)
                started = starts(server, token)
            figures = asyncio.run(requests(server, token))
        figures["start of a job when idle, p50 / p95 ms"] = started
        figures["claims a second, 100 000 queued"] = f"{claims_per_s(database):.0f}"
    return figures


def table(found: dict[str, Figures]) -> str:
    """A column for every database."""
    kinds = list(found)
    lines = ["| | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    names = next(iter(found.values()))
    lines += [f"| {name} | " + " | ".join(found[kind][name] for kind in kinds) + " |" for name in names]
    return "\n".join(lines)


def main() -> None:
    """Print the table, and write it where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    asked = parser.parse_args()
    made = table({kind: measure(kind) for kind in ("sqlite", "postgresql")})
    print(made)
    if asked.write:
        marks = r"(<!-- bench-service -->\n).*?(<!-- end -->)"
        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(re.sub(marks, rf"\g<1>{made}\n\g<2>", text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
