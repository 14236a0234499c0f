"""Step time against peak memory, drawn with characters: the position of each plan of a ranking."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from meshwright.service.report import formatting as figures
from meshwright.solver.answer import Plan, ranked_plans

WIDE = 100  # columns; a narrower terminal has no plot
_COLUMNS, _ROWS = 64, 7  # of the field
_LEAST = 3  # fewer plans are read from the table
_NAMED = 5  # plans of the front that the caption names
_LABEL = 12  # columns left of the axis
_FRONT_STYLE = "bold green"


_Mark = tuple[int, int, Text]  # row from the top, column, and a plan's rank


def tradeoff_lines(plans: Sequence[Plan], width: int) -> list[Text]:
    """Return the plot under a ranking; nothing where it has no room, or would show a line."""
    plans = ranked_plans(plans)
    if width < WIDE or len(plans) < _LEAST:
        return []
    times, peaks = _extent([_step_s(plan) for plan in plans]), _extent([_peak(plan) for plan in plans])
    if times[0] == times[1] or peaks[0] == peaks[1]:
        return []
    marks = _placed(plans, times, peaks)
    caption = f"  step time and peak memory of each plan; {_front(plans)} Pareto-optimal"
    lines = [Text(), Text(caption, style="dim")]
    lines += [_row(row, marks, peaks) for row in range(_ROWS)]
    left, right = figures.seconds(times[0]), figures.seconds(times[1])
    lines.append(Text(f"{'':>{_LABEL}} └{'─' * _COLUMNS}"))
    lines.append(Text(f"{'':>{_LABEL}}  {left}{right:>{_COLUMNS - len(left)}}"))
    return lines


def is_efficient(plan: Plan, plans: Sequence[Plan]) -> bool:
    """Return whether no other plan is as fast with less memory, or faster with as little."""
    own = (_step_s(plan), _peak(plan))
    others = [(_step_s(other), _peak(other)) for other in plans]
    return not any(o[0] <= own[0] and o[1] <= own[1] and o != own for o in others)


def _front(plans: Sequence[Plan]) -> str:
    """Return ``#1, #3 and 4 more are``: the plans that no other beats."""
    ranks = [f"#{plan.rank}" for plan in plans if is_efficient(plan, plans)]
    named, others = ranks[:_NAMED], len(ranks) - _NAMED
    verb = "is" if len(ranks) == 1 else "are"
    return ", ".join(named) + (f" and {others} more {verb}" if others > 0 else f" {verb}")


def _step_s(plan: Plan) -> float:
    return plan.prediction.step_time_s


def _peak(plan: Plan) -> float:
    return float(plan.prediction.peak_memory_bytes)


def _extent(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _placed(plans: Sequence[Plan], times: tuple[float, float], peaks: tuple[float, float]) -> list[_Mark]:
    """Place a mark for each plan, better ranks first, next to its place if that is taken."""
    taken: set[tuple[int, int]] = set()
    marks = []
    for plan in plans:
        row = round((peaks[1] - _peak(plan)) / (peaks[1] - peaks[0]) * (_ROWS - 1))
        text = str(plan.rank)
        room = _COLUMNS - len(text)
        column = round((_step_s(plan) - times[0]) / (times[1] - times[0]) * room)
        places = [*range(column, room + 1), *range(column - 1, -1, -1)]
        apart = range(-1, len(text) + 1)  # with a blank on both sides
        free = (one for one in places if taken.isdisjoint((row, one + offset) for offset in apart))
        column = next(free, -1)
        if column >= 0:
            taken |= {(row, column + offset) for offset in range(len(text))}
            marks.append((row, column, Text(text, style=_FRONT_STYLE if is_efficient(plan, plans) else "")))
    return marks


def _row(row: int, marks: Sequence[_Mark], peaks: tuple[float, float]) -> Text:
    edge = {0: peaks[1], _ROWS - 1: peaks[0]}.get(row)
    label = "" if edge is None else f"{figures.gib(edge)} GiB"
    line = Text(f"{label:>{_LABEL}} │")
    for column, text in sorted((column, text) for at, column, text in marks if at == row):
        line.append(" " * (_LABEL + 2 + column - len(line)))
        line.append(text)
    return line
