"""Robust against plain choices on published runs: ``python -m benchmarks.robust [--write]``.

In every group of runs that differ in configuration only (``rank_group``), the plain choice is the run with
the shortest predicted step and the robust one that with the shortest 90 % quantile of the step. A regret is
how much longer the measured step of a choice is than the shortest of the group. Predictions are the
harshest that the accuracy page knows: cluster, family of models and software stack were left out of every
fit; then once more after each cluster was calibrated on one run, which is not judged in either. ``--write``
puts the table into docs/howto/robust-plans.md.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.accuracy import profile_of_strangers
from benchmarks.fit.accuracy_order import LEAST_RANKED
from benchmarks.fit.evidence import Evidence
from benchmarks.search import aligned, written
from meshwright.solver.accuracy import Report, RunPrediction, validate
from meshwright.solver.answer import Prediction
from meshwright.solver.runs.table import CATALOG_RUNS, read_runs

DOCUMENT = Path(__file__).parents[1] / "docs" / "howto" / "robust-plans.md"
HEADINGS = (
    "predictions", "groups", "choices differ", "robust better", "worse", "regret plain", "regret robust",
    "robust less plain, mean of groups", "mean of clusters",
)  # fmt: skip
_SAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Pair:
    """Regrets of both choices in one group, relative."""

    cluster: str
    plain: float
    robust: float
    differ: bool


def pairs_of(rows: Sequence[RunPrediction]) -> list[Pair]:
    """Return both choices of every group with enough runs."""
    groups: dict[str, list[RunPrediction]] = defaultdict(list)
    for row in rows:
        if row.run.rank_group and row.prediction is not None and row.run.measured.step_time_s:
            groups[row.run.rank_group].append(row)
    large = [mine for mine in groups.values() if len(mine) >= LEAST_RANKED]
    return [_pair(mine) for mine in large]


def _pair(rows: Sequence[RunPrediction]) -> Pair:
    measured = np.array([row.run.measured.step_time_s for row in rows], dtype=np.float64)
    seen = [row.prediction for row in rows if row.prediction is not None]

    def chosen(key: Callable[[Prediction], float]) -> int:
        return min(range(len(seen)), key=lambda at: key(seen[at]))

    plain, robust = chosen(lambda one: one.step_time_s), chosen(lambda one: one.step_time_high_s)
    regrets = measured / measured.min() - 1.0
    return Pair(rows[0].run.cluster, float(regrets[plain]), float(regrets[robust]), plain != robust)


def line(name: str, pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return one row of the table."""
    gained: dict[str, list[float]] = defaultdict(list)
    for one in pairs:
        gained[one.cluster].append(one.robust - one.plain)
    every = [value for mine in gained.values() for value in mine]
    return (
        name,
        str(len(pairs)),
        str(sum(one.differ for one in pairs)),
        str(sum(one.robust < one.plain for one in pairs)),
        str(sum(one.robust > one.plain for one in pairs)),
        f"{fmean(one.plain for one in pairs):.2%}",
        f"{fmean(one.robust for one in pairs):.2%}",
        f"{fmean(every):+.2%} ± {_spread(list(gained.values())):.2%}",
        f"{fmean(map(fmean, gained.values())):+.2%}",
    )


def _spread(nested: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of the mean of all values, over samples of whole clusters."""
    drawn = np.random.default_rng(0).integers(0, len(nested), (_SAMPLES, len(nested)))
    totals, counts = np.array([sum(one) for one in nested]), np.array([len(one) for one in nested])
    return float((totals[drawn].sum(axis=1) / counts[drawn].sum(axis=1)).std())


def judged() -> list[tuple[str, ...]]:
    """Return the rows of the table."""
    runs = read_runs(CATALOG_RUNS)
    profile_of = profile_of_strangers(Evidence.of_times(runs), Evidence.of_peaks(runs))
    before, after = (validate(runs, calibrate=count, profile_of=profile_of) for count in (0, 1))
    learnt = {row.run.run_id for row in after.runs if row.used_for_calibration}

    def unseen(report: Report) -> list[RunPrediction]:
        return [row for row in report.runs if row.run.run_id not in learnt]

    return [
        line("uncalibrated", pairs_of(unseen(before))),
        line("calibrated on one run", pairs_of(unseen(after))),
    ]


def main() -> None:
    """Print the table, and write it where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="put the table into the document")
    asked = parser.parse_args()
    table = aligned(HEADINGS, judged())
    print(table)
    if asked.write:
        document = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(written(document, table, "robust"), encoding="utf-8")


if __name__ == "__main__":
    main()
