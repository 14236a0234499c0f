"""``python -m benchmarks.waiting_worker``: a real worker whose searches take a second and no processor.

On a machine with fewer cores than workers this shows what sharing out and joining cost, and nothing else.
"""

from __future__ import annotations

import sys
import time

from meshwright.solver.answer import Answer
from meshwright.solver.problem import OnProgress, Problem, ShouldStop
from meshwright.workers.__main__ import main
from tests.builders import an_answer

SEARCH_S = 1.0


def wait(problem: Problem, *, on_progress: OnProgress, should_stop: ShouldStop, **_known: object) -> Answer:
    """An answer, after a second."""
    del problem, on_progress, should_stop
    time.sleep(SEARCH_S)
    return an_answer()


if __name__ == "__main__":
    sys.exit(main(search=wait))
