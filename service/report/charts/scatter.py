"""Points on two axes: step time against memory, and operators under their roof."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshwright.profiles.figures import percent, scale_of
from meshwright.profiles.units import GIB, TERA
from meshwright.service.report import formatting
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.explanation import Roofline

# --------------------------------------------------------------------------------------------------
# Axes: from figures to places, with ticks at round numbers.


_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
_MARGIN = 0.08  # of the range, on both sides
_FEW_TENS = 3  # fewer powers of ten do not show that an axis is logarithmic


Tick = tuple[float, str]  # the place of a mark on its axis, and its label


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range of figures laid over a range of places; ``is_log`` lays their logarithms."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the position of a figure, to a tenth."""
        low, high, here = self.low, self.high, value
        if self.is_log:
            low, high, here = math.log(low), math.log(high), math.log(value)
        share = (here - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)


def linear_axis(values: Iterable[float], start: float, end: float, *, from_zero: bool = False) -> Axis:
    """Return an axis around some figures, with a little room on both sides, or from zero."""
    seen = list(values) or [0.0, 1.0]
    low, high = 0.0 if from_zero else min(seen), max(seen)
    room = (high - low) * _MARGIN or abs(high) * _MARGIN or 1.0
    return Axis(low=0.0 if from_zero else low - room, high=high + room, start=start, end=end)


def log_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """Return a logarithmic axis that begins and ends at powers of ten, or at halves of them."""
    seen = list(values)
    low = 10.0 ** (math.floor(2 * math.log10(min(seen))) / 2)
    high = 10.0 ** (math.ceil(2 * math.log10(max(seen))) / 2)
    return Axis(low=low, high=high * (1.0 if high > low else 10.0), start=start, end=end, is_log=True)


def ticks(axis: Axis, most: int, *, digits: int | None = None) -> list[Tick]:
    """Return marks at round numbers, ``most`` of them at most.

    Logarithmic axes have powers of ten; where these are few, also twice and five times each.
    """
    if axis.is_log:
        first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
        every = [factor * 10.0**power for power in range(first, last + 1) for factor in (1.0, 2.0, 5.0)]
        every = [value for value in every if axis.low * 0.999 <= value <= axis.high * 1.001]
        tens = [value for value in every if math.log10(value).is_integer()]
        values = tens if len(tens) >= _FEW_TENS else every
    else:
        values = _steps(axis, most)
    least = min((b - a for a, b in itertools.pairwise(values)), default=1.0)
    places = max(0, -math.floor(math.log10(least))) if digits is None else digits
    return [
        (axis.at(value), f"{value:g}" if axis.is_log and value < 1.0 else f"{value:.{places}f}")
        for value in values
    ]


def _steps(axis: Axis, most: int) -> list[float]:
    rough = (axis.high - axis.low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _ROUND if factor * power >= rough)
    first = math.ceil(axis.low / step)
    return [number * step for number in range(first, math.floor(axis.high / step) + 1)]


WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 620.0, 18.0, 272.0
_ALL_NAMED = 15  # of more points than this only the front's have their labels shown
_LETTER, _LINE = 6.8, 11.0  # about the width of a letter and the height of a line
_RADIUS = 6.0
# Possible places of a label next to its point: (x, y) of its anchor, and which part of it is anchored.
_BESIDE = ((8.0, -5.0, "start"), (9.0, 14.0, "start"), (-8.0, -5.0, "end"), (-8.0, 14.0, "end"))
_UNDER = ((0.0, 18.0, "middle"), (9.0, 4.0, "start"), (-9.0, 4.0, "end"), (0.0, 30.0, "middle"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One mark: in units of the figures, then of the drawing."""

    x: float
    y: float
    label: str  # empty if there is no room for it
    title: str
    kind: str  # chosen, plan, front, baseline, operator
    label_at: tuple[float, float] = (0.0, 0.0)
    anchor: str = "start"  # start, middle or end of the label is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line, straight from place to place."""

    points: str
    kind: str  # front, limit, roof
    label: str = ""
    label_at: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """A whole picture."""

    points: tuple[Point, ...]
    lines: tuple[Line, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_title: str
    y_title: str
    summary: str
    legend: tuple[tuple[str, str], ...] = ()  # kind of a point or line, words


def pareto_scatter(answer: Answer, chosen: str) -> Scatter:
    """Plot step time and peak memory of every plan, and join those that no other beats in both.

    Args:
        answer: with at least one plan.
        chosen: the plan_id to emphasise.
    """
    others = answer.pareto.points if answer.pareto else ()
    listed = {plan.plan_id for plan in answer.plans}
    marks = [_mark(plan, chosen) for plan in answer.plans]
    marks += [
        _mark(point.plan, chosen, listed=False) for point in others if point.plan.plan_id not in listed
    ]
    if answer.baseline is not None:
        seen = answer.baseline.prediction
        marks.append(
            _of(seen.step_time_s, seen.peak_memory_bytes, "yours", "your configuration", "baseline")
        )
    best = answer.plans[0].prediction
    factor, unit, _ = scale_of(best.step_time_s)
    limit = best.memory_limit_bytes / GIB
    x = linear_axis((mark.x * factor for mark in marks), _LEFT, _RIGHT)
    y = linear_axis([*(mark.y for mark in marks), limit], _BOTTOM, _TOP, from_zero=True)
    unranked = {_mark(plan, chosen).title for plan in answer.plans if not plan.ranked}
    front = _front([mark for mark in marks if mark.title not in unranked])
    marks = _named(marks, front)
    joined = " ".join(f"{x.at(mark.x * factor)},{y.at(mark.y)}" for mark in front)
    at = y.at(limit)
    lines = [
        Line(
            points=f"{_LEFT},{at} {_RIGHT},{at}",
            kind="limit",
            label=f"{limit:.1f} GiB a GPU",
            label_at=(_RIGHT, at - 5),
        ),
        Line(points=joined, kind="front"),
    ]
    return Scatter(
        points=_placed(marks, x, y, factor),
        lines=tuple(lines),
        x_ticks=tuple(ticks(x, 6)),
        y_ticks=tuple(ticks(y, 5)),
        x_title=f"step time, {unit} (not from zero)",
        y_title="peak memory of a GPU, GiB",
        summary=_pareto_summary(front),
        legend=_legend({mark.kind for mark in marks}),
    )


def _legend(kinds: set[str]) -> tuple[tuple[str, str], ...]:
    words = {
        "chosen": "this plan",
        "plan": "ranked plan",
        "front": "found for less memory, not ranked",
        "baseline": "your configuration",
    }
    named = [(kind, text) for kind, text in words.items() if kind in kinds]
    return (*named, ("line", "Pareto front: no plan beats these in both"))


def _mark(plan: Plan, chosen: str, *, listed: bool = True) -> Point:
    seen, words = plan.prediction, formatting.configuration_words(plan.config)
    kind = "chosen" if plan.plan_id == chosen else "plan" if listed else "front"
    label = f"#{plan.rank}" if listed else ""
    return _of(seen.step_time_s, seen.peak_memory_bytes, label, f"{label} {words}".strip(), kind)


def _of(step_s: float, peak_bytes: float, label: str, title: str, kind: str) -> Point:
    said = f"{title}: {formatting.seconds(step_s)}, {formatting.gib(peak_bytes)} GiB"
    return Point(x=step_s, y=peak_bytes / GIB, label=label, title=said, kind=kind)


def _front(marks: Sequence[Point]) -> list[Point]:
    """Return marks that no other beats in both, fastest first."""
    found: list[Point] = []
    for mark in sorted((one for one in marks if one.kind != "baseline"), key=lambda one: (one.x, one.y)):
        if not found or mark.y < found[-1].y:
            found.append(mark)
    return found


def _named(marks: Sequence[Point], front: Sequence[Point]) -> list[Point]:
    """Return the plans to label; if there are many, those behind the front lose their labels."""
    kept = {mark.title for mark in front}
    few = len(marks) <= _ALL_NAMED
    return [
        mark if few or mark.kind != "plan" or mark.title in kept else replace(mark, label="")
        for mark in marks
    ]


def _pareto_summary(front: Sequence[Point]) -> str:
    first, last = front[0], front[-1]
    if first is last:
        return "No plan listed needs less memory than the fastest."
    slower = 100 * (last.x / first.x - 1)
    return f"The leanest plan listed needs {first.y - last.y:.1f} GiB less and is {slower:.1f} % slower."


def _placed(marks: Sequence[Point], x: Axis, y: Axis, factor: float = 1.0) -> tuple[Point, ...]:
    """Return marks at their places, the chosen one on top; labels only where they cover nothing."""
    order = sorted(marks, key=lambda mark: (mark.kind != "chosen", mark.kind != "baseline"))
    places = [(x.at(mark.x * factor), y.at(mark.y)) for mark in order]
    taken = [(a - _RADIUS, b - _RADIUS, a + _RADIUS, b + _RADIUS) for a, b in places]
    found = []
    for mark, at in zip(order, places, strict=True):
        point = replace(mark, x=at[0], y=at[1], label="")
        for way in (_UNDER if mark.kind == "operator" else _BESIDE) if mark.label else ():
            box = _box(at, way, len(mark.label))
            if box[0] >= _LEFT and box[2] <= WIDTH and not any(_overlap(box, one) for one in taken):
                taken.append(box)
                point = replace(
                    point,
                    label=mark.label,
                    label_at=(round(at[0] + way[0], 1), round(at[1] + way[1], 1)),
                    anchor=way[2],
                )
                break
        found.append(point)
    return tuple(reversed(found))


_Box = tuple[float, float, float, float]  # left, top, right, bottom


def _box(at: tuple[float, float], way: tuple[float, float, str], letters: int) -> _Box:
    width = letters * _LETTER + 3.0
    left = at[0] + way[0] - {"start": 0.0, "middle": 0.5, "end": 1.0}[way[2]] * width
    bottom = at[1] + way[1]
    return left, bottom - _LINE + 2, left + width, bottom + 1


def _overlap(one: _Box, other: _Box) -> bool:
    beside = one[2] <= other[0] or other[2] <= one[0]
    return not beside and one[1] < other[3] and other[1] < one[3]


def roofline_scatter(roof: Roofline) -> Scatter:
    """Return operators by intensity and rate, under memory bandwidth and peak."""
    ridge = roof.peak_flops / roof.bytes_per_s
    x = log_axis([*(point.intensity for point in roof.points), ridge / 4], _LEFT, _RIGHT)
    rates = [point.rate_flops / TERA for point in roof.points]
    peak = roof.peak_flops / TERA
    y = log_axis([*rates, min(x.low * roof.bytes_per_s / TERA, peak)], _BOTTOM, _TOP)
    y = Axis(low=y.low, high=max(y.high, 1.6 * peak), start=y.start, end=y.end, is_log=True)
    foot = max(x.low, y.low * TERA / roof.bytes_per_s)
    corner = (x.at(ridge), y.at(peak))
    path = (
        f"{x.at(foot)},{y.at(foot * roof.bytes_per_s / TERA)} {corner[0]},{corner[1]} {_RIGHT},{corner[1]}"
    )
    marks = [
        Point(
            x=point.intensity,
            y=point.rate_flops / TERA,
            label=str(number),
            title=f"{number}. {point.name}: {formatting.tera(point.rate_flops)}",
            kind="operator",
        )
        for number, point in enumerate(roof.points, start=1)
    ]
    return Scatter(
        points=_placed(marks, x, y),
        lines=(
            Line(
                points=path, kind="roof", label=f"peak {peak:.0f} TFLOP/s", label_at=(_RIGHT, corner[1] - 6)
            ),
        ),
        x_ticks=tuple(ticks(x, 5, digits=0)),
        y_ticks=tuple(ticks(y, 4, digits=0)),
        x_title="intensity, FLOP per byte (log scale)",
        y_title="rate, TFLOP/s (log scale)",
        summary=_roof_summary(roof),
    )


def _roof_summary(roof: Roofline) -> str:
    bound = [point for point in roof.points if point.intensity * roof.bytes_per_s < point.peak_flops]
    total = sum(point.seconds * point.layers for point in roof.points)
    share = sum(point.seconds * point.layers for point in bound) / total
    if not bound:
        return "Arithmetic limits all of these operators; none waits for memory."
    return f"Memory bandwidth limits {len(bound)} of them, {percent(share)} of their time."
