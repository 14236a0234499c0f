"""How fast the service answers: ``python -m benchmarks.service_speed [--write]``; both databases, keys on.

A real server in a process of its own is asked over kept connections; this process asks, on the same
cores, so the server's own processor time for a request stands beside each rate. POST stores a new job
each time, GET reads one by its id, list reads a page of 50. Then 1 000 clients follow jobs
(``service_streams``). Claims are counted with 100 000 jobs queued by three tenants. The start of a job is
the database's time between its row and its claim, when nothing else runs. ``--write`` puts the table
into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable

import numpy as np

from benchmarks.service_claims import claims_per_s
from benchmarks.service_place import MIB, Connection, Figures, cpu_s, place, rss_bytes, write
from benchmarks.service_streams import allow_open_files, follow
from meshwright.service.auth.keys import Keys, NewKey
from tests.processes.servers import RunningServer, serving, working
from tests.served.job_records import TINY_PROBLEM

KINDS = ("sqlite", "postgresql")
CONNECTIONS = 8
SECONDS = 6.0  # of each kind of request
STARTS = 20  # jobs whose start is timed
IDLE_S = 0.3  # before each of them
WORKER_START_S = 4.0


async def load(
    server: RunningServer, token: str, one: Callable[[Connection], Awaitable[None]]
) -> tuple[float, str, float]:
    """Requests a second, ``p50 / p99`` in ms, and the server's processor ms for each request.

    ``CONNECTIONS`` clients never pause.
    """
    used_s = cpu_s(server.process.pid)
    took_s: list[float] = []
    over = time.monotonic() + SECONDS

    async def client() -> None:
        connection = Connection(server.url, token)
        await connection.open()
        while (began := time.monotonic()) < over:
            await one(connection)
            took_s.append(time.monotonic() - began)

    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    p50, p99 = np.percentile(np.array(took_s) * 1e3, [50, 99])
    used_s = cpu_s(server.process.pid) - used_s
    return len(took_s) / SECONDS, f"{p50:.1f} / {p99:.1f}", 1e3 * used_s / len(took_s)


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

        rate, times, cpu_ms = await load(server, token, one)
        figures[f"{name}, a second"] = f"{rate:.0f}"
        figures[f"{name}, p50 / p99 ms"] = times
        figures[f"{name}, processor ms of the API"] = f"{cpu_ms:.2f}"
    after = rss_bytes(server.process.pid)
    figures["memory of the API, before and after, MiB"] = f"{before / MIB:.0f}, {after / MIB:.0f}"
    return figures


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


def measure(kind: str) -> Figures:
    """Every figure of one database."""
    with place(kind) as (settings, database):
        _, token = Keys(database, actor="benchmark").create(NewKey(tenant="bench"))
        with serving({**settings, "workers": "0"}, fresh=True) as server:
            options = ["--celery"] if kind == "postgresql" else []
            with working(settings, *options, stderr=subprocess.DEVNULL):
                time.sleep(WORKER_START_S)
                started = starts(server, token)
            figures = asyncio.run(requests(server, token))
            figures |= asyncio.run(follow(server, token, database))
        figures["start of a job when idle, p50 / p95 ms"] = started
        figures["claims a second, 100 000 queued, 1 000 sweeps open"] = f"{claims_per_s(database):.0f}"
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
    parser.add_argument("--only", choices=KINDS, help="one database; writes nothing")
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    asked = parser.parse_args()
    allow_open_files()
    made = table({kind: measure(kind) for kind in ([asked.only] if asked.only else KINDS)})
    print(made)
    if asked.write and not asked.only:
        write(f"\n{made}\n", mark="bench-service")


if __name__ == "__main__":
    main()
