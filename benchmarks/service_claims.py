"""How many jobs one worker can claim and end in a second while 100 000 wait and 1 000 sweeps are open."""

from __future__ import annotations

import time

from sqlalchemy import insert

from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.states import Outcome
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from tests.served.job_records import TINY_PROBLEM

QUEUED = 100_000
SWEEPS = 1_000
TENANTS = 3
BLOCK = 10_000
SECONDS = 5.0


def claims_per_s(database: Database) -> float:
    """Claims that are ended with an answer, one after another, by one process."""
    fill(database)
    engine = JobEngine(database, lease_s=30.0)
    done, over = 0, time.monotonic() + SECONDS
    while time.monotonic() < over:
        claim = engine.claim_one("benchmark")
        if claim is None:
            raise RuntimeError("the queue ran dry")
        engine.complete(claim, Outcome(state="succeeded", answer={"status": "optimal"}))
        done += 1
    return done / SECONDS


def fill(database: Database) -> None:
    """Queue the jobs of three tenants, beside sweeps that wait for their points."""
    request = problem_to_mapping(parse_problem(dict(TINY_PROBLEM)))
    for start in range(0, QUEUED, BLOCK):
        rows = [
            {"id": f"bench-{number:06}", "tenant": f"tenant-{number % TENANTS}"}
            for number in range(start, start + BLOCK)
        ]
        same = {"state": "queued", "request": request, "time_limit_s": 1.0}
        times = {"created_at_s": now_s(), "expires_at_s": now_s() + 3600.0}
        with database.write() as connection:
            connection.execute(insert(jobs).values(**times), [{**same, **row} for row in rows])
    sweep = {"state": "running", "request": request, "time_limit_s": 1.0, "num_children": 2}
    sweeps = [{"id": f"sweep-{n}", "tenant": f"tenant-{n % TENANTS}", **sweep} for n in range(SWEEPS)]
    with database.write() as connection:
        connection.execute(insert(jobs).values(**times), sweeps)
