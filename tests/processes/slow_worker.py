"""``python -m tests.processes.slow_worker``: a real worker whose searches go on until they are stopped."""

import sys
import time

from meshwright.solver.answer import Answer
from meshwright.solver.problem import OnProgress, Problem, Progress, ShouldStop
from meshwright.workers.__main__ import main
from tests.builders import an_answer


def search_until_stopped(
    problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object
) -> Answer:
    del problem
    started = time.monotonic()
    while not should_stop():
        elapsed_s = time.monotonic() - started
        report = Progress(
            stage="solving",
            explored=int(elapsed_s * 1000),
            total=10**6,
            incumbent_step_time_s=33.0,
            bound_step_time_s=32.0,
            gap=0.03,
            elapsed_s=elapsed_s,
        )
        on_progress(report)
        time.sleep(0.02)
    return an_answer(status="feasible")


if __name__ == "__main__":
    sys.exit(main(search=search_until_stopped))
