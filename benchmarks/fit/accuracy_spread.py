"""How sure predictions are, and whether rightly: coverage of intervals, reliability of probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import log
from statistics import NormalDist, fmean, median

from meshwright.solver.accuracy import Scored

CLUSTER_RUNS = 60  # a cluster counts as that many runs at most
_LEVELS = (0.5, 0.8, 0.9, 0.95)
_RISKS = (0.0, 0.01, 0.05, 0.2, 0.5, 0.9, 1.0)


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
    """Runs, mean error, bias and coverage of each group's step times, for every way to predict."""
    return _by_group(title, ways, _cells)


def peaks_by(title: str, ways: Mapping[str, Mapping[str, Sequence[Scored]]]) -> list[str]:
    """The same of peak memory, of the groups that tell it."""
    told = {
        way: {key: runs for key, runs in groups.items() if any(run.measured_bytes for run in runs)}
        for way, groups in ways.items()
    }
    return _by_group(title, told, _peak_cells)


def _by_group(
    title: str,
    ways: Mapping[str, Mapping[str, Sequence[Scored]]],
    cells_of: Callable[[Sequence[Scored]], list[str]],
) -> list[str]:
    """A table with a line for each group and four columns for each way."""
    titles = [title]
    for way in ways:
        titles += [f"{way}: runs", "mean %", "bias %", "in 80 %"]
    lines = _head(titles)
    for key in sorted({key for groups in ways.values() for key in groups}):
        cells = [cell for groups in ways.values() for cell in cells_of(groups.get(key, []))]
        lines.append(_row([key, *cells]))
    return [*lines, ""]


def _cells(runs: Sequence[Scored]) -> list[str]:
    """Runs with a step time, mean error, bias, coverage."""
    timed = [run for run in runs if run.measured_s]
    errors = [100.0 * (run.predicted_s / (run.measured_s or 1.0) - 1.0) for run in timed]
    return _figures(errors, [_inside(run, 0.8) for run in timed])


def peak_errors(runs: Sequence[Scored]) -> tuple[list[float], list[bool]]:
    """Errors in % of the runs with a peak, and whether their 80 % intervals hold it."""
    told = [(run, run.predicted_bytes / run.measured_bytes) for run in runs if run.measured_bytes]
    reach = NormalDist().inv_cdf(0.9)
    inside = [abs(log(ratio)) <= reach * run.log_memory_sigma for run, ratio in told]
    return [100.0 * (ratio - 1.0) for _, ratio in told], inside


def _peak_cells(runs: Sequence[Scored]) -> list[str]:
    """Runs with a peak, mean error, bias, coverage."""
    return _figures(*peak_errors(runs))


def _figures(errors: Sequence[float], inside: Sequence[bool]) -> list[str]:
    """How many, mean and median of errors in %, share inside the interval."""
    if not errors:
        return ["0", "–", "–", "–"]
    return [
        str(len(errors)), f"{fmean(map(abs, errors)):.1f}", f"{median(errors):+.1f}", f"{fmean(inside):.0%}"
    ]  # fmt: skip


def _told(runs: Sequence[Scored]) -> list[Scored]:
    """The runs of sources that tell of failures at all: elsewhere no run could have failed."""
    tells = {run.source for run in runs if run.out_of_memory}
    return [run for run in runs if run.out_of_memory is not None and run.source in tells]


def memory_risks(runs: Sequence[Scored], *, every: bool = False) -> list[tuple[float, float, list[Scored]]]:
    """Runs by the probability to run out of memory that was predicted; those of ``_told``, or every one."""
    bins = []
    for low, high in pairwise(_RISKS):
        last = high == _RISKS[-1]
        mine = [r for r in (runs if every else _told(runs)) if low <= r.out_of_memory_probability and (
            r.out_of_memory_probability < high or last)]  # fmt: skip
        bins.append((low, high, mine))
    return bins


def memory_reliability(ways: Mapping[str, Sequence[Scored]]) -> list[str]:
    """How often runs failed, by the probability that was predicted: where sources tell of it, of all."""
    titles = ("runs", "failures expected", "failures")
    lines = _head(["", "predicted probability", *titles, *(f"all: {title}" for title in titles)])
    for way, runs in ways.items():
        for (low, high, told), (*_, every) in zip(
            memory_risks(runs), memory_risks(runs, every=True), strict=True
        ):
            if every:
                cells = [cell for mine in (told, every) for cell in _failures(mine)]
                lines.append(_row([way, f"{low:.0%} – {high:.0%}", *cells]))
    return [*lines, ""]


def _failures(runs: Sequence[Scored]) -> list[str]:
    """How many runs, how many of them were expected to fail, and how many did."""
    expected = sum(run.out_of_memory_probability for run in runs)
    return [str(len(runs)), f"{expected:.1f}", str(sum(bool(run.out_of_memory) for run in runs))]


def memory_calls(ways: Mapping[str, Sequence[Scored]]) -> list[str]:
    """How often running out of memory is called right, feasible and in vain, at a probability of 50 %."""
    lines = _head(["", "runs", "called right", "of the failures called feasible", "false alarms"])
    for way, runs in ways.items():
        called = [(run.out_of_memory_probability > 0.5, bool(run.out_of_memory)) for run in _told(runs)]  # noqa: PLR2004
        right = sum(alarm == failed for alarm, failed in called)
        missed = sum(failed and not alarm for alarm, failed in called)
        failures = sum(failed for _, failed in called)
        vain = sum(alarm and not failed for alarm, failed in called)
        ran = len(called) - failures
        cells = [f"{right / max(len(called), 1):.1%}", f"{missed} of {failures}", f"{vain} of {ran}"]
        lines.append(_row([way, len(called), *cells]))
    return [*lines, ""]
