"""What to expect of a cluster that no fit has seen, every cluster with one vote.

A cluster with 800 runs and one with three say equally much of the next one: both are one machine with one
release of its software. So errors, coverage and widths are means over clusters of means over their runs.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import exp, hypot, log, sqrt
from pathlib import Path
from statistics import NormalDist, fmean, median

import yaml

from benchmarks.fit.accuracy_order import LEAST_CONFIGURATIONS, orders_of
from benchmarks.fit.accuracy_spread import peak_errors
from benchmarks.fit.accuracy_tables import table
from meshwright.solver.accuracy import Report, Scored
from meshwright.solver.cost.uncertainty import between
from meshwright.solver.runs.table import Run

_DATA = Path(__file__).parent.parent / "data"
FIRST_SIGHT = _DATA / "first_sight"  # a file for each day on which runs were predicted at first sight
FUNCTIONAL_TESTS = _DATA / "functional_tests.yaml"
FEW_EXPERTS = 8  # expert-parallel ranks: more of them cross a node of 8 GPUs
FIRST_RUNS = (1, 2, 4, 8, 16)
LEAST_RUNS_OF_A_STACK = 20
_THREE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One timed run next to what was predicted of it."""

    run: Run
    measured_s: float
    predicted_s: float
    low_s: float  # of the 80 % interval
    high_s: float

    @property
    def error(self) -> float:
        """Absolute relative error in per cent."""
        return 100.0 * abs(self.predicted_s / self.measured_s - 1.0)

    @property
    def log_error(self) -> float:
        """The logarithm of measured over predicted."""
        return log(self.measured_s / self.predicted_s)

    def sigma_without(self, between: float) -> float:
        """Return the spread that the interval has beyond what clusters differ by in common."""
        sigma = log(self.high_s / self.predicted_s) / NormalDist().inv_cdf(0.9)
        return sqrt(max(sigma**2 - between**2, 0.0))

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measured time."""
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def width(self) -> float:
        """Distance of the upper edge from the prediction in per cent."""
        return 100.0 * (self.high_s / self.predicted_s - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Means over clusters, each with one vote; the width is the median over clusters of their medians."""

    clusters: int
    error: float  # per cent
    inside: float  # share of runs inside their 80 % interval
    width: float  # per cent


def has_experts(run: Run) -> bool:
    """Whether a run's model has experts."""
    return run.shape is not None and run.shape.problem.model.moe is not None


@cache
def _functional_tests() -> tuple[frozenset[str], int]:
    """Return the sources that are tests by their own words, and the most layers of a cut model."""
    raw = yaml.safe_load(FUNCTIONAL_TESTS.read_text(encoding="utf-8"))
    return frozenset(raw["sources"]), int(raw["most_layers"])


def is_functional_test(run: Run) -> bool:
    """Whether a run tests software and trains nothing: its source says so, or its model is a cut one."""
    sources, most_layers = _functional_tests()
    shallow = run.shape is not None and run.shape.problem.model.num_layers <= most_layers
    return run.source in sources or shallow


def spreads_experts(run: Run) -> bool:
    """Whether experts are spread over more ranks than a node of eight GPUs has."""
    return bool(run.shape and run.shape.configuration.expert_parallel_size > FEW_EXPERTS)


def first_three(rows: Iterable[Judged]) -> tuple[int, int]:
    """Return how many groups there are, and of how many the first three predicted hold the fastest.

    A group has at least ``LEAST_CONFIGURATIONS`` runs of one job that differ in configuration only, with
    predictions that differ.
    """
    large = _large_groups(rows)
    return len(large), sum(map(_first_three_hold_the_fastest, large))


def _large_groups(rows: Iterable[Judged]) -> list[list[Judged]]:
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for row in rows:
        if row.run.rank_group:
            groups[row.run.cluster, row.run.rank_group].append(row)
    return [
        mine
        for mine in groups.values()
        if len(mine) >= LEAST_CONFIGURATIONS and len({row.predicted_s for row in mine}) > 1
    ]


def _first_three_hold_the_fastest(group: Sequence[Judged]) -> bool:
    three = sorted(group, key=lambda row: row.predicted_s)[:_THREE]
    return min(row.measured_s for row in three) <= min(row.measured_s for row in group)


def _regret(group: Sequence[Judged]) -> float:
    """Return how much slower the predicted best is than the best, in %."""
    chosen = min(group, key=lambda row: row.predicted_s)
    return 100.0 * (chosen.measured_s / min(row.measured_s for row in group) - 1.0)


KINDS: Mapping[str, Callable[[Run], bool]] = {
    "all": lambda _: True,
    "dense": lambda run: not has_experts(run),
    "experts": has_experts,
    "ep > 8": spreads_experts,
    "without functional tests": lambda run: not is_functional_test(run),
}


def judged(report: Report) -> list[Judged]:
    """Return the timed runs of a report that no calibration used."""
    return [
        Judged(
            run=row.run,
            measured_s=row.run.measured.step_time_s,
            predicted_s=row.prediction.step_time_s,
            low_s=row.prediction.step_time_low_s,
            high_s=row.prediction.step_time_high_s,
        )
        for row in report.runs
        if row.prediction is not None and row.run.measured.step_time_s and not row.used_for_calibration
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What was predicted of a run before anyone looked at its measurement."""

    run_id: str
    commit: str  # that predicted; empty: before the series had a command
    step_time_s: tuple[float, float, float] | None  # predicted, and the 80 % interval; None: refused


def freezes(folder: Path = FIRST_SIGHT) -> dict[str, list[Frozen]]:
    """Return the series of first sights by the name of their file, which begins with the date."""
    return {path.stem: _frozen(path) for path in sorted(folder.glob("*.csv"))}


def _frozen(path: Path) -> list[Frozen]:
    with path.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    names = "predicted_step_time_s", "step_time_low_s", "step_time_high_s"
    found = []
    for row in rows:
        told = tuple(float(row[name]) for name in names) if row[names[0]] else None
        seconds = (told[0], told[1], told[2]) if told else None
        found.append(Frozen(run_id=row["run_id"], commit=row.get("commit", ""), step_time_s=seconds))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One file of the series, next to what was measured of its runs by now."""

    name: str
    frozen: Sequence[Frozen]
    judged: Sequence[Judged]


def scored_freezes(runs: Sequence[Run], folder: Path = FIRST_SIGHT) -> list[Sight]:
    """Return the series with the measurements that a table of runs has."""
    known = {run.run_id: run for run in runs}
    return [
        Sight(
            name=name,
            frozen=rows,
            judged=[
                Judged(run=run, measured_s=seconds, predicted_s=told[0], low_s=told[1], high_s=told[2])
                for one in rows
                if (run := known.get(one.run_id))
                and (seconds := run.measured.step_time_s)
                and (told := one.step_time_s)
            ],
        )
        for name, rows in freezes(folder).items()
    ]


def first_sight(runs: Sequence[Run]) -> list[Judged]:
    """Return the runs that were predicted before anything was fitted or written for them.

    The files keep what the version of that day predicted; a later version cannot be asked again, for it
    knows these runs.
    """
    return [row for sight in scored_freezes(runs) for row in sight.judged]


def sight_at_todays_width(runs: Sequence[Run]) -> list[Judged]:
    """Return the runs of first sight as they were predicted then, with the spread of today's intervals.

    The oldest file knew of nothing that clusters differ by in common: that spread adds to its own.
    """
    return [
        row if any(one.commit for one in sight.frozen) else _widened(row)
        for sight in scored_freezes(runs)
        for row in sight.judged
    ]


def _widened(row: Judged) -> Judged:
    if row.run.shape is None:
        return row
    sigma = hypot(row.sigma_without(0.0), between(row.run.shape.problem))
    factor = exp(NormalDist().inv_cdf(0.9) * sigma)
    return replace(row, low_s=row.predicted_s / factor, high_s=row.predicted_s * factor)


def series_table(sights: Sequence[Sight]) -> list[str]:
    """Return a table with a line for each file of the series."""
    titles = ["predicted", "commit", "runs", "refused", "measured by now", "clusters", "mean error %",
              "in 80 %", "median width ± %"]  # fmt: skip
    lines = []
    for sight in sights:
        vote = vote_of(sight.judged)
        figures = [str(vote.clusters), f"{vote.error:.1f}", *_band(vote)] if vote else ["–"] * 4
        refused = sum(one.step_time_s is None for one in sight.frozen)
        commits = "|".join(sorted({one.commit for one in sight.frozen if one.commit})) or "–"
        lines.append([sight.name, commits, len(sight.frozen), refused, len(sight.judged), *figures])
    return table(titles, lines)


def order_by_cluster(rows: Iterable[Judged]) -> list[str]:
    """Return what trusting the predicted order costs on each cluster, and their mean with one vote each.

    *Regret* is how much slower the plan that is predicted best is than the best, in %, a mean over groups.
    """
    told = []
    for cluster, mine in sorted(_by_cluster(rows).items()):
        groups = _large_groups(mine)
        if groups:
            hits = sum(map(_first_three_hold_the_fastest, groups))
            told.append((cluster, len(groups), hits, fmean(map(_regret, groups))))
    lines: list[list[object]] = [
        [cluster, groups, hits, f"{regret:.1f}"] for cluster, groups, hits, regret in told
    ]
    if told:
        share = fmean(hits / groups for _, groups, hits, _ in told)
        lines.append(
            ["**mean of clusters**", len(told), f"{share:.0%}", f"{fmean(row[3] for row in told):.1f}"]
        )
    return table(["cluster", "groups", "the best is among the first three", "regret %"], lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peak memory of one cluster's runs: errors in %."""

    runs: int
    error: float
    bias: float
    inside: float  # share of runs inside their 80 % interval


def _peaks_of(rows: Sequence[Scored]) -> Peaks:
    errors, inside = peak_errors(rows)
    return Peaks(runs=len(errors), error=fmean(map(abs, errors)), bias=median(errors), inside=fmean(inside))


def peaks_by_cluster(rows: Iterable[Scored]) -> dict[str, Peaks]:
    """Return the figures of peak memory of each cluster that tells it."""
    clusters: dict[str, list[Scored]] = defaultdict(list)
    for row in rows:
        if row.measured_bytes:
            clusters[row.cluster].append(row)
    return {cluster: _peaks_of(mine) for cluster, mine in sorted(clusters.items())}


def mean_memory_error(rows: Iterable[Scored]) -> float:
    """Return the error of peak memory in %, every cluster with one vote."""
    return fmean(one.error for one in peaks_by_cluster(rows).values())


def memory_by_cluster(rows: Iterable[Scored]) -> list[str]:
    """Return a table of peak memory with a line for each cluster, and their mean with one vote each."""
    found = peaks_by_cluster(rows)
    lines: list[list[object]] = [
        [cluster, one.runs, f"{one.error:.1f}", f"{one.bias:+.1f}", f"{one.inside:.0%}"]
        for cluster, one in found.items()
    ]
    if found:
        every = found.values()
        error, inside = fmean(one.error for one in every), fmean(one.inside for one in every)
        name, runs = f"**mean of {len(found)} clusters**", sum(one.runs for one in every)
        lines.append([name, runs, f"{error:.1f}", "", f"{inside:.0%}"])
    return table(["cluster", "runs", "mean error %", "bias %", "in 80 %"], lines)


_RISKS, _SHARES = (0.01, 0.02, 0.05, 0.1, 0.2), (0.85, 0.9, 0.95)


def risk_rules(report: Report) -> list[str]:
    """Return what rules of caution let through and hold back: limits of the risk, shares of the card."""
    told = [
        (bool(row.run.measured.out_of_memory), row.prediction.out_of_memory_probability,
         row.prediction.peak_memory_bytes / row.run.shape.problem.memory_limit_bytes)
        for row in report.runs
        if row.prediction is not None and row.run.shape is not None
        and (row.run.measured.step_time_s or row.run.measured.out_of_memory)
    ]  # fmt: skip
    failed, ran = ([one for one in told if one[0] is outcome] for outcome in (True, False))
    rules: dict[str, tuple[int, float]] = {
        **{f"risk at most {limit:.0%}": (1, limit) for limit in _RISKS},
        **{f"peak at most {share:.0%} of the card": (2, share) for share in _SHARES},
    }
    lines = []
    for rule, (at, limit) in rules.items():
        safe, held = sum(one[at] <= limit for one in failed), sum(one[at] > limit for one in ran)
        lines.append(
            [rule, f"{safe} of {len(failed)}", f"{held} of {len(ran)}", f"{held / max(len(ran), 1):.1%}"]
        )
    return table(["rule", "failures called safe", "runs held back", "share of runs"], lines)


def _by_cluster(rows: Iterable[Judged]) -> dict[str, list[Judged]]:
    clusters: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        clusters[row.run.cluster].append(row)
    return clusters


def vote_of(rows: Iterable[Judged], holds: Callable[[Run], bool] = KINDS["all"]) -> Vote | None:
    """Return the figures of some runs, every cluster with one vote; None without runs."""
    clusters = _by_cluster(row for row in rows if holds(row.run))
    if not clusters:
        return None
    every = clusters.values()
    return Vote(
        clusters=len(clusters),
        error=fmean(fmean(row.error for row in mine) for mine in every),
        inside=fmean(fmean(row.inside for row in mine) for mine in every),
        width=median(median(row.width for row in mine) for mine in every),
    )


def both_samples(report: Report, runs: Sequence[Run]) -> tuple[Vote, Vote]:
    """Return the votes of the two samples that the width of an interval is fitted to, with equal weight.

    Runs of a report that shares nothing with them, and runs at first sight: the formulas were written with
    the former in view, so that they speak too well of the next cluster (``spread_between``).

    Raises:
        ValueError: a sample is empty.
    """
    unseen, sight = vote_of(judged(report)), vote_of(sight_at_todays_width(runs))
    if unseen is None or sight is None:
        raise ValueError("there are no runs to state figures of")
    return unseen, sight


def at_level(row: Judged, level: float) -> bool:
    """Return whether a run lies in the central interval of that chance, from its 80 % interval."""
    reach = NormalDist().inv_cdf(0.5 + level / 2.0) / NormalDist().inv_cdf(0.9)
    return abs(log(row.measured_s / row.predicted_s)) <= reach * log(row.high_s / row.predicted_s)


def split_table(ways: Mapping[str, Sequence[Judged]]) -> list[str]:
    """Return a table with a line for each split: errors by kind of run, coverage and width."""
    titles = ["", "clusters", *(f"{kind}: mean error %" for kind in KINDS), "in 80 %", "median width ± %",
              "experts: in 80 %", "experts: median width ± %"]  # fmt: skip
    lines = []
    for way, rows in ways.items():
        votes = {kind: vote_of(rows, holds) for kind, holds in KINDS.items()}
        errors = [f"{vote.error:.1f} ({vote.clusters})" if vote else "–" for vote in votes.values()]
        everything, experts = votes["all"], votes["experts"]
        if everything is not None:
            lines.append([way, everything.clusters, *errors, *_band(everything), *_band(experts)])
    return table(titles, lines)


def _band(vote: Vote | None) -> list[str]:
    """Return coverage and width as cells."""
    return ["–", "–"] if vote is None else [f"{vote.inside:.0%}", f"{vote.width:.0f}"]


def stack_table(rows: Sequence[Judged], stack_of: Callable[[Run], str]) -> list[str]:
    """Return coverage of every software stack with enough runs, its clusters with one vote each."""
    stacks: dict[str, list[Judged]] = defaultdict(list)
    for row in rows:
        stacks[stack_of(row.run)].append(row)
    lines = []
    for stack, mine in sorted(stacks.items()):
        vote = vote_of(mine)
        if vote is not None and len(mine) >= LEAST_RUNS_OF_A_STACK:
            share = fmean(row.inside for row in mine)
            lines.append([stack, len(mine), vote.clusters, f"{vote.error:.1f}", f"{vote.inside:.0%}",
                          f"{share:.0%}", f"{vote.width:.0f}"])  # fmt: skip
    titles = ["stack", "runs", "clusters", "mean error %", "in 80 %: clusters", "in 80 %: runs",
              "median width ± %"]  # fmt: skip
    return table(titles, lines)


def first_runs_table(before: Report, after: Mapping[int, Report]) -> list[str]:
    """Return what the first runs of a cluster are worth, on the rows that no calibration used.

    ``before`` is the report without calibration; ``after`` those by number of runs to calibrate on.
    """
    titles = ["runs", "clusters", "mean error % before", "after",
              "without functional tests: before", "after", "in 80 % before", "after",
              "median width ± % before", "after", "clusters ranked", "rank corr. before", "after",
              "regret % before", "after"]  # fmt: skip
    return table(titles, [_first_runs_line(count, before, report) for count, report in after.items()])


def _first_runs_line(count: int, before: Report, after: Report) -> list[str]:
    """Return one line of ``first_runs_table``."""
    told = learnt_alone(after)
    kept = {row.run.run_id for row in told}
    blind = [row for row in judged(before) if row.run.run_id in kept]
    votes = vote_of(blind), vote_of(told)
    orders = [one for one in orders_of(before, after) if one.correlations and one.regrets]
    cells = [str(count), str(votes[1].clusters if votes[1] else 0)]
    trained = tuple(vote_of(rows, KINDS["without functional tests"]) for rows in (blind, told))
    shown = (("{0.error:.1f}", votes), ("{0.error:.1f}", trained), ("{0.inside:.0%}", votes),
             ("{0.width:.0f}", votes))  # fmt: skip
    cells += [form.format(vote) if vote else "–" for form, pair in shown for vote in pair]
    cells.append(str(len(orders)))
    cells += [f"{fmean((one.correlations or (0.0, 0.0))[at] for one in orders):.3f}" if orders else "–"
              for at in (0, 1)]  # fmt: skip
    cells += [f"{fmean((one.regrets or (0.0, 0.0))[at] for one in orders):.1f}" if orders else "–"
              for at in (0, 1)]  # fmt: skip
    return cells


def learnt_alone(report: Report) -> list[Judged]:
    """Return the rows of clusters that were calibrated."""
    learnt = {row.run.cluster for row in report.runs if row.used_for_calibration}
    return [row for row in judged(report) if row.run.cluster in learnt]
