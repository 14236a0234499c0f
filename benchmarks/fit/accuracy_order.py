"""What calibration does to errors and to the order of configurations, on the rows that it did not see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import log, sqrt
from statistics import fmean, pstdev, stdev

import numpy as np

from benchmarks.fit.accuracy_tables import error_percent, table
from meshwright.solver.accuracy import Report, RunPrediction, spearman
from meshwright.solver.calibration.priors import TIME_PROCESS
from meshwright.solver.runs.table import Run

LEAST_CONFIGURATIONS, LEAST_RANKED = 5, 3
_MOST_COSTLY, _SAMPLES = 8, 2000
_LEAST_COMPOSED, _COMPOSED = 10, 1e-4  # runs, relative: twins among the open runs differ by some 2 %
MOST_CORRELATION_LOST, MOST_REGRET_GAINED = 0.03, 1.0  # by calibration, of a cluster; regret in %


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One cluster before and after."""

    cluster: str
    runs: int
    errors: tuple[float, float]  # mean, %
    groups: int
    correlations: tuple[float, float] | None  # None where no group is large enough
    regrets: tuple[float, float] | None  # %
    changes: tuple[tuple[float, float], ...] = ()  # correlation lost and regret gained (%) by each group
    usual: tuple[float, float] = (0.0, 0.0)  # deviation of these among all groups of all clusters

    @property
    def costs(self) -> bool:
        """Whether calibration costs more of the order than it may and than another sample would move it by.

        One near tie that turns decides the regret of a group, and one pair of runs that were timed in whole
        seconds its correlation: a loss counts beyond the standard error of its mean over groups.
        """
        if not self.changes:
            return False
        limits = MOST_CORRELATION_LOST, MOST_REGRET_GAINED
        return any(
            fmean(mine) - (stdev(mine) if len(mine) > 1 else usual) / sqrt(len(mine)) > limit
            for mine, usual, limit in zip(zip(*self.changes, strict=True), self.usual, limits, strict=True)
        )


def orders_of(before: Report, after: Report) -> list[Order]:
    """The clusters that were calibrated, rows of both reports in one order."""
    kept: dict[str, list[tuple[RunPrediction, RunPrediction]]] = defaultdict(list)
    learnt = {row.run.cluster for row in after.runs if row.used_for_calibration}
    for blind, told in zip(before.runs, after.runs, strict=True):
        if told.run.cluster in learnt and error_percent(told) is not None:
            kept[told.run.cluster].append((blind, told))
    orders = [_order(cluster, rows) for cluster, rows in kept.items()]
    changes = list(chain.from_iterable(one.changes for one in orders))
    if not changes:
        return orders
    lost, gained = (pstdev(one) for one in zip(*changes, strict=True))
    return [replace(one, usual=(lost, gained)) for one in orders]


def _order(cluster: str, rows: Sequence[tuple[RunPrediction, RunPrediction]]) -> Order:
    """One cluster."""
    groups: dict[str, list[tuple[RunPrediction, RunPrediction]]] = defaultdict(list)
    for pair in rows:
        if pair[0].run.rank_group:
            groups[pair[0].run.rank_group].append(pair)
    large = [mine for mine in groups.values() if len(mine) >= LEAST_CONFIGURATIONS and _told_apart(mine)]
    both = [[_ranked([pair[at] for pair in mine]) for mine in large] for at in (0, 1)]
    told = [[one for one in side if one is not None] for side in both]
    ranked = bool(large) and len(told[0]) == len(told[1]) == len(large)
    errors = [fmean(abs(error_percent(pair[at]) or 0.0) for pair in rows) for at in (0, 1)]
    changes = [(b[0] - a[0], a[1] - b[1]) for b, a in zip(*told, strict=True)] if ranked else []
    return Order(
        cluster=cluster,
        runs=len(rows),
        errors=(errors[0], errors[1]),
        groups=len(large) if ranked else 0,
        correlations=(fmean(c for c, _ in told[0]), fmean(c for c, _ in told[1])) if ranked else None,
        regrets=(fmean(r for _, r in told[0]), fmean(r for _, r in told[1])) if ranked else None,
        changes=tuple(changes),
    )


def _told_apart(rows: Sequence[tuple[RunPrediction, RunPrediction]]) -> bool:
    """Whether uncalibrated predictions of a group differ by more than runs of one configuration do."""
    predicted = [log(pair[0].prediction.step_time_s) for pair in rows if pair[0].prediction]
    return max(predicted) - min(predicted) > TIME_PROCESS.noise


def _ranked(rows: Sequence[RunPrediction]) -> tuple[float, float] | None:
    """Correlation and regret of one group; None where all predictions or all times are one."""
    measured = [row.run.measured.step_time_s or 0.0 for row in rows]
    predicted = [row.prediction.step_time_s if row.prediction else 0.0 for row in rows]
    correlation = spearman(predicted, measured)
    if correlation is None:
        return None
    first = min(range(len(rows)), key=predicted.__getitem__)
    return correlation, 100.0 * (measured[first] / min(measured) - 1.0)


def lost(orders: Sequence[Order]) -> list[str]:
    """The clusters whose order calibration costs more than it may, in words."""
    return [
        f"calibration of {one.cluster} takes rank correlation {one.correlations[0]:.3f} to "
        f"{one.correlations[1]:.3f} and regret {one.regrets[0]:.1f} to {one.regrets[1]:.1f} %"
        for one in orders
        if one.costs and one.correlations is not None and one.regrets is not None
    ]


def regret_gained(orders: Sequence[Order], learnt: str) -> list[str]:
    """That calibration makes the mean regret of all clusters worse, in words; nothing where it does not."""
    regrets = [one.regrets for one in orders if one.regrets is not None]
    before, after = (fmean(pair[at] for pair in regrets) if regrets else 0.0 for at in (0, 1))
    if after <= before:
        return []
    return [f"calibration on {learnt} takes the mean regret of clusters {before:.1f} to {after:.1f} %"]


def order_table(orders: Sequence[Order]) -> list[str]:
    """One line a cluster, and their means."""
    titles = ("cluster", "runs", "mean % before", "mean % after", "groups", "rank corr. before", "after",
              "regret % before", "after", "")  # fmt: skip
    rows: list[Sequence[object]] = []
    for one in orders:
        ranks = ["–"] * 4
        if one.correlations is not None and one.regrets is not None:
            ranks = [f"{value:.3f}" for value in one.correlations] + [f"{r:.1f}" for r in one.regrets]
        shown = [f"{error:.1f}" for error in one.errors]
        rows.append((one.cluster, one.runs, *shown, one.groups, *ranks, "costs order" if one.costs else ""))
    ranked = [one for one in orders if one.correlations is not None and one.regrets is not None]
    means = [f"{fmean(one.errors[at] for one in orders):.1f}" for at in (0, 1)] if orders else ["–"] * 2
    orderly = ["–"] * 4
    if ranked:
        orderly = [f"{fmean((one.correlations or (0.0, 0.0))[at] for one in ranked):.3f}" for at in (0, 1)]
        orderly += [f"{fmean((one.regrets or (0.0, 0.0))[at] for one in ranked):.1f}" for at in (0, 1)]
    rows.append(("**mean of clusters**", sum(one.runs for one in orders), *means,
                 sum(one.groups for one in orders), *orderly, ""))  # fmt: skip
    return table(titles, rows)


def regret_tables(before: Report, calibrated: Sequence[Report]) -> list[str]:
    """Regret by cluster before and after, how sure it is, and the groups that cost most.

    Args:
        before: the uncalibrated report.
        calibrated: those on the suggested runs, then on random draws.
    """
    chosen, *drawn = calibrated
    learnt = {row.run.run_id for row in chosen.runs if row.used_for_calibration}
    unseen = [row for row in before.runs if row.run.run_id not in learnt]
    sides = [_by_cluster(unseen), _by_cluster(chosen.runs), *(_by_cluster(one.runs) for one in drawn)]
    rows = []
    for cluster in sides[1]:
        groups = [[regret for *_, regret in side.get(cluster, [])] for side in sides]
        means = [fmean(values) for values in groups[2:] if values]
        spread = f"{fmean(means):.1f} ± {stdev(means):.1f}" if len(means) > 1 else "–"
        shown = [
            f"{fmean(one):.1f} ± {_bootstrapped([[v] for v in one]):.1f}" if one else "–"
            for one in groups[:2]
        ]
        rows.append((cluster, len(groups[1]), *shown, spread))
    nested = [[[r for *_, r in found] for found in side.values()] for side in sides]
    means = [fmean(chain.from_iterable(side)) for side in nested]
    shown = [
        f"{mean:.1f} ± {_bootstrapped(side):.1f}" for mean, side in zip(means[:2], nested[:2], strict=True)
    ]
    counted = sum(map(len, nested[1]))
    rows.append(("**all groups**", counted, *shown, f"{fmean(means[2:]):.1f} ± {stdev(means[2:]):.1f}"))
    even = [fmean(map(fmean, side)) for side in nested]
    cells = [f"{even[0]:.1f}", f"{even[1]:.1f}", f"{fmean(even[2:]):.1f} ± {stdev(even[2:]):.1f}"]
    rows.append(("mean of clusters", counted, *cells))
    every = sorted(chain.from_iterable(sides[1].values()), key=lambda found: -found[-1])[:_MOST_COSTLY]
    without = [
        fmean(r for name, *_, r in chain.from_iterable(side.values()) if name != every[0][0])
        for side in sides
    ]
    cells = [
        *(f"{mean:.1f}" for mean in without[:2]),
        f"{fmean(without[2:]):.1f} ± {stdev(without[2:]):.1f}",
    ]
    rows.append(("all but the costliest group", counted - 1, *cells))
    costly = [
        (name.replace("|", " "), _words(first), _words(best), f"{regret:.0f}", f"{regret / counted:.2f}")
        for name, first, best, regret in every
    ]
    return [
        *table(("cluster", "groups", "before", "suggested", "drawn"), rows),
        *table(("group", "chosen", "best", "regret", "of the mean"), costly),
    ]


def composed(runs: Sequence[Run]) -> list[str]:
    """Clusters whose step times are lines in the number of micro-batches, nearer than any clock tells.

    Of runs that differ in that number alone, each one between two others is held against the line through
    these.
    """
    alike: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for run in runs:
        if run.shape is not None and run.measured.step_time_s:
            one = run.shape.configuration
            rest = replace(one, num_microbatches=1)
            problem = replace(run.shape.problem.workload, global_batch_size=1)
            place = repr((run.shape.problem.model, problem, run.shape.framework, rest))
            alike[run.cluster, place][one.num_microbatches] = run.measured.step_time_s
    off: dict[str, list[float]] = defaultdict(list)
    for (cluster, _), steps in alike.items():
        counts = sorted(steps)
        for low, middle, high in zip(counts, counts[1:], counts[2:], strict=False):
            slope = (steps[high] - steps[low]) / (high - low)
            off[cluster].append(abs(steps[low] + slope * (middle - low) - steps[middle]) / steps[middle])
    return [
        f"* {cluster}: {len(mine)} runs between two others that differ in their number of micro-batches "
        f"alone lie within {1e6 * max(mine):.0f} millionths on the line through these. Such steps are "
        "composed of one profiled micro-batch, whose noise decides the order of all of them."
        for cluster, mine in sorted(off.items())
        if len(mine) >= _LEAST_COMPOSED and max(mine) < _COMPOSED
    ]


def _by_cluster(
    rows: Sequence[RunPrediction],
) -> dict[str, list[tuple[str, RunPrediction, RunPrediction, float]]]:
    """Every group's name, the run predicted best, the fastest and the regret (%), by cluster."""
    groups: dict[str, list[RunPrediction]] = defaultdict(list)
    for row in rows:
        if row.run.rank_group and error_percent(row) is not None and not row.used_for_calibration:
            groups[row.run.rank_group].append(row)
    found: dict[str, list[tuple[str, RunPrediction, RunPrediction, float]]] = defaultdict(list)
    for name, mine in groups.items():
        ranked = _ranked(mine) if len(mine) >= LEAST_RANKED else None
        if ranked is not None:
            first = min(mine, key=lambda row: row.prediction.step_time_s if row.prediction else 0.0)
            best = min(mine, key=lambda row: row.run.measured.step_time_s or 0.0)
            found[mine[0].run.cluster].append((name, first, best, ranked[1]))
    return dict(sorted(found.items()))


def _bootstrapped(nested: Sequence[Sequence[float]]) -> float:
    """Standard deviation of the mean of all values over samples of their sets."""
    drawn = np.random.default_rng(0).integers(0, len(nested), (_SAMPLES, len(nested)))
    totals, counts = np.array([sum(one) for one in nested]), np.array([len(one) for one in nested])
    return float((totals[drawn].sum(axis=1) / counts[drawn].sum(axis=1)).std())


def _words(row: RunPrediction) -> str:
    """A run's layout with its measured and predicted step."""
    if row.run.shape is None or row.prediction is None:
        return row.run.run_id
    one = row.run.shape.configuration
    sizes = f"{one.tensor_parallel_size} · {one.pipeline_parallel_size} · {one.data_parallel_size}"
    times = f"{row.run.measured.step_time_s:.3g} s, predicted {row.prediction.step_time_s:.3g}"
    return f"{row.run.run_id}: {sizes} of {one.micro_batch_size}, {times}"
