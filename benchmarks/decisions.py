"""CP-SAT on equal nodes: ``python -m benchmarks.decisions [--write] [--draws N --first N] [FILE …]``.

A line for each problem of ``benchmarks/problems``: the rows that bounds leave, their dimensions with their
switches, the limits, how often CP-SAT decided, its CPU seconds without loading OR-Tools, and whether it
chose the plan of the search. ``--draws 500`` holds that many drawn requests with constraints against
everything that each of them means: CP-SAT's choice must be the least of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.search import PROBLEMS, ROOT, aligned, decisions, renewed, written
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from meshwright.solver.search.certify.judge import kept_child
from tests.problems.requests_drawn import a_drawn_request
from tests.property.test_meaning_of_requests import everything, in_time, most_of_row, profile_of, rows_of

DOCUMENT = ROOT / "docs" / "what-decides-what.md"
HEADINGS = ("problem", "rows", "dimensions", "limits", "decisions", "CPU-s", "chosen as the search did")
LEAST = "least of all that is meant, chosen by CP-SAT"
NONE = "no plan, and nothing that is meant is legal and fits"
EXPECTED = (LEAST, NONE)
_PATIENCE_S = 3600.0
_ROUNDING = 1e-7


def line(path: Path) -> tuple[str, ...]:
    """Return one row of the table."""
    problem = parse_problem(read_problem_file(path))
    options = replace(problem.options, certify="cp-sat", time_limit_s=_PATIENCE_S)
    problem = replace(problem, options=options)
    with decisions() as asked:
        answer = ask(problem, default_profile(problem.cluster, problem.launcher))
    if not asked:
        return (path.stem, *("–",) * 5, f"not asked ({answer.status})")
    last, cpu_s = asked[-1][0], sum(cpu_s for _, cpu_s in asked)
    sizes = (len(last.values), len(last.columns), len(last.limits), len(asked))
    same = "yes" if answer.decided_by == "cp-sat" else "no"
    return (path.stem, *map(str, sizes), f"{cpu_s:.2f}", same)


def drawn(first: int, count: int) -> Counter[str]:
    """Hold drawn requests against everything that they mean; return how many had which outcome.

    Those that break something are told at once; ``first`` is the seed to begin with.
    """
    found = Counter[str]()
    with kept_child():
        for seed in range(first, first + count):
            problem = a_drawn_request(Random(seed))  # noqa: S311 - no secret
            problem = replace(problem, options=replace(problem.options, certify="cp-sat"))
            answer = ask(problem, profile_of(problem))
            outcome = outcome_of(problem, answer)
            if outcome not in EXPECTED:
                print(f"seed {seed}: {outcome}", flush=True)
            found[outcome] += 1
    return found


def outcome_of(problem: Problem, answer: Answer) -> str:
    """Hold one answer against everything that its request means."""
    every = everything(problem, answer)
    rows = rows_of(every)
    able = [most for row in rows if in_time(problem, most := most_of_row(row))]
    if answer.status == "infeasible":
        return "not infeasible: something that is meant fits" if able else NONE
    if answer.status != "optimal" or not answer.plans:
        return f"not proved: {answer.status}"
    own = [one.score for one in every if one.config == answer.plans[0].config]
    if not own:
        return "not meant: nothing that the request means is the first plan"
    least = min((one.score for one in able), default=min(own))
    if min(own) > least * (1.0 + _ROUNDING):
        return f"worse: {min(own)!r} s, {least!r} s is possible"
    return LEAST if answer.decided_by == "cp-sat" else f"decided by {answer.decided_by}"


def main() -> None:
    """Print the table, or what became of the draws."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("problems", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    parser.add_argument("--draws", type=int, default=0, help="drawn requests instead")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    given = parser.parse_args()
    if given.draws:
        began_s = time.process_time()
        found = drawn(given.first, given.draws)
        print(json.dumps(found, indent=1), f"{time.process_time() - began_s:.0f} CPU-s")
        sys.exit(any(outcome not in EXPECTED for outcome in found))
    lines = [line(path) for path in given.problems or sorted(PROBLEMS.glob("*.json"))]
    table = aligned(HEADINGS, lines)
    print(table)
    if given.write:
        text = DOCUMENT.read_text()
        whole = renewed(text, "decisions", lines) if given.problems else lines
        DOCUMENT.write_text(written(text, aligned(HEADINGS, whole), "decisions"))


if __name__ == "__main__":
    main()
