"""Why the best plan does not have some values, as ``explain --why-not`` prints it."""

from __future__ import annotations

from rich.console import Group

from meshwright.service.report import formatting
from meshwright.solver.configuration import SHORT_NAMES
from meshwright.solver.planner.why_not import WhyNot


def render_why_not(found: WhyNot, width: int) -> Group:
    """Return the smallest set of reasons against the values, or how much slower plans with them are."""
    asked = ", ".join(f"{SHORT_NAMES.get(name, name)} = {value}" for name, value in found.values.items())
    lines = [formatting.wrapped(formatting.with_ties(_head(found, asked)), width)]
    for number, reason in enumerate(found.reasons, 1):
        own = " (your request)" if reason.of_request else ""
        lines.append(formatting.wrapped(f"{number}. {reason.name}{own}: {reason.reason}", width, indent=2))
    if len(found.reasons) > 1:
        each = "Each of them is needed: without it, some configuration breaks none of the others."
        lines.append(formatting.wrapped(each, width))
    if not found.proved:
        lines.append(formatting.wrapped("The time was over before this was proved.", width))
    return Group(*lines)


def _head(found: WhyNot, asked: str) -> str:
    if found.plan is None:
        if not found.reasons:
            return f"No plan with {asked} was found."
        kind = "the reason" if len(found.reasons) == 1 else "the smallest set of reasons"
        return f"No plan has {asked} under {found.launcher}. This is {kind}:"
    step = formatting.seconds(found.plan.prediction.step_time_s)
    if not found.worse or found.worse <= 0.0:
        return f"The best plan has {asked}: {step} a step."
    grown = ", ".join(
        f"{name.replace('_', ' ')} +{formatting.seconds(more)}" for name, more in found.because
    )
    more = f" What grows most: {grown}." if grown else ""
    return (
        f"Plans with {asked} are allowed and fit, but the best of them, of {step} a step, is "
        f"{100 * found.worse:.3g} % worse than #1.{more}"
    )
