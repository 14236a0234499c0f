"""What another worker brings, and what many cost the database: ``python -m benchmarks.scaling [--write]``.

A throw-away PostgreSQL and Redis, real Celery worker processes. First identical jobs, and the points of a
sweep, are done by one worker and by two. Then the database does what many workers would ask of it, from
threads of this process: claims with 100 000 jobs queued, heartbeats, a sweep. ``--write`` puts the tables
into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from sqlalchemy import delete, func, select, text

from benchmarks.scaling_sweep import sweep_table, swept_by
from benchmarks.service_claims import QUEUED, fill
from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.db.records import NewJob, insert_job
from meshwright.service.db.tables import jobs, leaders
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.queue import CeleryQueue
from meshwright.service.jobs.states import Claim, Outcome
from meshwright.service.requests.fields import DEFAULT_PRIORITY
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from tests.processes.postgres_server import PostgresServer
from tests.processes.servers import RedisServer, Settings, free_port, working
from tests.served.job_records import TENANT, TINY_PROBLEM

DOCUMENT = Path(__file__).parents[1] / "docs" / "scaling.md"
JOBS = 40
CLIENTS = (1, 8, 64)  # threads that ask the database at once
SECONDS = 1.5  # of each kind of question
WORKER_START_S = 5.0
LOOKS_PER_S = 4.0  # of a busy worker: meshwright.workers.heartbeat.LOOK_S
PROGRESS = {"stage": "solving", "total": 9_999_999, "elapsed_s": 1.0}
SEARCH_S = (0.2, 1.0, 10.0, 30.0)  # searches for which the limit is reckoned
MANY = 64  # workers that docs/scaling.md reasons about

Figures = dict[str, float]


@dataclass(kw_only=True)
class Place:
    """A migrated database and a queue."""

    url: str
    settings: Settings
    database: Database = field(init=False)

    def __post_init__(self) -> None:
        self.database = Database(self.url)

    def scalar(self, statement: str) -> float:
        """One number that the database tells."""
        with self.database.read() as connection:
            return float(connection.execute(text(statement)).scalar_one())

    def emptied(self) -> None:
        """No job, and no leader whose lease is still to run out."""
        with self.database.write() as connection:
            connection.execute(delete(jobs))
            connection.execute(delete(leaders))


@contextmanager
def place() -> Iterator[Place]:
    """PostgreSQL and Redis for a while."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(PostgresServer()).new_database("bench")
        redis = RedisServer(port=free_port(), folder=folder)
        redis.start()
        stack.callback(redis.stop)
        made = Place(url=url, settings={"database_url": url, "redis_url": redis.url})
        stack.callback(made.database.close)
        migrations.upgrade(made.database)
        yield made


def done_by(here: Place, num_workers: int) -> Figures:
    """Jobs a minute by so many workers, and the connections that they hold meanwhile."""
    print(f"{num_workers} at work …", file=sys.stderr, flush=True)
    here.emptied()
    with ExitStack() as stack:
        for _ in range(num_workers):
            stack.enter_context(working(here.settings, "--celery", stderr=subprocess.DEVNULL))
        time.sleep(WORKER_START_S * num_workers)
        queue = CeleryQueue(here.settings["redis_url"])
        for job_id in submitted(here.database):
            queue.wake(job_id)
        held = 0.0
        while here.scalar("SELECT count(*) FROM jobs WHERE finished_at_s IS NULL"):
            held = max(held, here.scalar(CONNECTIONS) - 1)  # without this one
            time.sleep(0.2)
    took_s = here.scalar("SELECT max(finished_at_s) - min(claimed_at_s) FROM jobs")
    busy_s = here.scalar("SELECT sum(finished_at_s - claimed_at_s) FROM jobs")
    return {"per_minute": 60.0 * JOBS / took_s, "search_s": busy_s / JOBS, "connections": held}


CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'meshwright'"


def submitted(database: Database) -> list[str]:
    """Identical jobs, each to be searched."""
    names = [f"job-{number:04}" for number in range(JOBS)]
    request = problem_to_mapping(parse_problem(dict(TINY_PROBLEM)))
    with database.write() as connection:
        for name in names:
            new = NewJob(
                id=name,
                tenant=TENANT,
                request=request,
                time_limit_s=30.0,
                queue_timeout_s=3600.0,
                priority=DEFAULT_PRIORITY,
            )
            insert_job(connection, new)
    return names


def rate(url: str, num_clients: int, work: Callable[[JobEngine, int], Callable[[], object]]) -> float:
    """How often a second so many threads, each with a connection of its own, get ``work`` done."""
    counts, over = [0] * num_clients, threading.Event()

    def client(number: int) -> None:
        database = Database(url)
        step = work(JobEngine(database, lease_s=30.0), number)
        ready.wait()
        while not over.is_set():
            step()
            counts[number] += 1
        database.close()

    ready = threading.Barrier(num_clients + 1)
    threads = [threading.Thread(target=client, args=[number]) for number in range(num_clients)]
    for thread in threads:
        thread.start()
    ready.wait()
    time.sleep(SECONDS)
    over.set()
    for thread in threads:
        thread.join()
    return sum(counts) / SECONDS


def claiming(engine: JobEngine, number: int) -> Callable[[], object]:
    """A job's two transactions that matter: the claim, and the end with its answer."""
    answer = Outcome(state="succeeded", answer={"status": "optimal"})

    def step() -> None:
        claim = engine.claim_one(f"bench:{number}")
        if claim is not None:
            engine.complete(claim, answer)

    return step


def beating(engine: JobEngine, number: int) -> Callable[[], object]:
    """Heartbeats with news, so that each adds an event; each client's on a job of its own."""
    claim, explored = _claimed(engine, number), count()
    return lambda: engine.heartbeat(claim, {**PROGRESS, "explored": next(explored)})


def looking(engine: JobEngine, number: int) -> Callable[[], object]:
    """Looks for a cancel, without news to write."""
    claim = _claimed(engine, number)
    return lambda: engine.look(claim)


def _claimed(engine: JobEngine, number: int) -> Claim:
    claim = engine.claim_one(f"bench:{number}")
    if claim is None:
        raise RuntimeError("the queue ran dry")
    return claim


def database_figures(here: Place) -> dict[str, Figures]:
    """What the database does a second, by the number of clients; and the time of a sweep."""
    here.emptied()
    print(f"queueing {QUEUED} jobs …", file=sys.stderr, flush=True)
    fill(here.database)
    found: dict[str, Figures] = {}
    for name, work in {"claims": claiming, "heartbeats": beating, "looks": looking}.items():
        print(f"asking for {name} …", file=sys.stderr, flush=True)
        found[name] = {str(clients): rate(here.url, clients, work) for clients in CLIENTS}
    engine = JobEngine(here.database, lease_s=30.0)
    began = time.monotonic()
    for _ in range(5):
        engine.sweep()
    found["sweep"] = {"ms": (time.monotonic() - began) / 5 * 1e3}
    with here.database.read() as connection:
        queued = connection.scalar(select(func.count()).where(jobs.c.state == "queued")) or 0
    found["queued"] = {"left": float(queued)}
    return found


def workers_table(one: Figures, two: Figures) -> str:
    """What the second worker brought."""
    return "\n".join(
        [
            "| | 1 worker | 2 workers |",
            "|---|---|---|",
            f"| jobs a minute | {one['per_minute']:.0f} | {two['per_minute']:.0f} |",
            f"| of one worker | 1 | {two['per_minute'] / one['per_minute']:.2f} |",
            f"| from claim to end of a job, s | {one['search_s']:.2f} | {two['search_s']:.2f} |",
            f"| connections, most at once | {one['connections']:.0f} | {two['connections']:.0f} |",
        ]
    )


def database_table(found: dict[str, Figures]) -> str:
    """What the database does."""
    heads = [f"{clients} client{'s' if clients > 1 else ''}" for clients in CLIENTS]
    queued = f"{QUEUED:,}".replace(",", " ")
    lines = [f"| a second, {queued} queued | " + " | ".join(heads) + " |"]
    lines += ["|---" * (len(CLIENTS) + 1) + "|"]
    names = {"claims": "jobs claimed and ended", "heartbeats": "heartbeats with progress", "looks": "looks"}
    for name, title in names.items():
        lines.append(f"| {title} | " + " | ".join(f"{found[name][str(c)]:.0f}" for c in CLIENTS) + " |")
    lines += [
        "",
        f"One sweep over {found['queued']['left']:.0f} queued jobs: {found['sweep']['ms']:.0f} ms.",
    ]
    return "\n".join(lines)


def limits_table(found: dict[str, Figures]) -> str:
    """How many workers ask for all that the database does, by the length of a search."""
    lines = [f"| a search lasts | load of {MANY} workers | workers at full load |", "|---|---|---|"]
    many = str(CLIENTS[-1])
    for search_s in SEARCH_S:
        # of one worker, seconds of this database a second: one claim and end a search, 4 beats a second
        load = 1 / (found["claims"][many] * search_s) + LOOKS_PER_S / found["heartbeats"][many]
        lines.append(f"| {search_s:g} s | {100 * MANY * load:.0f} % | {1 / load:.0f} |")
    return "\n".join(lines)


def _swept(here: Place, num_workers: int, module: str) -> Figures:
    """The faster of two runs: what else the machine does only ever slows one down."""
    here.emptied()
    runs = [swept_by(here.database, here.settings, num_workers, module=module) for _ in range(2)]
    return min(runs, key=lambda run: run["whole_s"])


def main() -> None:
    """Print the tables, and write them where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into the document")
    parser.add_argument("--workers-only", action="store_true", help="leave out what 64 ask of the database")
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers' NumPy: one core a worker
    with place() as here:
        workers = workers_table(done_by(here, 1), done_by(here, 2))
        modules = ("workers", "benchmarks.waiting_worker")
        sweep = sweep_table(*([_swept(here, number, module) for number in (1, 2)] for module in modules))
        database = {} if asked.workers_only else database_figures(here)
    tables = {"workers": workers, "sweep": sweep}
    if database:
        tables |= {"database": database_table(database), "limits": limits_table(database)}
    print(*tables.values(), sep="\n\n")
    if asked.write:
        whole = DOCUMENT.read_text(encoding="utf-8")
        for name, table in tables.items():
            marks = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
            whole = re.sub(marks, rf"\g<1>{table}\n\g<2>", whole, flags=re.DOTALL)
        DOCUMENT.write_text(whole, encoding="utf-8")


if __name__ == "__main__":
    main()
