"""How sure predictions are, and whether rightly: coverage of intervals, reliability of probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log
from statistics import NormalDist, fmean, median

from meshwright.solver.accuracy import Scored

CLUSTER_RUNS = 60  # a cluster counts as that many runs at most
_LEVELS = (0.5, 0.8, 0.9, 0.95)
_RISKS = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)


def _row(cells: Sequence[object]) -> str:
    """One line of a table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _head(titles: Sequence[str]) -> list[str]:
    """The two lines that open a table."""
    return [_row(titles), "|" + "---|" * len(titles)]


def _inside(run: Scored, level: float) -> bool:
    """Whether a step time lies in the central interval of that chance, from its 80 % interval."""
    sigma = log(run.high_s / run.low_s) / 2.0 / NormalDist().inv_cdf(0.9)
    reach = NormalDist().inv_cdf(0.5 + level / 2.0) * sigma
    return abs(log((run.measured_s or 1.0) / run.predicted_s)) <= reach


def coverage(runs: Sequence[Scored], level: float = 0.8) -> float:
    """Share of timed runs inside their interval of that chance, a cluster counting as 60 runs at most."""
    timed = [run for run in runs if run.measured_s]
    counts = Counter(run.cluster for run in timed)
    weights = [min(1.0, CLUSTER_RUNS / counts[run.cluster]) for run in timed]
    inside = [w for run, w in zip(timed, weights, strict=True) if _inside(run, level)]
    return sum(inside) / sum(weights)


def interval_reliability(ways: Mapping[str, Sequence[Scored]]) -> list[str]:
    """Share of runs inside intervals of several chances: every run alike, and clusters capped."""
    lines = _head(["", *(f"{level:.0%}" for level in _LEVELS)])
    for way, runs in ways.items():
        timed = [run for run in runs if run.measured_s]
        plain = [fmean(_inside(run, level) for run in timed) for level in _LEVELS]
        lines.append(_row([f"{way}: runs", *(f"{share:.0%}" for share in plain)]))
        capped = [coverage(runs, level) for level in _LEVELS]
        lines.append(
            _row(
                [f"{way}: a cluster as {CLUSTER_RUNS} runs at most", *(f"{share:.0%}" for share in capped)]
            )
        )
    return [*lines, ""]


def errors_by(title: str, ways: Mapping[str, Mapping[str, Sequence[Scored]]]) -> list[str]:
    """Runs, mean error, bias and coverage of each group of runs, for every way to predict."""
    titles = [title]
    for way in ways:
        titles += [f"{way}: runs", "mean %", "bias %", "in 80 %"]
    lines = _head(titles)
    for key in sorted({key for groups in ways.values() for key in groups}):
        cells = [cell for groups in ways.values() for cell in _cells(groups.get(key, []))]
        lines.append(_row([key, *cells]))
    return [*lines, ""]


def _cells(runs: Sequence[Scored]) -> list[str]:
    """Runs with a step time, mean error, bias, coverage."""
    timed = [run for run in runs if run.measured_s]
    if not timed:
        return ["0", "–", "–", "–"]
    errors = [100.0 * (run.predicted_s / (run.measured_s or 1.0) - 1.0) for run in timed]
    inside = fmean(_inside(run, 0.8) for run in timed)
    return [str(len(timed)), f"{fmean(map(abs, errors)):.1f}", f"{median(errors):+.1f}", f"{inside:.0%}"]


def memory_risks(runs: Sequence[Scored]) -> list[tuple[float, float, list[Scored]]]:
    """Runs by the probability to run out of memory that was predicted.

    Only of sources that tell of failures at all: elsewhere no run could have failed.
    """
    tells = {run.source for run in runs if run.out_of_memory}
    known = [run for run in runs if run.out_of_memory is not None and run.source in tells]
    bins = []
    for low, high in pairwise(_RISKS):
        last = high == _RISKS[-1]
        mine = [r for r in known if low <= r.out_of_memory_probability and (
            r.out_of_memory_probability < high or last)]  # fmt: skip
        bins.append((low, high, mine))
    return bins


def memory_reliability(ways: Mapping[str, Sequence[Scored]]) -> list[str]:
    """How often runs failed, by the probability that was predicted."""
    lines = _head(["", "predicted probability", "runs", "failures expected", "failures"])
    for way, runs in ways.items():
        for low, high, mine in memory_risks(runs):
            if mine:
                expected = sum(run.out_of_memory_probability for run in mine)
                failed = sum(bool(run.out_of_memory) for run in mine)
                lines.append(_row([way, f"{low:.0%} – {high:.0%}", len(mine), f"{expected:.1f}", failed]))
    return [*lines, ""]


def memory_calls(ways: Mapping[str, Sequence[Scored]]) -> list[str]:
    """How often running out of memory is called right, feasible and in vain, at a probability of 50 %."""
    lines = _head(["", "runs", "called right", "of the failures called feasible", "false alarms"])
    for way, runs in ways.items():
        known = [run for _, _, mine in memory_risks(runs) for run in mine]
        called = [(run.out_of_memory_probability > 0.5, bool(run.out_of_memory)) for run in known]  # noqa: PLR2004
        right = sum(alarm == failed for alarm, failed in called)
        missed = sum(failed and not alarm for alarm, failed in called)
        failures = sum(failed for _, failed in called)
        vain = sum(alarm and not failed for alarm, failed in called)
        ran = len(called) - failures
        cells = [f"{right / max(len(called), 1):.1%}", f"{missed} of {failures}", f"{vain} of {ran}"]
        lines.append(_row([way, len(called), *cells]))
    return [*lines, ""]
