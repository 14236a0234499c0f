"""Compare robust with plain choices on published runs: ``python -m benchmarks.robust [--write]``.

In every group of runs that differ in configuration only (``rank_group``), the plain choice is the run of
the shortest predicted step and the robust one that of the shortest 90 % quantile of the step. A regret is
how much longer the measured step of a choice is than the shortest of the group. The quantile of a choice
is its promise, which is kept where the measured step is no longer. Predictions are the harshest that the
accuracy page knows: cluster, family of models and software stack were left out of every fit; then once
more after each cluster was calibrated on one run, which is not judged in either. ``--write`` puts the
tables into docs/howto/robust-plans.md.
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
from meshwright.solver.accuracy import RunPrediction, validate
from meshwright.solver.answer import Prediction
from meshwright.solver.runs.table import CATALOG_RUNS, read_runs

DOCUMENT = Path(__file__).parents[1] / "docs" / "howto" / "robust-plans.md"
HEADINGS = (
    "predictions", "choice", "mean regret", "9 of 10 groups", "worst", "interval", "promise", "kept",
)  # fmt: skip
OF_CLUSTERS = (
    "cluster", "groups", "choices differ", "robust better", "worse", "regret plain", "regret robust",
)  # fmt: skip
_SAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Choice:
    """The run of a group that one rule chooses."""

    regret: float  # relative
    upper: float  # end of its 80 % interval over its predicted step, less 1
    promised_s: float  # its 90 % quantile
    kept: bool  # the measured step is no longer than that


@dataclass(frozen=True, slots=True)
class Pair:
    """Both choices in one group."""

    cluster: str
    plain: Choice
    robust: Choice
    differ: bool

    @property
    def lost(self) -> float:
        """Return the regret of the robust choice less that of the plain one."""
        return self.robust.regret - self.plain.regret


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

    def choice(at: int) -> Choice:
        step_s, high_s = seen[at].step_time_s, seen[at].step_time_high_s
        regret = float(measured[at] / measured.min() - 1.0)
        return Choice(regret, high_s / step_s - 1.0, high_s, bool(measured[at] <= high_s))

    plain, robust = chosen(lambda one: one.step_time_s), chosen(lambda one: one.step_time_high_s)
    return Pair(rows[0].run.cluster, choice(plain), choice(robust), plain != robust)


def lines(name: str, pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """Return the rows of both choices, means of all groups."""
    of_cluster = by_cluster(pairs)
    ratio = np.exp(fmean(np.log(one.robust.promised_s / one.plain.promised_s) for one in pairs))
    apart = _spread([[one.lost for one in mine] for mine in of_cluster.values()])
    lost = fmean(one.lost for one in pairs)
    return [
        _line(name, "plain", [one.plain for one in pairs], "", "1"),
        _line(
            name, "robust", [one.robust for one in pairs], f" ({lost:+.1%} ± {apart:.1%})", f"{ratio:.3f}"
        ),
    ]


def _line(name: str, how: str, choices: Sequence[Choice], lost: str, promise: str) -> tuple[str, ...]:
    regrets = [one.regret for one in choices]
    return (
        name,
        how,
        f"{fmean(regrets):.1%}{lost}",
        f"{np.percentile(regrets, 90):.1%}",
        f"{max(regrets):.0%}",
        f"+{fmean(one.upper for one in choices):.0%}",
        promise,
        f"{fmean(one.kept for one in choices):.0%}",
    )


def by_cluster(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Return the groups of every cluster."""
    found: dict[str, list[Pair]] = defaultdict(list)
    for one in pairs:
        found[one.cluster].append(one)
    return found


def cluster_lines(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """Return one row for each cluster, those that cost most first."""
    ordered = sorted(by_cluster(pairs).items(), key=lambda item: -sum(one.lost for one in item[1]))
    return [
        (
            cluster,
            str(len(mine)),
            str(sum(one.differ for one in mine)),
            str(sum(one.lost < 0.0 for one in mine)),
            str(sum(one.lost > 0.0 for one in mine)),
            f"{fmean(one.plain.regret for one in mine):.1%}",
            f"{fmean(one.robust.regret for one in mine):.1%}",
        )
        for cluster, mine in ordered
    ]


def _spread(nested: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation of the mean of all values, over samples of whole clusters."""
    drawn = np.random.default_rng(0).integers(0, len(nested), (_SAMPLES, len(nested)))
    totals, counts = np.array([sum(one) for one in nested]), np.array([len(one) for one in nested])
    return float((totals[drawn].sum(axis=1) / counts[drawn].sum(axis=1)).std())


def judged() -> dict[str, str]:
    """Return the tables by the names of their marks."""
    runs = read_runs(CATALOG_RUNS)
    profile_of = profile_of_strangers(Evidence.of_times(runs), Evidence.of_peaks(runs))
    before, after = (validate(runs, calibrate=count, profile_of=profile_of) for count in (0, 1))
    learnt = {row.run.run_id for row in after.runs if row.used_for_calibration}
    before_any, after_one = (
        pairs_of([row for row in report.runs if row.run.run_id not in learnt]) for report in (before, after)
    )
    rows = [*lines("uncalibrated", before_any), *lines("calibrated on one run", after_one)]
    return {
        "robust": aligned(HEADINGS, rows),
        "robust, clusters": aligned(OF_CLUSTERS, cluster_lines(before_any)),
    }


def main() -> None:
    """Print the tables, and write them where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--write", action="store_true", help="put the tables into the document")
    asked = parser.parse_args()
    tables = judged()
    print("\n\n".join(tables.values()))
    if asked.write:
        document = DOCUMENT.read_text(encoding="utf-8")
        for name, table in tables.items():
            document = written(document, table, name)
        DOCUMENT.write_text(document, encoding="utf-8")


if __name__ == "__main__":
    main()
