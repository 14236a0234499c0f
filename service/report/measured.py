"""Measured runs next to their predictions, for ``calibrate``, ``import --plan`` and ``plan --profile``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from meshwright.profiles.documents import shown
from meshwright.profiles.figures import tied
from meshwright.service.report import formatting as figures
from meshwright.solver.answer import Plan

if TYPE_CHECKING:
    from meshwright.solver.calibration.measured import Compared, TimedPrediction

MOST_ROWS = 20  # of a list of runs; --json has all


def compared_table(runs: Sequence[Compared]) -> list[Table | Text]:
    """Return the measured and predicted step time of each run, before and after the calibration."""
    heads = ("run", "measured", "predicted", "off by", "predicted now", "off by")
    rows = [
        (
            shown(one.name),
            figures.seconds(one.measured_s),
            figures.seconds(one.predicted_s),
            off_by(one.predicted_s, one.measured_s),
            figures.seconds(one.now_s),
            off_by(one.now_s, one.measured_s),
        )
        for one in runs[:MOST_ROWS]
    ]
    table = figures.plain_table(heads, rows, left=("run",))
    more = len(runs) - MOST_ROWS
    return [table, *([Text(f"and {more} more runs (--json has all)")] if more > 0 else [])]


def off_by(predicted_s: float, measured_s: float) -> str:
    """Return how far a prediction is above or below the measurement: ``+2.0 %``."""
    return f"{(predicted_s / measured_s - 1.0) * 100:+.1f} %"


def measured_lines(measured: Sequence[TimedPrediction], plans: Sequence[Plan], width: int) -> list[Text]:
    """Return every measured run of the question below the ranking, however slow it is predicted now."""
    if not measured:
        return []
    lines = [
        Text(),
        figures.wrapped("measured runs of this question, predicted with this profile:", width, indent=2),
    ]
    for one in measured[:MOST_ROWS]:
        times = f"measured {figures.seconds(one.measured_s)}"
        times += f", predicted {figures.seconds(one.prediction.step_time_s)}"
        words = figures.pieces(figures.configuration_words(one.configuration), "·")
        text = f"{shown(one.name)}: {words}: {tied(times)}, {tied(_place(one, plans))}"
        lines.append(figures.wrapped(text, width, indent=4, hang=2))
    more = len(measured) - MOST_ROWS
    if more > 0:
        lines.append(figures.wrapped(f"and {more} more (--json has all)", width, indent=4))
    return lines


def _place(one: TimedPrediction, plans: Sequence[Plan]) -> str:
    for plan in plans:
        if one.is_of(plan):
            return f"#{plan.rank}"
    if not plans:
        return "not in the list"
    slower = one.prediction.step_time_s / plans[0].prediction.step_time_s - 1.0
    return f"{abs(slower) * 100:.1f} % {'slower' if slower >= 0 else 'faster'} than #1"
