"""The tables of the accuracy page, as Markdown lines."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

from meshwright.solver.accuracy import Figures, Report, RunPrediction, Scored
from meshwright.solver.runs.table import Run

_WORST = 20
_WORST_OF_A_CLUSTER = 3
_TINY_HIDDEN = 1024
_TWOFOLD = 0.4


def _row(cells: Sequence[object]) -> str:
    """One line of a table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _head(titles: Sequence[str]) -> list[str]:
    """The two lines that open a table."""
    return [_row(titles), "|" + "---|" * len(titles)]


def table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A whole table."""
    return [*_head(titles), *map(_row, rows), ""]


def time_cells(figures: Figures | None) -> list[str]:
    """Mean, median, p90, max, bias and coverage of step times."""
    if figures is None or figures.time is None:
        return ["–"] * 6
    t, inside = figures.time, figures.coverage
    values = (t.mean_absolute, t.median_absolute, t.p90_absolute, t.max_absolute)
    shown = "–" if inside is None else f"{inside:.0%}"
    return [*(f"{value:.1f}" for value in values), f"{t.bias:+.1f}", shown]


def _memory_cell(figures: Figures | None) -> str:
    """Mean memory error by kind."""
    memory = figures.memory if figures else {}
    return ", ".join(f"{kind} {m.mean_absolute:.1f} ({m.n})" for kind, m in memory.items()) or "–"


def _ranking_cell(figures: Figures) -> str:
    """Rank correlation and what trusting the ranking costs."""
    ranking = figures.ranking
    return f"{ranking.spearman:.2f} / {ranking.top1_regret:.1f}" if ranking else "–"


def overall(reports: Mapping[str, Report]) -> list[str]:
    """One line for each way to predict."""
    titles = (
        "", "runs", "mean", "median", "p90", "max", "bias", "in 80 %", "rank corr. / regret %",
        "mean of clusters", "median of clusters",
    )  # fmt: skip
    lines = ["## Overall", "", *_head(titles)]
    for name, report in reports.items():
        f = report.overall
        timed = f.time.n if f.time else 0
        means = [c.time.mean_absolute for c in report.clusters.values() if c.time]
        of_clusters = (f"{fmean(means):.1f}", f"{median(means):.1f}") if means else ("–", "–")
        lines.append(_row([name, timed, *time_cells(f), _ranking_cell(f), *of_clusters]))
    return [*lines, ""]


def pair_means(
    reports: Mapping[str, Report],
    kinds: Mapping[str, Callable[[Run], bool]],
    key_of: Callable[[Run], str],
    *,
    least: int,
) -> list[str]:
    """Mean errors of several kinds of runs: over groups of at least ``least``, and over runs."""
    lines = _head(["", *(f"{kind}: pairs" for kind in kinds), *(f"{kind}: runs" for kind in kinds),
                   "rank corr. / regret %"])  # fmt: skip
    for name, report in reports.items():
        means, alone = [], []
        for holds in kinds.values():
            errors: dict[str, list[float]] = defaultdict(list)
            for row in report.runs:
                error = error_percent(row) if holds(row.run) else None
                if error is not None:
                    errors[key_of(row.run)].append(abs(error))
            of_groups = [fmean(mine) for mine in errors.values() if len(mine) >= least]
            every = [error for mine in errors.values() for error in mine]
            means.append(f"{fmean(of_groups):.1f} ({len(of_groups)})" if of_groups else "–")
            alone.append(f"{fmean(every):.1f}" if every else "–")
        lines.append(_row([name, *means, *alone, _ranking_cell(report.overall)]))
    return [*lines, ""]


def by_group(
    title: str, before: Mapping[str, Figures], blind: Mapping[str, Figures], after: Mapping[str, Figures]
) -> list[str]:
    """Errors of every cluster or source: fitted, left out, and left out but calibrated."""
    titles = (
        title, "runs", "fitted: mean", "**left out: mean**", "median", "p90", "max", "bias", "in 80 %",
        "**calibrated: mean**", "median", "p90", "max", "bias", "in 80 %",
        "memory", "memory calibrated", "rank corr. / regret %",
    )  # fmt: skip
    lines = [f"## By {title}", "", *_head(titles)]
    for name, fitted in before.items():
        mine, learnt = blind[name], after.get(name)
        cells = [name, fitted.n, time_cells(fitted)[0], *time_cells(mine), *time_cells(learnt)]
        cells += [_memory_cell(mine), _memory_cell(learnt), _ranking_cell(mine)]
        lines.append(_row(cells))
    return [*lines, ""]


def curves(values: Mapping[str, Mapping[str, Sequence[float | None]]], counts: Sequence[int]) -> list[str]:
    """Mean error after so many runs, by cluster and way to choose them."""
    lines = _head(("cluster", "chosen", *(str(count) for count in counts)))
    for cluster, ways in values.items():
        for way, errors in ways.items():
            shown = ["–" if error is None else f"{error:.1f}" for error in errors]
            lines.append(_row([cluster, way, *shown]))
    return [*lines, ""]


def scored(report: Report) -> list[Scored]:
    """The scored rows of a report."""
    return [s for s in (row.scored() for row in report.runs) if s is not None]


def grouped(report: Report, key_of: Callable[[Run], str]) -> dict[str, list[Scored]]:
    """The scored rows of a report by what their runs have in common."""
    groups: dict[str, list[Scored]] = defaultdict(list)
    for row in report.runs:
        one = row.scored()
        if one is not None:
            groups[key_of(row.run)].append(one)
    return groups


def error_percent(row: RunPrediction) -> float | None:
    """Signed error of a scored step time."""
    if row.prediction is None or row.used_for_calibration or not row.run.measured.step_time_s:
        return None
    return 100.0 * (row.prediction.step_time_s / row.run.measured.step_time_s - 1.0)


def _why(row: RunPrediction) -> str:
    """What the row's facts say about its error; the largest cause where they say nothing."""
    shape, prediction = row.run.shape, row.prediction
    if shape is None or prediction is None:
        return ""
    model, config, cluster = shape.problem.model, shape.configuration, shape.problem.cluster
    error = error_percent(row) or 0.0
    if model.hidden_size <= _TINY_HIDDEN:
        return "tiny model: bound by the CPU, in ways that one launch floor a layer does not catch"
    if row.run.cluster.startswith("ultrascale") and cluster.num_nodes > 1:
        kind = "messages between stages" if config.pipeline_parallel_size > 1 else "collectives"
        return f"the CPU waits for {kind} across nodes; repeats of this cluster differ by up to 24 %"
    causes = {n: s for n, s in prediction.time_breakdown_s.items() if n != "rest"}
    cause = max(causes, key=lambda name: causes[name])
    share = causes[cause] / prediction.step_time_s
    if abs(error) > 100.0 * _TWOFOLD and model.moe is not None:
        return f"experts ({cause} {share:.0%} of the predicted step)"
    return f"noise or a fact that is not stated ({cause} {share:.0%} of the predicted step)"


def worst(report: Report) -> list[str]:
    """The rows with the largest errors, at most three of a cluster, each with what speaks for it."""
    rows = [(abs(e), e, row) for row in report.runs if (e := error_percent(row)) is not None]
    lines = _head(("run", "cluster", "model", "GPUs", "tp · pp · dp", "measured s", "%", "why"))
    taken: Counter[str] = Counter()
    for _, error, row in sorted(rows, key=lambda item: -item[0]):
        shape = row.run.shape
        if shape is None or taken[row.run.cluster] >= _WORST_OF_A_CLUSTER:
            continue
        taken[row.run.cluster] += 1
        c = shape.configuration
        layout = f"{c.tensor_parallel_size} · {c.pipeline_parallel_size} · {c.data_parallel_size}"
        name = shape.problem.model.name
        cells = (row.run.run_id, row.run.cluster, name, c.num_gpus, layout)
        lines.append(_row([*cells, f"{row.run.measured.step_time_s:.3f}", f"{error:+.0f}", _why(row)]))
        if sum(taken.values()) >= _WORST:
            break
    return [*lines, ""]


def row_by_row(report: Report, source: str) -> list[str]:
    """Every scored run of one source with its layout, measured and predicted."""
    titles = ["run", "model", "GPUs", "tp · pp · vpp · dp", "micro-batch", "recompute"]
    lines = _head([*titles, "measured s", "predicted s", "%"])
    for row in report.runs:
        shape, error = row.run.shape, error_percent(row)
        if row.run.source != source or shape is None or row.prediction is None or error is None:
            continue
        c = shape.configuration
        axes = (c.tensor_parallel_size, c.pipeline_parallel_size, c.virtual_pipeline_size)
        layout = " · ".join(str(size) for size in (*axes, c.data_parallel_size))
        what = [row.run.run_id, shape.problem.model.name, c.num_gpus, layout]
        seconds = [f"{row.run.measured.step_time_s:.3f}", f"{row.prediction.step_time_s:.3f}"]
        lines.append(_row([*what, c.micro_batch_size, c.recompute_granularity, *seconds, f"{error:+.1f}"]))
    return [*lines, ""]
