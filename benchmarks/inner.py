"""The inner problem by the exact program and by CP-SAT: ``python -m benchmarks.inner [--write]``.

For one row of each kind, taken from two problems of ``benchmarks/problems``: which layers go to which rank
and chunk. Both minimise the closed form; ``same`` says that they agree to the microsecond that CP-SAT
counts in. Times are the best of three runs, CP-SAT's without loading OR-Tools.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.search import DOCUMENT, PROBLEMS, aligned, written
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.problem import Problem
from meshwright.solver.search.certify.request import Request
from meshwright.solver.search.certify.row_request import row_request
from meshwright.solver.search.certify.split_model import CpSatResult, judge
from meshwright.solver.search.frontier import Frontier
from meshwright.solver.search.priced_space import Priced, priced_rows
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import best_splits
from meshwright.solver.space.enumerate import enumerate_space

HEADINGS = ("row", "layers", "ranks x chunks", "exact program", "CP-SAT", "CP-SAT's verdict", "same")
ROWS = (
    ("layers of one kind", "gpt-3-175b-1024-a100", 8, 1),
    ("layers of one kind, two chunks", "gpt-3-175b-1024-a100", 16, 2),
    ("layers of one kind, nine chunks", "gpt-3-175b-1024-a100", 8, 9),
    ("dense and MoE layers", "deepseek-v3-2048-h100", 8, 1),
    ("dense and MoE layers", "deepseek-v3-2048-h100", 16, 1),
    ("dense and MoE layers, two chunks", "deepseek-v3-2048-h100", 8, 2),
    ("dense and MoE layers, three chunks", "deepseek-v3-2048-h100", 8, 3),
)
BY_STAGE = (  # under launcher none, one chunk a rank
    ("recomputed layers by stage", "gpt-3-175b-1024-a100", 8),
    ("dense and MoE layers, recomputed by stage", "deepseek-v3-2048-h100", 16),
)
_ROUNDING_S = 2e-6
_LIMIT_S = 60.0


def problem_of(name: str) -> Problem:
    """A problem of ``benchmarks/problems``."""
    return parse_problem(read_problem_file(PROBLEMS / f"{name}.json"))


def by_stage(name: str, pp: int) -> Rows:
    """The row of a pipeline whose stages recompute as many layers as each has to."""
    problem = problem_of(name)
    pins: dict[str, int | str] = {
        "pipeline_parallel_size": pp, "virtual_pipeline_size": 1, "recompute_granularity": "full",
        "micro_batch_size": 1,
    }  # fmt: skip
    rows = priced(replace(problem, launcher="none", options=replace(problem.options, pin=pins)))
    return row_of(rows.take(np.flatnonzero(rows.per_stage)), pp, 1)


def priced(problem: Problem) -> Rows:
    """All legal rows of a problem."""
    space = enumerate_space(problem)
    profile = default_profile(problem.cluster, problem.launcher)
    return priced_rows(problem, profile, space.columns.take(space.legal))


def row_of(rows: Rows, pp: int, vpp: int) -> Rows:
    """The row of that shape with the least bound that has a split.

    Raises:
        ValueError: no row of that shape has one.
    """
    columns = rows.columns
    index = (columns.pipeline_parallel_size == pp) & (columns.virtual_pipeline_size == vpp)
    group = rows.take(np.flatnonzero(index))
    for row in np.argsort(Frontier.of(Priced.of(group), 1).bound_s, kind="stable").tolist():
        if best_splits(group.take([row]))[0] is not None:
            return group.take([row])
    raise ValueError(f"no row of {pp} x {vpp} fits")


def best_of_three_s(run: Callable[[], object]) -> float:
    """Least wall time of three runs."""
    times = []
    for _ in range(3):
        began_s = time.perf_counter()
        run()
        times.append(time.perf_counter() - began_s)
    return min(times)


def line(label: str, row: Rows) -> tuple[str, ...]:
    """One row of the table."""
    (split,) = best_splits(row)
    exact_s = float(objective_s(row.prices, row.columns, row.stages([split or ()]))[0])
    request = Request(
        num_layers=row.layout.num_layers,
        cumulative=row.layout.cumulative.T.tolist(),
        rows=[row_request(row, 0)],
        hint_row=0,
        hint_split=split or (),
        seed=0,
        time_limit_s=_LIMIT_S,
        deterministic_limit=_LIMIT_S,
    )
    verdicts: list[CpSatResult] = []
    judged = best_of_three_s(lambda: verdicts.append(judge(request)))
    found_s = (verdicts[0].objective_us or 0) * 1e-6
    return (
        label,
        str(row.layout.num_layers),
        f"{row.p[0]} x {row.v[0]}",
        f"{1e3 * best_of_three_s(lambda: best_splits(row)):.1f} ms",
        f"{1e3 * judged:.0f} ms",
        verdicts[0].status.lower(),
        "yes" if abs(found_s - exact_s) <= _ROUNDING_S + 1e-9 * exact_s else "no",
    )


def main() -> None:
    """Print the table, and write it where it is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    asked = parser.parse_args()
    spaces = {name: priced(problem_of(name)) for name in dict.fromkeys(name for _, name, _, _ in ROWS)}
    lines = [line(label, row_of(spaces[name], pp, v)) for label, name, pp, v in ROWS]
    lines += [line(label, by_stage(name, pp)) for label, name, pp in BY_STAGE]
    table = aligned(HEADINGS, lines)
    print(table)
    if asked.write:
        document = Path(DOCUMENT).read_text(encoding="utf-8")
        DOCUMENT.write_text(written(document, table, "inner"), encoding="utf-8")


if __name__ == "__main__":
    main()
