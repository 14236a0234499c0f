"""CP-SAT on equal nodes: ``python -m benchmarks.decisions [--write] [--draws N] [PROBLEM.json …]``.

A line for each problem of ``benchmarks/problems``: the rows that bounds leave, the variables and limits of
the model, how often CP-SAT decided, its CPU seconds without loading OR-Tools, and whether it chose the plan
of the search. ``--draws 500`` holds that many drawn requests with constraints against everything that each
of them means: CP-SAT's choice must be the least of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from benchmarks.search import PROBLEMS, ROOT, aligned, renewed, written
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.clock import Watch
from meshwright.solver.planner.plan import ask
from meshwright.solver.search.certify.judge import Judge, kept_child
from meshwright.solver.search.decision.question import Question
from meshwright.solver.search.search import search
from tests.problems.requests_drawn import a_drawn_request
from tests.property.test_meaning_of_requests import everything, in_time, most_of_row, profile_of, rows_of

DOCUMENT = ROOT / "docs" / "what-decides-what.md"
HEADINGS = ("problem", "rows", "variables", "limits", "decisions", "CPU-s", "chosen as the search did")
_PATIENCE_S = 3600.0
_ROUNDING = 1e-7


def line(path: Path) -> tuple[str, ...]:
    """Return one row of the table."""
    problem = parse_problem(read_problem_file(path))
    options = replace(problem.options, certify="cp-sat", time_limit_s=_PATIENCE_S)
    problem = replace(problem, options=options)
    asked, cpu_s, decide = list[Question](), list[float](), Judge.decide

    def heard(self: Judge, question: Question, watch: Watch) -> Mapping[str, Any] | None:
        verdict = decide(self, question, watch)
        asked.append(question)
        cpu_s.append(verdict["cpu_s"] if verdict else 0.0)
        return verdict

    with patch.object(Judge, "decide", heard):
        answer = ask(problem, default_profile(problem.cluster, problem.launcher))
    if not asked:
        return (path.stem, *("–",) * 5, f"not asked ({answer.status})")
    last = asked[-1]
    sizes = (len(last.values), len(last.columns), len(last.limits), len(asked))
    same = "yes" if answer.decided_by == "cp-sat" else "no"
    return (path.stem, *map(str, sizes), f"{sum(cpu_s):.2f}", same)


def drawn(count: int) -> Counter[str]:
    """Hold drawn requests against everything that they mean; return how many had which outcome."""
    found = Counter[str]()
    with kept_child():
        for seed in range(count):
            problem = a_drawn_request(Random(seed))  # noqa: S311 - no secret
            problem = replace(problem, options=replace(problem.options, certify="cp-sat"))
            answer = search(problem, profile_of(problem))
            if not answer.plans or answer.status != "optimal":
                found[answer.status] += 1
                continue
            rows = rows_of(everything(problem, answer))
            able = [most for row in rows if in_time(problem, most := most_of_row(row))]
            least = min((one.score for one in able), default=None)
            own = [one.score for row in rows for one in row if one.config == answer.plans[0].config]
            fits = least is None or not own or min(own) <= least * (1.0 + _ROUNDING)
            decided = answer.decided_by == "cp-sat"
            found["least, by CP-SAT" if fits and decided else f"seed {seed}: {answer.decided_by}"] += 1
    return found


def main() -> None:
    """Print the table, or what became of the draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("problems", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    parser.add_argument("--draws", type=int, default=0, help="drawn requests instead")
    given = parser.parse_args()
    if given.draws:
        began_s = time.process_time()
        print(json.dumps(drawn(given.draws), indent=1), f"{time.process_time() - began_s:.0f} CPU-s")
        return
    lines = [line(path) for path in given.problems or sorted(PROBLEMS.glob("*.json"))]
    table = aligned(HEADINGS, lines)
    print(table)
    if given.write:
        text = DOCUMENT.read_text()
        whole = renewed(text, "decisions", lines) if given.problems else lines
        DOCUMENT.write_text(written(text, aligned(HEADINGS, whole), "decisions"))


if __name__ == "__main__":
    main()
