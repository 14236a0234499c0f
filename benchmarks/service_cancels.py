"""How soon a running job is cancelled, of hundreds of cancels: ``python -m benchmarks.service_cancels``.

A real worker searches what never ends by itself; it is cancelled at a random moment of its heartbeat, and
the time runs from the request to the terminal state in the database. F9 promises 99 of 100 within a second.
``--write`` puts the figures into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import subprocess
import tempfile
import time
from pathlib import Path

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.states import TERMINAL_STATES
from meshwright.workers.heartbeat import LOOK_S
from tests.processes.postgres_server import PostgresServer
from tests.processes.servers import until, working
from tests.served.job_records import TENANT, add_tiny_job, job_in

DOCUMENT = Path(__file__).parents[1] / "docs" / "reliability.md"
TIMES = 120
START_WITHIN_S = 60.0


def cancelled_after(url: str, times: int) -> list[float]:
    """Seconds from each cancel to its end, sorted."""
    database, draw, took_s = Database(url), random.Random(0), list[float]()  # noqa: S311 - no secret
    migrations.upgrade(database)
    engine = JobEngine(database, lease_s=15.0)
    with working(
        {"database_url": url, "poll_s": "0.05"},
        module="tests.processes.slow_worker",
        stderr=subprocess.DEVNULL,
    ):
        for number in range(times):
            job_id = add_tiny_job(database, f"job-{number}")
            _await(database, job_id, frozenset({"running"}))
            time.sleep(draw.uniform(0.0, LOOK_S))
            asked_at = time.monotonic()
            engine.cancel(TENANT, job_id)
            _await(database, job_id, TERMINAL_STATES)
            took_s.append(time.monotonic() - asked_at)
    database.close()
    return sorted(took_s)


def _await(database: Database, job_id: str, states: frozenset[str]) -> None:
    until(lambda: job_in(database, job_id).state in states, within_s=START_WITHIN_S)


def told(took_s: list[float]) -> str:
    """The median, the 99th percentile and the slowest; of n the ceil(0.99 n)-th is the percentile."""
    middle, late = took_s[len(took_s) // 2], took_s[math.ceil(0.99 * len(took_s)) - 1]
    return f"{middle:.2f} / {late:.2f} / {took_s[-1]:.2f} s"


def main() -> None:
    """Print the figures, and write them where it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="cancels on each database")
    parser.add_argument("--write", action="store_true", help="put the figures into the document")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, PostgresServer() as server:
        urls = {"SQLite": f"sqlite:///{folder}/jobs.db", "PostgreSQL": server.new_database("cancels")}
        found = {name: told(cancelled_after(url, asked.times)) for name, url in urls.items()}
    words = "; ".join(f"{name} {figures}" for name, figures in found.items())
    line = f"Of {asked.times} cancels each, median / p99 / slowest: {words}."
    print(line)
    if asked.write:
        text = DOCUMENT.read_text(encoding="utf-8")
        marks = r"(<!-- cancels -->).*?(<!-- end -->)"
        DOCUMENT.write_text(re.sub(marks, rf"\g<1>{line}\g<2>", text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
