"""Error figures of the cost model as people read them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from solver.accuracy import Report
from solver.figures import ErrorFigures, Figures

_TITLES = (
    "runs",
    "time: mean",
    "median",
    "p90",
    "max",
    "bias",
    "in 80 % band",
    "memory: mean",
    "rank corr.",
)


def render_report(report: Report) -> RenderableType:
    """Figures overall, by source and by cluster; then what was refused, and why."""
    predicted = sum(row.prediction is not None for row in report.runs)
    head = f"{len(report.runs)} runs: {predicted} predicted, {report.overall.n} scored; errors in %"
    parts: list[RenderableType] = [Text(head, style="bold"), Text()]
    parts.append(_table({"overall": report.overall}.items(), "all runs"))
    parts += [Text(), _table(report.sources.items(), "source")]
    parts += [Text(), _table(report.clusters.items(), "cluster")]
    parts += [Text(f"  refused {count}: {reason}") for reason, count in report.refused.items()]
    parts += [Text(f"  warning: {warning}") for warning in report.warnings]
    return Group(*parts)


def _table(rows: Iterable[tuple[str, Figures]], title: str) -> Table:
    """One line for each set of runs."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title)
    for name in _TITLES:
        table.add_column(name, justify="right", no_wrap=True)
    for name, figures in rows:
        table.add_row(*(Text(cell) for cell in (name, *_cells(figures))))
    return table


def _cells(figures: Figures) -> list[str]:
    """The cells behind a name, in the order of the titles."""
    memory = [kind.mean_absolute * kind.n for kind in figures.memory.values()]
    measured = sum(kind.n for kind in figures.memory.values())
    return [
        str(figures.n),
        *_errors(figures.time),
        "–" if figures.coverage is None else f"{figures.coverage * 100:.0f} %",
        f"{sum(memory) / measured:.1f}" if measured else "–",
        f"{figures.ranking.spearman:.2f}" if figures.ranking else "–",
    ]


def _errors(errors: ErrorFigures | None) -> list[str]:
    """Mean, median, p90, largest error and bias."""
    if errors is None:
        return ["–"] * 5
    values = (errors.mean_absolute, errors.median_absolute, errors.p90_absolute, errors.max_absolute)
    return [*(f"{value:.1f}" for value in values), f"{errors.bias:+.1f}"]
