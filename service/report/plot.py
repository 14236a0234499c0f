"""An answer as one picture to cite: where time and memory of a plan go, its pipeline, and the ranking.

One chart code for PNG, PDF and SVG; axes start at zero, every term has its colour, every line its legend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.profiles.units import GIB
from meshwright.service.report.charts.palette import MEMORY_COLORS, PASS_COLORS, TIME_COLORS
from meshwright.service.report.charts.timeline import HEIGHT, STRIPE, WIDTH, TimelineChart, timeline_chart
from meshwright.service.report.formatting import LONG_NAMES, configuration_words, words
from meshwright.service.report.question import title_of
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.explanation import Timeline
from meshwright.solver.problem import Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".pdf", ".svg")
_SIZE_INCHES = (12.0, 7.0)
_PIPELINE_INCHES = 1.1, 0.22  # of height: its frame, and each rank
_MOST_PASSES = 3000  # that a printed line can show
_SHADES = (1.0, 0.82, 0.64, 0.48)  # of chunks
_DPI = 150
_LEAST_ROWS = 4  # of bars that an axis has room for
_MOST_PLANS = 10
_ROOM = 1.03  # of the longest bar
_INK = "#1c2330"
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "meshwright",  # the same answer gives the same bytes
    "svg.fonttype": "none",
}


def plot(
    answer: Answer, problem: Problem, plan: Plan, path: Path, timelines: Sequence[Timeline] = ()
) -> None:
    """Write the picture of one plan and its ranking.

    Args:
        answer: the ranking.
        problem: its question.
        plan: the plan that is shown in full.
        path: the file; its suffix decides the format.
        timelines: the plan's, one for each kind of replica; the first is drawn.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an extra, for this command alone
    from matplotlib.figure import Figure  # noqa: PLC0415 - the same

    with mpl.rc_context(_STYLE):
        rows: list[Any] = [["step", "ranking"], ["memory", "ranking"]]
        heights, (wide, high) = [1.0, 1.0], _SIZE_INCHES
        pipeline = timeline_chart(timelines[0], _MOST_PASSES) if timelines else None
        if pipeline is not None:
            taller = _PIPELINE_INCHES[0] + _PIPELINE_INCHES[1] * len(pipeline.rows)
            rows.append(["pipeline", "pipeline"])
            heights.append(2.0 * taller / high)
            high += taller
        figure = Figure(figsize=(wide, high), layout="constrained")
        places = figure.subplot_mosaic(rows, width_ratios=[1.2, 1], height_ratios=heights)
        if pipeline is not None:
            _pipeline(places["pipeline"], pipeline)
        _step(places["step"], plan)
        _memory(places["memory"], plan)
        _ranking(places["ranking"], answer.ranking[:_MOST_PLANS], plan)
        about = f"#{plan.rank} {configuration_words(plan.config, LONG_NAMES)}"
        figure.suptitle(f"{title_of(problem)}\n{about}\n{answer.certainty}", fontsize=10, color=_INK)
        dates: Mapping[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
        figure.savefig(path, dpi=_DPI, metadata=dates.get(path.suffix.lower()))


def _stack(
    axes: Axes, labels: Sequence[str], rows: Sequence[Mapping[str, float]], colors: Mapping[str, str]
) -> None:
    """Draw one stacked bar for each row, from zero; the legend has every term."""
    start = [0.0] * len(rows)
    for term, color in colors.items():
        values = [max(row.get(term, 0.0), 0.0) for row in rows]
        if any(values):
            axes.barh(labels, values, left=start, color=color, label=words(term))
            start = [at + value for at, value in zip(start, values, strict=True)]
    _downward(axes, len(rows))
    axes.set_xlim(left=0)


def _downward(axes: Axes, rows: int) -> None:
    """Put the first row on top, and leave room under a few, so that bars stay bars."""
    axes.set_ylim(max(rows, _LEAST_ROWS) - 0.5, -0.5)


def _framed(axes: Axes, title: str, unit: str, *, below: float = 0.2) -> None:
    """Write the title, the unit of the figures, and the legend under them."""
    axes.set_title(title, loc="left", fontsize=10, color=_INK)
    axes.set_xlabel(unit)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -below),
        ncols=4,
        columnspacing=1.2,
        frameon=False,
        fontsize=8,
    )


def _step(axes: Axes, plan: Plan) -> None:
    terms = plan.why.waterfall_s if plan.why else plan.prediction.time_breakdown_s
    _stack(axes, ["step"], [terms], TIME_COLORS)
    axes.set_ylim(0.5, -0.5)
    _framed(axes, "Where a step's time goes", "seconds of one optimizer step")


def _memory(axes: Axes, plan: Plan) -> None:
    stages = plan.prediction.stages
    rows = [{name: size / GIB for name, size in stage.memory_bytes.items()} for stage in stages]
    _stack(axes, [f"stage {stage.stage}" for stage in stages], rows, MEMORY_COLORS)
    limit = plan.prediction.memory_limit_bytes / GIB
    axes.axvline(limit, color=_INK, label="memory of a GPU")
    axes.set_xlim(0, _ROOM * max(limit, plan.prediction.peak_memory_bytes / GIB))
    _framed(axes, "Memory of each stage", "GiB of each GPU")


def _ranking(axes: Axes, plans: Sequence[Plan], chosen: Plan) -> None:
    seen = [plan.prediction for plan in plans]
    steps = [one.step_time_s for one in seen]
    below = [one.step_time_s - one.step_time_low_s for one in seen]
    above = [one.step_time_high_s - one.step_time_s for one in seen]
    colors = [
        TIME_COLORS["compute"] if plan.rank == chosen.rank else MEMORY_COLORS["gradients"] for plan in plans
    ]
    labels = [
        f"#{plan.rank} {configuration_words(plan.config)}".replace(" · zero", "\nzero") for plan in plans
    ]
    axes.barh(labels, steps, color=colors, label="step time")
    axes.errorbar(
        steps,
        range(len(plans)),
        xerr=[below, above],
        fmt="none",
        ecolor=_INK,
        capsize=3,
        label="80 % interval",
    )
    _downward(axes, len(plans))
    axes.set_xlim(left=0)
    axes.tick_params(axis="y", labelsize=7)
    _framed(axes, "Ranking", "seconds of one optimizer step", below=0.08)


def _pipeline(axes: Axes, chart: TimelineChart) -> None:
    """Draw the passes of every rank to scale, and the critical path as a line at their foot."""
    names = dict(chart.legend)
    for number, row in enumerate(chart.rows):
        for stroke in row.strokes:
            high = STRIPE / HEIGHT if stroke.kind == "critical" else 1.0
            axes.broken_barh(
                stroke.boxes,
                (number + 0.45 - 0.9 * high, 0.9 * high),
                color=PASS_COLORS[stroke.kind],
                alpha=_SHADES[stroke.shade],
                linewidth=0,
                label=names.pop(stroke.kind, None),
            )
    if chart.gap is not None:
        axes.axvspan(*chart.gap, color="white", hatch="//", ec=PASS_COLORS["gradients"], label="left out")
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.set_xticks([WIDTH * at / (len(chart.marks) - 1) for at in range(len(chart.marks))], chart.marks)
    axes.set_yticks(range(len(chart.rows)), [f"rank {row.rank}" for row in chart.rows])
    axes.set_title(chart.note, fontsize=8, loc="left", color=_INK)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=6, frameon=False, fontsize=8)
