"""What calibration does to errors and to the order of configurations, on the rows that it did not see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.fit.accuracy_tables import error_percent, table
from meshwright.solver.accuracy import Report, RunPrediction, spearman

LEAST_CONFIGURATIONS = 5
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

    @property
    def costs(self) -> bool:
        """Whether calibration costs more of the order than it may."""
        if self.correlations is None or self.regrets is None:
            return False
        lost = self.correlations[0] - self.correlations[1]
        return lost > MOST_CORRELATION_LOST or self.regrets[1] - self.regrets[0] > MOST_REGRET_GAINED


def orders_of(before: Report, after: Report) -> list[Order]:
    """The clusters that were calibrated, rows of both reports in one order."""
    kept: dict[str, list[tuple[RunPrediction, RunPrediction]]] = defaultdict(list)
    learnt = {row.run.cluster for row in after.runs if row.used_for_calibration}
    for blind, told in zip(before.runs, after.runs, strict=True):
        if told.run.cluster in learnt and error_percent(told) is not None:
            kept[told.run.cluster].append((blind, told))
    return [_order(cluster, rows) for cluster, rows in kept.items()]


def _order(cluster: str, rows: Sequence[tuple[RunPrediction, RunPrediction]]) -> Order:
    """One cluster."""
    groups: dict[str, list[tuple[RunPrediction, RunPrediction]]] = defaultdict(list)
    for pair in rows:
        if pair[0].run.rank_group:
            groups[pair[0].run.rank_group].append(pair)
    large = [mine for mine in groups.values() if len(mine) >= LEAST_CONFIGURATIONS]
    both = [[_ranked([pair[at] for pair in mine]) for mine in large] for at in (0, 1)]
    told = [[one for one in side if one is not None] for side in both]
    ranked = bool(large) and len(told[0]) == len(told[1]) == len(large)
    errors = [fmean(abs(error_percent(pair[at]) or 0.0) for pair in rows) for at in (0, 1)]
    return Order(
        cluster=cluster,
        runs=len(rows),
        errors=(errors[0], errors[1]),
        groups=len(large) if ranked else 0,
        correlations=(fmean(c for c, _ in told[0]), fmean(c for c, _ in told[1])) if ranked else None,
        regrets=(fmean(r for _, r in told[0]), fmean(r for _, r in told[1])) if ranked else None,
    )


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
