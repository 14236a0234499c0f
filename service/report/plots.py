"""Figures for papers and slides, drawn by matplotlib from the data of the report.

The report's own pictures are SVG templates instead: matplotlib's SVG styles every element inline, which a
strict content security policy forbids, and its colours cannot follow a reader's dark mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from logging import ERROR, getLogger
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.units import GIB, TERA
from meshwright.service.report import formatting as figures
from meshwright.service.report.charts.bars import WIDTH, memory_bars, waterfall_bars
from meshwright.service.report.document import Details
from meshwright.service.report.formatting import words
from meshwright.solver.answer import KINDS, Answer, Plan, Roofline, window

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PASSES = 20_000
_INK, _ACCENT, _GREY = "#1c2330", "#2f55d4", "#a3acba"
_TERMS = {
    "weights": "#2f55d4",
    "gradients": "#7c95ea",
    "optimizer": "#b9c7f6",
    "activations": "#6d7889",
    "workspace": "#a3acba",
    "buffers": "#a3acba",
    "context": "#c9cfd9",
    "reserve": "#dde1e8",
}
_PASSES = dict(zip(KINDS, ("#7c95ea", "#2f55d4", "#2f55d4", "#b9c7f6"), strict=True))
_BARS = {"ideal": _ACCENT, "loss": _GREY, "gain": "#b9c7f6", "whole": "#6d7889"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of a plot."""

    answer: Answer
    plan: Plan
    details: Details


def draw(figure: str, subject: Subject, path: Path, *, form: str) -> None:
    """Draw one figure into a file.

    Args:
        figure: pareto, memory, waterfall, timeline or roofline.
        subject: what there is to draw.
        path: the file.
        form: svg, png or pdf.

    Raises:
        ImportError: matplotlib is not installed.
        InvalidProblemError: the plan has no such figure.
        OSError: the file cannot be written.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an optional extra, half a second
    from matplotlib.figure import Figure  # noqa: PLC0415 - the same

    # no user needs to read that a first start looks for fonts
    getLogger("matplotlib.font_manager").setLevel(ERROR)
    salt = subject.plan.plan_id
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt, "font.size": 9}):
        made = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = made.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        _DRAWN[figure](axes, subject)
        metadata = {"Date": None} if form == "svg" else None  # the same plan gives the same bytes
        made.savefig(path, format=form, dpi=200, metadata=metadata)


def _pareto(axes: Axes, subject: Subject) -> None:
    """Step time and peak memory."""
    for plan in subject.answer.plans:
        x, y = plan.prediction.step_time_s, plan.prediction.peak_memory_bytes / GIB
        chosen = plan.plan_id == subject.plan.plan_id
        axes.plot(x, y, "o", color=_ACCENT if chosen else _GREY)
        axes.annotate(f"#{plan.rank}", (x, y), xytext=(5, 4), textcoords="offset points", color=_INK)
    limit = subject.plan.prediction.memory_limit_bytes / GIB
    axes.axhline(limit, color=_INK, linestyle="--", linewidth=1)
    axes.set_xlabel("step time, s")
    axes.set_ylabel("peak memory of a GPU, GiB")


def _memory(axes: Axes, subject: Subject) -> None:
    """Plot the memory of every stage by term."""
    seen = subject.plan.prediction
    chart = memory_bars(seen, subject.details.log_memory_sigma)
    stages = np.arange(len(chart.rows))
    left = np.zeros(len(stages))
    for term, name, _ in chart.legend:
        sizes = np.array([stage.memory_bytes.get(term, 0) / GIB for stage in seen.stages])
        axes.barh(
            stages, sizes, left=left, color=_TERMS[term], label=name, edgecolor="white", linewidth=0.5
        )
        left = left + sizes
    for number, (stage, row) in enumerate(zip(seen.stages, chart.rows, strict=True)):
        limit = (stage.memory_limit_bytes or seen.memory_limit_bytes) / GIB
        axes.plot([limit, limit], [number - 0.45, number + 0.45], color=_INK)
        if row.low is not None and row.high is not None and row.limit:
            ends = [row.low * limit / row.limit, row.high * limit / row.limit]
            axes.plot(ends, [number, number], color=_INK, linewidth=0.8, marker="|", markersize=5)
    axes.invert_yaxis()
    axes.set_yticks(stages, [row.name for row in chart.rows])
    axes.set_xlabel("GiB")
    axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14), frameon=False)


def _waterfall(axes: Axes, subject: Subject) -> None:
    """Plot the way from the ideal step to the real one."""
    plan = subject.plan
    step_s = plan.prediction.step_time_s
    chart = waterfall_bars(plan.why.waterfall_s if plan.why else plan.prediction.time_breakdown_s, step_s)
    unit = step_s / chart.rows[-1].segments[0].width if chart.rows[-1].segments[0].width else step_s / WIDTH
    for number, row in enumerate(chart.rows):
        piece = row.segments[0]
        axes.barh(number, piece.width * unit, left=piece.at * unit, color=_BARS[piece.term])
        axes.annotate(
            row.figure,
            ((piece.at + piece.width) * unit, number),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axes.invert_yaxis()
    axes.set_yticks(range(len(chart.rows)), [row.name for row in chart.rows])
    axes.set_xlabel("s")
    axes.margins(x=0.12)


def _timeline(axes: Axes, subject: Subject) -> None:
    """Plot every pass of every rank."""
    if not subject.details.timelines:
        raise InvalidProblemError.of("plan", subject.details.note or "the plan has no timeline")
    longest = max(subject.details.timelines, key=lambda one: one.step_time_s)
    seen = window(longest, MOST_PASSES)
    for row, rank in enumerate(seen.timeline.ranks):
        for code, kind in enumerate(KINDS):
            mine = rank.kind == code
            boxes = list(zip(rank.start_s[mine].tolist(), rank.seconds[mine].tolist(), strict=True))
            axes.broken_barh(boxes, (row - 0.4, 0.8), facecolors=_PASSES[kind], linewidth=0)
        tail = [(rank.end_s, rank.gradients_s), (rank.end_s + rank.gradients_s, rank.optimizer_s)]
        axes.broken_barh(tail, (row - 0.4, 0.8), facecolors=[_GREY, _INK], linewidth=0)
    if seen.gap_s:
        middle = sum(seen.gap_s) / 2
        axes.text(middle, -0.7, "left out", ha="center", fontsize=7, color=_INK)
    axes.invert_yaxis()
    axes.set_yticks(range(len(seen.timeline.ranks)), [f"rank {rank.rank}" for rank in seen.timeline.ranks])
    axes.set_xlabel(f"s of a step of {figures.seconds(longest.step_time_s)}")
    present = {int(code) for rank in seen.timeline.ranks for code in np.unique(rank.kind)}
    handles = [
        axes.bar(0, 0, color=_PASSES[KINDS[code]], label=words(KINDS[code])) for code in sorted(present)
    ]
    axes.legend(
        handles=handles, fontsize=7, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), frameon=False
    )


def _roofline(axes: Axes, subject: Subject) -> None:
    """Plot operators under the roof of each type of GPU."""
    roofs = subject.details.rooflines
    if not roofs:
        raise InvalidProblemError.of("plan", subject.details.note or "the plan has no roofline")
    widest = max(point.intensity for roof in roofs for point in roof.points)
    for roof, color in zip(roofs, cycle((_ACCENT, _GREY, "#b26a00")), strict=False):
        _one_roof(axes, roof, widest, color, names_gpu=len(roofs) > 1)
    axes.legend(fontsize=7, loc="lower right", frameon=False, handletextpad=0.2)
    axes.set_xlabel("intensity, FLOP per byte")
    types = " and ".join(dict.fromkeys(roof.gpu for roof in roofs))
    axes.set_ylabel(f"rate on {types}, TFLOP/s")


def _one_roof(axes: Axes, roof: Roofline, widest: float, color: str, *, names_gpu: bool) -> None:
    """Plot one roof and the numbered operators under it."""
    x = np.geomspace(10.0, 2.0 * max(widest, roof.peak_flops / roof.bytes_per_s), 200)
    axes.loglog(x, np.minimum(x * roof.bytes_per_s, roof.peak_flops) / TERA, color=color)
    for number, point in enumerate(roof.points, start=1):
        at, rate = point.intensity, point.rate_flops / TERA
        label = f"{number} {point.name}" + (f", {roof.gpu}, {roof.note}" if names_gpu else "")
        axes.loglog([at], [rate], "o", color=color, markeredgecolor="white", label=label)
        axes.annotate(
            str(number), (at, rate), xytext=(0, 6), textcoords="offset points", fontsize=7, ha="center"
        )


_DRAWN: Mapping[str, Callable[[Axes, Subject], None]] = {
    "pareto": _pareto,
    "memory": _memory,
    "waterfall": _waterfall,
    "timeline": _timeline,
    "roofline": _roofline,
}
