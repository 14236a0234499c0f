"""Error figures: predicted against measured values of many runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solver.columns import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One run as it is scored; None where it was not measured."""

    cluster: str
    source: str
    rank_group: str | None
    memory_kind: str
    measured_s: float | None
    predicted_s: float
    low_s: float
    high_s: float
    measured_bytes: float | None
    predicted_bytes: float
    out_of_memory: bool | None
    out_of_memory_probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures:
    """Relative errors ``predicted / measured - 1`` in per cent."""

    n: int
    mean_absolute: float
    median_absolute: float
    p90_absolute: float
    max_absolute: float
    bias: float  # median of the signed errors


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemoryFigures:
    """How well running out of memory is foreseen."""

    n: int
    num_out_of_memory: int
    accuracy: float  # share of runs judged right at probability 0.5
    auc: float | None  # chance that a failed run has the higher probability; None without both kinds
    false_feasible: float | None  # share of the failed runs called feasible at 0.5
    false_feasible_at_1_percent: float | None  # the same where feasible means at most 1 %


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingFigures:
    """How well configurations of one model on one machine are ordered, mean over groups."""

    num_groups: int
    spearman: float
    top1_regret: float  # per cent that the predicted best is slower than the true best


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All figures of one set of runs."""

    n: int
    time: ErrorFigures | None
    coverage: float | None  # share of step times inside the 80 % interval
    memory: dict[str, ErrorFigures]  # by what the measured peak counts
    out_of_memory: OutOfMemoryFigures | None
    ranking: RankingFigures | None


def error_figures(predicted: Sequence[float], measured: Sequence[float]) -> ErrorFigures | None:
    """Figures of relative errors; None without runs."""
    if not measured:
        return None
    signed = 100.0 * (np.asarray(predicted) / np.asarray(measured) - 1.0)
    absolute = np.abs(signed)
    return ErrorFigures(
        n=len(signed),
        mean_absolute=float(absolute.mean()),
        median_absolute=float(np.median(absolute)),
        p90_absolute=float(np.percentile(absolute, 90)),
        max_absolute=float(absolute.max()),
        bias=float(np.median(signed)),
    )


def _ranks(values: FloatArray) -> FloatArray:
    """Ranks with ties at their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean: FloatArray = (last - (counts - 1) / 2.0)[inverse]
    return mean


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Rank correlation; None where one side does not vary."""
    x, y = _ranks(np.asarray(a, dtype=np.float64)), _ranks(np.asarray(b, dtype=np.float64))
    if x.std() == 0.0 or y.std() == 0.0:
        return None
    return float(np.corrcoef(x, y)[0, 1])


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float | None:
    """Chance that a positive scores above a negative (ties count half); None without both kinds."""
    positives = sum(labels)
    negatives = len(labels) - positives
    if not positives or not negatives:
        return None
    ranks = _ranks(np.asarray(scores, dtype=np.float64))
    rank_sum = float(ranks[np.asarray(labels, dtype=bool)].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)


def _out_of_memory(runs: Sequence[Scored]) -> OutOfMemoryFigures | None:
    """Figures over the runs that say whether they ran out of memory; None where none did."""
    known = [run for run in runs if run.out_of_memory is not None]
    failed = [run for run in known if run.out_of_memory]
    if not failed:
        return None
    right = sum((run.out_of_memory_probability > 0.5) == run.out_of_memory for run in known)  # noqa: PLR2004
    return OutOfMemoryFigures(
        n=len(known),
        num_out_of_memory=len(failed),
        accuracy=right / len(known),
        auc=auc([r.out_of_memory_probability for r in known], [bool(r.out_of_memory) for r in known]),
        false_feasible=_share_at_most(failed, 0.5),
        false_feasible_at_1_percent=_share_at_most(failed, 0.01),
    )


def _share_at_most(runs: Sequence[Scored], limit: float) -> float:
    """Share of runs whose probability to run out of memory is at most the limit."""
    return sum(run.out_of_memory_probability <= limit for run in runs) / len(runs)


def _ranking(runs: Sequence[Scored]) -> RankingFigures | None:
    """Mean figures over the rank groups with at least three timed runs."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for run in runs:
        if run.rank_group and run.measured_s:
            groups[run.rank_group].append(run)
    correlations, regrets = [], []
    for group in groups.values():
        measured = [run.measured_s or 0.0 for run in group]
        predicted = [run.predicted_s for run in group]
        correlation = spearman(predicted, measured) if len(group) >= 3 else None  # noqa: PLR2004
        if correlation is not None:
            correlations.append(correlation)
            regrets.append(100.0 * (measured[int(np.argmin(predicted))] / min(measured) - 1.0))
    if not correlations:
        return None
    return RankingFigures(
        num_groups=len(correlations),
        spearman=float(np.mean(correlations)),
        top1_regret=float(np.mean(regrets)),
    )


def figures_of(runs: Sequence[Scored]) -> Figures:
    """All figures of a set of runs."""
    timed = [run for run in runs if run.measured_s]
    kinds = sorted({run.memory_kind for run in runs if run.measured_bytes})
    memory = {}
    for kind in kinds:
        mine = [run for run in runs if run.measured_bytes and run.memory_kind == kind]
        figures = error_figures([r.predicted_bytes for r in mine], [r.measured_bytes or 1.0 for r in mine])
        if figures:
            memory[kind] = figures
    covered = [run.low_s <= (run.measured_s or 0.0) <= run.high_s for run in timed]
    return Figures(
        n=len(runs),
        time=error_figures([r.predicted_s for r in timed], [r.measured_s or 1.0 for r in timed]),
        coverage=sum(covered) / len(covered) if covered else None,
        memory=memory,
        out_of_memory=_out_of_memory(runs),
        ranking=_ranking(runs),
    )
