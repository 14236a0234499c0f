"""Error figures of the cost model as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.profiles.expected_errors import expected_errors
from meshwright.service.report.formatting import plain_table
from meshwright.solver.accuracy import Figures, Report

_TITLES = (
    "timed\nruns",
    "time:\nmean",
    "\nmedian",
    "\np90",
    "\nmax",
    "\nbias",
    "in 80 %\nband",
    "memory:\nmean",
    "rank\ncorr.",
)


def render_report(report: Report) -> RenderableType:
    """Return figures overall, by source and by cluster; then what was refused, and why."""
    return Group(
        Text(expected_of_strangers()),
        Text(_head(report), style="bold"),
        *(Text(vote) for vote in _votes(report)),
        Text(),
        _table({"overall": report.overall}.items(), "all runs"),
        *_parts(report.sources, "source"),
        *_parts(report.clusters, "cluster"),
        *(Text(f"  refused {count}: {reason}") for reason, count in report.refused.items()),
        *(Text(f"  warning: {warning}") for warning in report.warnings),
    )


def expected_of_strangers() -> str:
    """Return the expected error on a cluster that shares nothing with the catalog's runs, in a sentence."""
    known = expected_errors()
    error = known.nothing_shared
    return (
        f"to expect where cluster, model family and release are new: {error['all']:.1f} % mean error "
        f"(dense {error['dense']:.1f}, experts {error['experts']:.1f}); {known.inside:.0f} % inside "
        f"80 % bands of ± {known.width:.0f} % (docs/accuracy.md)"
    )


def _votes(report: Report) -> list[str]:
    """Return means over clusters, each with one vote; nothing where the runs are of one cluster."""
    timed = [figures for figures in report.clusters.values() if figures.time is not None]
    if len(timed) < 2:  # noqa: PLR2004
        return []
    error = fmean(figures.time.mean_absolute for figures in timed if figures.time)
    inside = 100.0 * fmean(figures.coverage or 0.0 for figures in timed)
    return [f"{len(timed)} clusters with one vote each: mean {error:.1f} %, in 80 % band {inside:.0f} %"]


def _head(report: Report) -> str:
    predicted = sum(row.prediction is not None for row in report.runs)
    learnt = sum(row.used_for_calibration for row in report.runs)
    used = f", {learnt} used for calibration" if learnt else ""
    seen = f"{_timed(report.overall)} by their step time, {_weighed(report.overall)} by their memory"
    return f"{len(report.runs)} runs: {predicted} predicted{used}; scored {seen}; errors in %"


def _timed(figures: Figures) -> int:
    return figures.time.n if figures.time else 0


def _weighed(figures: Figures) -> int:
    return sum(kind.n for kind in figures.memory.values())


def _parts(parts: Mapping[str, Figures], title: str) -> list[RenderableType]:
    """Return a table of the parts of the runs; none where no run states its part."""
    return [Text(), _table(parts.items(), title)] if parts.keys() != {"unknown"} else []


def _table(rows: Iterable[tuple[str, Figures]], title: str) -> Table:
    cells = ((name, *_cells(figures)) for name, figures in rows)
    return plain_table([f"\n{title}", *_TITLES], cells, left=(f"\n{title}",))


def _cells(figures: Figures) -> list[str]:
    memory = [kind.mean_absolute * kind.n for kind in figures.memory.values()]
    measured, time = _weighed(figures), figures.time
    values = (
        (time.mean_absolute, time.median_absolute, time.p90_absolute, time.max_absolute) if time else ()
    )
    return [
        str(_timed(figures)),
        *([*(f"{value:.1f}" for value in values), f"{time.bias:+.1f}"] if time else ["–"] * 5),
        "–" if figures.coverage is None else f"{figures.coverage * 100:.0f} %",
        f"{sum(memory) / measured:.1f}" if measured else "–",
        f"{figures.ranking.spearman:.2f}" if figures.ranking else "–",
    ]
