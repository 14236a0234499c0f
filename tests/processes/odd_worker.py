"""``python -m tests.processes.odd_worker KIND …``: a real worker process with one thing wrong.

poison      a job of 13 sequences ends the process by a segmentation fault
hungry      every search asks for more memory than any machine has
early, late its clock is an hour off
slow        its searches go on until they are stopped, and say so in the file named by STOPPED_FILE
redis-dies  its first search kills Redis when it is done, so that the acknowledgement finds none
demoted     every search makes Redis a replica, which takes no acknowledgement
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from redis import Redis

from meshwright.solver.answer import Answer
from meshwright.solver.problem import OnProgress, Problem, ShouldStop
from meshwright.workers.__main__ import main
from meshwright.workers.runner import SearchCall
from tests.processes.slow_worker import search_until_stopped

HOUR_S = 3600.0
UNLUCKY_BATCH = 13


def poisoned(
    problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
) -> Answer:
    del should_stop
    if problem.workload.global_batch_size == UNLUCKY_BATCH:
        os.kill(os.getpid(), signal.SIGSEGV)
    return search_until_stopped(problem, on_progress=on_progress, should_stop=lambda: True)


def hungry(
    problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
) -> Answer:
    del should_stop
    blocks = [np.ones(2**27) for _ in range(64)]  # 64 GiB, a gigabyte at a time
    assert blocks
    return search_until_stopped(problem, on_progress=on_progress, should_stop=lambda: True)


def slow(problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object) -> Answer:
    answer = search_until_stopped(problem, on_progress=on_progress, should_stop=should_stop)
    Path(os.environ["STOPPED_FILE"]).touch()
    return answer


def redis_dies(
    problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
) -> Answer:
    del should_stop
    if problem.workload.global_batch_size == UNLUCKY_BATCH:
        with Redis.from_url(os.environ["MESHWRIGHT_REDIS_URL"]) as redis:
            os.kill(redis.info("server")["process_id"], signal.SIGKILL)
    return search_until_stopped(problem, on_progress=on_progress, should_stop=lambda: True)


def demoted(
    problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
) -> Answer:
    del should_stop
    with Redis.from_url(os.environ["MESHWRIGHT_REDIS_URL"]) as redis:
        redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    return search_until_stopped(problem, on_progress=on_progress, should_stop=lambda: True)


def shift_clock(seconds: float) -> None:
    """What this process takes for the time of day; how long something lasts is not changed."""
    real = time.time
    time.time = lambda: real() + seconds
    time.time_ns = lambda: int((real() + seconds) * 1e9)


SEARCHES: dict[str, SearchCall | None] = {
    "poison": poisoned, "hungry": hungry, "slow": slow, "redis-dies": redis_dies, "demoted": demoted,
}  # fmt: skip

if __name__ == "__main__":
    kind, *options = sys.argv[1:]
    if kind in {"early", "late"}:
        shift_clock(-HOUR_S if kind == "early" else HOUR_S)
    sys.exit(main(options, search=SEARCHES.get(kind)))
