"""Two configurations side by side, and what each difference between them buys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.profiles.figures import tied
from meshwright.service.report import formatting as figures
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.explanation import Comparison, Step

_SHOWN_TERMS = 2
_NOTICEABLE = 0.002  # of the step: smaller parts of a difference are not named


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedObjective:
    """An objective other than the step time, of both sides."""

    name: str
    unit: str
    values: tuple[float, float]


def render_comparison(
    comparison: Comparison,
    names: tuple[str, str],
    configurations: tuple[Configuration, Configuration],
    *,
    width: int,
    ranked: ComparedObjective | None = None,
) -> RenderableType:
    """Return both sides, the differences in the order in which they were carried over, and both waterfalls.

    ``ranked``: what plans were ranked by, where that is not the step time.
    """
    first, second = comparison.first, comparison.second
    label = max(map(len, names)) + 3
    share = (second.step_time_s / first.step_time_s - 1.0) * 100
    lines = [] if ranked is None else [_ranked(ranked, names, width)]
    lines += [
        _side(names[0], configurations[0], first, label=label, width=width),
        _side(
            names[1],
            configurations[1],
            second,
            label=label,
            width=width,
            more=f"{share:+.0f} %".replace("-", "−"),
        ),
        Text(),
    ]
    lines += [
        figures.wrapped(_step(step, first.step_time_s), width, indent=2, hang=4)
        for step in comparison.steps
    ]
    if not comparison.steps:
        lines.append(figures.wrapped("the same configuration", width, indent=2))
    falls = (comparison.first_waterfall_s, comparison.second_waterfall_s)
    lines.append(Text())
    for name, fall, side in zip(names, falls, (first, second), strict=True):
        text = figures.pieces(figures.times(fall, side.step_time_s), "│")
        lines.append(figures.wrapped(tied(f"{name:<{label}}") + text, width, hang=label))
    return Group(*lines)


def _ranked(ranked: ComparedObjective, names: tuple[str, str], width: int) -> Text:
    """Return ``ranked by energy per token: yours 0.11 J/token, best 0.09 J/token, −18 %; their steps:``."""
    first, second = ranked.values
    values = ", ".join(
        tied(f"{name} {value:.4g} {ranked.unit}") for name, value in zip(names, ranked.values, strict=True)
    )
    share = tied(f"{(second / first - 1.0) * 100:+.1f} %".replace("-", "−"))
    return figures.wrapped(f"ranked by {ranked.name}: {values}, {share}; their steps:", width)


def _side(
    name: str,
    configuration: Configuration,
    prediction: Prediction,
    *,
    label: int,
    width: int,
    more: str = "",
) -> Text:
    """Return ``yours   tp 8 · pp 8 · mbs 2   43.9 s ±4 %   31.4 of 79.6 GiB``."""
    parts = [
        figures.pieces(figures.configuration_words(configuration), "·"),
        tied(figures.step_time(prediction)),
        tied(figures.stage_memory(prediction)),
        tied(more),
    ]
    text = "   ".join(part for part in parts if part)
    return figures.wrapped(tied(f"{name:<{label}}") + text, width, hang=label, style="bold")


def _step(step: Step, whole_s: float) -> str:
    """Return ``−8.1 s recompute off (recompute −9.0, bubble +0.9 s)``, and which steps do not fit."""
    line = tied(f"{figures.signed(step.step_change_s, whole_s):>8}  {step.change}")
    terms = sorted(step.terms_s.items(), key=lambda item: -abs(item[1]))[:_SHOWN_TERMS]
    shown = [f"{figures.words(name)} {figures.signed(value, whole_s)}" for name, value in terms
             if abs(value) >= _NOTICEABLE * whole_s]  # fmt: skip
    causes = f"  ({', '.join(shown)})" if shown else ""
    remarks = [] if step.fits else ["this change alone would not fit"]
    remarks += [f"on the way it breaks the rule that {rule}" for rule in step.breaks]
    return line + causes + "".join(f"; {remark}" for remark in remarks)


def reading_lines(notes: Sequence[str], unread: Sequence[str], *, width: int) -> RenderableType:
    """Return what a launch command leaves to defaults, and what of it was not understood."""
    lines = [figures.wrapped(f"what really runs: {note}", width, indent=2) for note in notes]
    if unread:
        lines.append(
            figures.wrapped(
                f"not understood, so not part of the prediction: {', '.join(unread)}", width, indent=2
            )
        )
    return Group(*lines)
