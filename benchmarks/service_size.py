"""How requests of 10^3 and 10^6 jobs on record compare: ``python -m benchmarks.service_size [--write]``.

A database is filled (``tests.served.many_jobs``: jobs of 80 days, their plans, events and keys) and
migrated. A real server with keys and a limit of submissions is asked by one client, each address
``REQUESTS`` times; then eight clients POST at once. Processor times are those of the API and of the
database processes that serve its connections: they can be compared on a busy machine, too. ``--write`` puts
the table into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.service_place import Connection, Figures, cpu_ms_exactly, place, write
from benchmarks.service_speed import KINDS, load
from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import share_links
from tests.processes.servers import RunningServer, serving
from tests.served.job_records import TENANT, TINY_PROBLEM
from tests.served.many_jobs import fill

SIZES = (1_000, 1_000_000)
REQUESTS = 200
SECONDS = 20.0  # for them, at most
KEPT = Path("out/service_size.json")  # after each column
FIRST = 10  # requests that open connections and read the first pages of the file

ASKED = (
    ("POST", "/v1/jobs?fresh=true"),
    ("GET", "/v1/jobs/many-5"),
    ("GET", "/v1/jobs/many-5/plans"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs?state=failed"),
    ("GET", "/v1/jobs?state=queued"),
    ("GET", "/v1/plans"),
    ("GET", "/v1/plans?sort=step_time_s"),
    ("GET", "/v1/plans?sort=-mfu&model=model-3"),
    ("GET", "/v1/plans?sort=cost&model=none"),
    ("GET", "/v1/plans?sort=step_time_s&model=none"),
    ("GET", "/v1/profiles"),
    ("GET", "/v1/models"),
    ("GET", "/v1/keys"),
    ("GET", "/v1/audit"),
    ("GET", "/v1/usage?days=366"),
    ("GET", "/v1/share-links"),
    ("GET", "/metrics"),
    ("GET", "/readyz"),
)


async def times_of(server: RunningServer, token: str, database: Database) -> Figures:
    """Return the times of each address in ms, and how many POSTs a second eight clients get through."""
    body = json.dumps(TINY_PROBLEM).encode()
    connection = Connection(server.url, token)
    await connection.open()
    figures: Figures = {}
    for method, path in ASKED:
        took_ms: list[float] = []
        used_ms: list[float] = []
        pids: list[int] = []
        until = time.monotonic() + SECONDS
        while len(took_ms) < FIRST + REQUESTS and time.monotonic() < until:
            if len(took_ms) <= FIRST:
                pids = [server.process.pid, *backends_of(database)]
            before_ms, began_s = cpu_ms_exactly(pids), time.monotonic()
            status, answer = await connection.ask(method, path, body if method == "POST" else b"")
            took_ms.append(1e3 * (time.monotonic() - began_s))
            used_ms.append(cpu_ms_exactly(pids) - before_ms)
            if status not in {200, 202}:
                raise SystemExit(f"error: {method} {path} answered {status} {answer[:200]!r}")
        both = (np.percentile(all_ms[FIRST:] or all_ms, [50, 99]) for all_ms in (took_ms, used_ms))
        figures[f"{method} {path}"] = "; ".join(f"{p50:.1f} / {p99:.1f}" for p50, p99 in both)

    async def post(one: Connection) -> None:
        await one.ask("POST", "/v1/jobs?fresh=true", body)

    figures["POST /v1/jobs?fresh=true, eight clients, a second"] = (
        f"{(await load(server, token, post))[0]:.0f}"
    )
    return figures


def backends_of(database: Database) -> list[int]:
    """Return the PostgreSQL processes that serve connections to this database; SQLite has none."""
    if database.dialect == "sqlite":
        return []
    with database.read() as connection:
        query = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        return list(connection.exec_driver_sql(query).scalars())


def measure(kind: str, num_jobs: int) -> Figures:
    """Every figure of one database with so many jobs."""
    with place(kind, migrated=False) as (settings, database):
        began_s = time.monotonic()
        fill(database, num_jobs)
        fill_links(database, num_jobs)
        looked_at(database)
        print(f"{kind}, {num_jobs} jobs: filled in {time.monotonic() - began_s:.0f} s", flush=True)
        _, token = Keys(database, actor="benchmark").create(NewKey(tenant=TENANT, scope="admin"))
        wide = {"workers": "0", "max_submits_per_minute": "1000000"}
        with serving({**settings, **wide}, fresh=True) as server:
            found = asyncio.run(times_of(server, token, database))
        print(table({f"{kind}, {num_jobs:,} jobs": found}), flush=True)
        return found


def fill_links(database: Database, num_jobs: int) -> None:
    """Give one in a hundred jobs a link that works; days of all keys' use are there (``many_jobs``)."""
    links = (
        {"id": f"link{n}", "tenant": TENANT, "job_id": f"many-{n}", "key_id": f"k{n % 100}",
         "secret_sha256": "none", "created_at_s": now_s(), "expires_at_s": now_s() + 1e6}
        for n in range(0, num_jobs, 100)
    )  # fmt: skip
    with database.write() as connection:
        for link in links:
            connection.execute(share_links.insert().values(link))


def looked_at(database: Database) -> None:
    """Let the database look at its tables, as it does by itself after a while."""
    database.note_statistics()
    if database.dialect == "postgresql":
        with database.read() as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")


def table(found: dict[str, Figures]) -> str:
    """Return a table with a column for each database and number of jobs."""
    lines = ["| ms, p50 / p99; processor ms, p50 / p99 | " + " | ".join(found) + " |"]
    lines += ["|---" * (len(found) + 1) + "|"]
    names = next(iter(found.values()))
    lines += [f"| {name} | " + " | ".join(one[name] for one in found.values()) + " |" for name in names]
    return "\n".join(lines)


def main() -> None:
    """Print the table, and write it where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=KINDS, help="one database; writes nothing")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="other sizes; writes nothing")
    parser.add_argument("--resume", action="store_true", help="measure only what a stopped run lacks")
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    asked = parser.parse_args()
    kinds = [asked.only] if asked.only else KINDS
    found: dict[str, Figures] = json.loads(KEPT.read_text()) if asked.resume and KEPT.exists() else {}
    wanted = {f"{kind}, {size:,} jobs": (kind, size) for kind in kinds for size in asked.sizes}
    for name in (name for name in wanted if name not in found):
        found[name] = measure(*wanted[name])
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
    made = table({name: found[name] for name in wanted})
    print(made)
    if asked.write and not asked.only and tuple(asked.sizes) == SIZES:
        write(f"\n{made}\n", mark="bench-size")


if __name__ == "__main__":
    main()
