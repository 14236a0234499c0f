"""CP-SAT in a process of its own: one JSON request a line on stdin, one JSON verdict a line on stdout.

A process of its own can be killed at any moment, keeps the half second of loading OR-Tools off the
search, and keeps its memory under a limit that CP-SAT itself does not keep.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from dataclasses import asdict
from typing import TextIO

from meshwright.solver.search.cp_sat import without_pandas

MEMORY_LIMIT_BYTES = 6 * 1024**3
PARENT_LOOK_S = 1.0


def main() -> None:
    """Answer requests on stdin until it ends, or the process that asks does."""
    answer(sys.stdin, sys.stdout)


def answer(questions: TextIO, verdicts: TextIO) -> None:
    """Write a verdict for each question until they end, or the process that asks does."""
    threading.Thread(target=_leave_with, args=[os.getppid()], daemon=True).start()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy is loaded, but computes nothing here
    without_pandas()
    from meshwright.solver.search.certify.request import Request  # noqa: PLC0415 (the limit comes first)
    from meshwright.solver.search.certify.split_model import judge  # noqa: PLC0415
    from meshwright.solver.search.decision.model import decide  # noqa: PLC0415
    from meshwright.solver.search.decision.question import KIND, Question  # noqa: PLC0415

    for line in questions:
        raw = json.loads(line)
        decides = raw.get("kind") == KIND
        found = decide(Question.from_json(raw)) if decides else judge(Request.from_json(raw))
        verdicts.write(json.dumps(asdict(found)) + "\n")
        verdicts.flush()


def _leave_with(parent: int) -> None:
    """Exit with the parent process: nothing else stops a solver that is at work."""
    while os.getppid() == parent:
        time.sleep(PARENT_LOOK_S)
    os._exit(1)


if __name__ == "__main__":
    main()
