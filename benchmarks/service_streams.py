"""How 1 000 clients follow jobs at once: memory of each, and how late they hear of an event."""

from __future__ import annotations

import asyncio
import json
import resource
import time

import numpy as np
from sqlalchemy import update

from benchmarks.service_place import Connection, Figures, cpu_s, num_threads, rss_bytes
from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from tests.processes.servers import RunningServer
from tests.served.job_records import TINY_PROBLEM

CLIENTS = 1_000
JOBS = 100  # that they follow, ten clients each
ROUNDS = 5  # of events to every client
IDLE_S = 4.0  # with all of them open and nothing to tell
KIB = 2**10


async def follow(server: RunningServer, token: str, database: Database) -> Figures:
    """Open all streams, wait, tell all of them something, several times."""
    pid = server.process.pid
    job_ids = await _submit(server, token)
    before, threads = rss_bytes(pid), num_threads(pid)
    streams = [Connection(server.url, token) for _ in range(CLIENTS)]
    await asyncio.gather(*(_open(stream, job_ids[number % JOBS]) for number, stream in enumerate(streams)))
    opened = rss_bytes(pid)
    used_s, began_s = cpu_s(pid), time.monotonic()
    await asyncio.sleep(IDLE_S)
    idle = (cpu_s(pid) - used_s) / (time.monotonic() - began_s)
    late_ms = [late for number in range(ROUNDS) for late in await _tell(streams, job_ids, database, number)]
    for stream in streams:
        stream.close()
    p50, p99 = np.percentile(late_ms, [50, 99])
    return {
        "streams open at once": f"{CLIENTS}",
        "memory of a stream, KiB": f"{(opened - before) / CLIENTS / KIB:.0f}",
        "threads of the API, before and with them": f"{threads}, {num_threads(pid)}",
        "processor share of the API, all idle": f"{100 * idle:.0f} %",
        "an event reaches all, p50 / p99 ms": f"{p50:.0f} / {p99:.0f}",
    }


def allow_open_files(wanted: int = 4 * CLIENTS) -> None:
    """Let this process, and those that it starts, open a file for every client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


async def _submit(server: RunningServer, token: str) -> list[str]:
    """Jobs to follow."""
    connection = Connection(server.url, token)
    await connection.open()
    body, found = json.dumps(TINY_PROBLEM).encode(), []
    for _ in range(JOBS):
        _, answer = await connection.ask("POST", "/v1/jobs?fresh=true", body)
        found.append(json.loads(answer)["id"])
    connection.close()
    return found


async def _open(stream: Connection, job_id: str) -> None:
    """Follow a job, up to its first event."""
    await stream.open()
    await stream.begin(f"/v1/jobs/{job_id}/events")
    await stream.until(b"event: queued")


async def _tell(
    streams: list[Connection], job_ids: list[str], database: Database, number: int
) -> list[float]:
    """Change every job in one transaction; how many ms later each client hears of it."""
    progress = {"stage": f"round {number}", "explored": number, "total": ROUNDS, "elapsed_s": 0.0}

    def change() -> float:
        with database.write() as connection:
            connection.execute(update(jobs).where(jobs.c.id.in_(job_ids)).values(progress=progress))
        return time.monotonic()

    async def hear(stream: Connection) -> float:
        await stream.until(f"round {number}".encode())
        return time.monotonic()

    heard = [asyncio.create_task(hear(stream)) for stream in streams]
    told_s = await asyncio.to_thread(change)
    return [1e3 * max(0.0, at_s - told_s) for at_s in await asyncio.gather(*heard)]
