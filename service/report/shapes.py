"""Nearby model shapes as people read them in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.service.report import formatting as figures
from meshwright.service.report.question import header
from meshwright.solver.explanation import ShapeAdvice
from meshwright.solver.problem import Problem

_BILLION = 1e9


def render_shapes(advice: ShapeAdvice, problem: Problem, *, width: int) -> RenderableType:
    """Return the asked shape's plan, then the shapes that save time, best first."""
    own = f"as asked: {figures.seconds(advice.prediction.step_time_s)} in "
    own += figures.configuration_words(advice.config)
    lines: list[RenderableType] = [header(problem, width), figures.wrapped(own, width, indent=2), Text()]
    left_out = "; ".join(advice.not_searched)
    unsaid = [f"not known, too many configurations to search them all: {left_out}"] if left_out else []
    if not advice.shapes:
        notes = ["no nearby shape is faster for its size", *unsaid]
        return Group(*lines, *(figures.wrapped(note, width, indent=2) for note in notes))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("change", "parameters", "step", "saves*", "in place", "tp", "why"):
        table.add_column(title, overflow="fold", no_wrap=title not in ("change", "why"))
    for shape in advice.shapes:
        table.add_row(
            shape.change,
            f"{shape.num_parameters / _BILLION:.2f} B ({shape.parameters_change * 100:+.1f} %)",
            figures.seconds(shape.step_time_s),
            _share(shape.gain),
            "–" if shape.gain_in_place is None else _share(shape.gain_in_place),
            " ".join(map(str, shape.tensor_parallel_sizes)),
            shape.why,
        )
    notes = [
        "* time of a token for each parameter that it uses, against the asked shape, each in its best plan",
        "in place: in the layout of the asked shape's plan; tp: sizes within a node that divide the shape",
        "This list is about speed only. Check the quality of a new shape yourself.",
        *unsaid,
    ]
    return Group(*lines, table, *(figures.wrapped(note, width, indent=2) for note in notes))


def _share(gain: float) -> str:
    return f"{gain * 100:.1f} %".replace("-", "−")
