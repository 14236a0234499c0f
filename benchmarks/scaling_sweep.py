"""One sweep over numbers of nodes by one worker and by two: what fanning out brings a single request."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import CeleryQueue
from meshwright.service.jobs.submission import Submission
from meshwright.service.requests.jobs import read_job_request
from meshwright.service.requests.parse import parse_problem
from tests.processes.servers import Settings, working
from tests.served.job_records import TENANT

NODES = (64, 56, 48, 40, 32, 28, 24, 20, 16, 14, 12, 8)  # of 8 GPUs; the longest searches first
QUESTION: dict[str, object] = {
    "model": {"name": "llama-3.1-70b"},
    "cluster": {"name": "dgx-h100", "num_nodes": NODES[0]},
    "workload": {"global_batch_size": 512, "seq_length": 8192},
    "launcher": "megatron-lm",
    "search": {"top_k": 3},
    "sweep": {"num_nodes": list(NODES)},
}
WORKER_START_S = 5.0
Figures = dict[str, float]


def swept_by(
    database: Database, settings: Settings, num_workers: int, *, module: str = "workers"
) -> Figures:
    """Seconds of a sweep, from the first claim of a point to the joined answer, and of its searches."""
    print(f"a sweep by {num_workers} {module} …", file=sys.stderr, flush=True)
    engine = JobEngine(database, lease_s=15.0)
    jobs = Jobs(database, engine, CeleryQueue(settings["redis_url"]), queue_timeout_s=3600.0)
    asked = read_job_request(QUESTION, parse_problem)
    with ExitStack() as stack:
        for _ in range(num_workers):
            stack.enter_context(working(settings, "--celery", module=module, stderr=subprocess.DEVNULL))
        time.sleep(WORKER_START_S * num_workers)
        submission = Submission(problem=asked.problem, body=QUESTION, sweep=asked.sweep, fresh=True)
        sweep = jobs.submit(TENANT, submission)
        while (done := jobs.read(TENANT, sweep.id)).finished_at_s is None:
            time.sleep(0.1)
    points = jobs.children(TENANT, sweep.id, page_size=len(NODES), page_token=None).items
    searched_s = [(one.finished_at_s or 0.0) - (one.claimed_at_s or 0.0) for one in points]
    began_s = min(one.claimed_at_s or 0.0 for one in points)
    return {"whole_s": done.finished_at_s - began_s, "search_s": sum(searched_s) / len(points)}


def sweep_table(searching: Sequence[Figures], waiting: Sequence[Figures]) -> str:
    """What the second worker brought: of searches, and of points that wait for a second each."""
    lines = ["| | 1 worker | 2 workers |", "|---|---|---|"]
    for name, (one, two) in (("searched", searching), ("waiting 1 s a point", waiting)):
        lines += [
            f"| {name}: the whole sweep, s | {one['whole_s']:.1f} | {two['whole_s']:.1f} |",
            f"| {name}: times as fast | 1 | {one['whole_s'] / two['whole_s']:.2f} |",
            f"| {name}: from claim to end of a point, s | {one['search_s']:.2f} | {two['search_s']:.2f} |",
        ]
    return "\n".join(lines)
