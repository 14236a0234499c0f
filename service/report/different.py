"""Near-optimal plans that differ in stated sizes, in words."""

from __future__ import annotations

from meshwright.service.report import formatting
from meshwright.solver.answer import DifferentPlans
from meshwright.solver.configuration import SHORT_NAMES


def head_words(found: DifferentPlans) -> str:
    """Return what the plans have in common, and whether there are more."""
    names = [SHORT_NAMES.get(name, name) for name in found.names]
    kinds = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    share = f"{100 * found.within:.3g} %"
    if len(found.plans) == 1:
        end = "" if found.complete else ", as far as the search went"
        return f"No plan with other {kinds} is within {share} of #1{end}."
    end = "These are all" if found.complete else "There may be more (time or length ended the list)"
    return f"The best plan of each {kinds} within {share} of #1. {end}:"


def lines_of(found: DifferentPlans) -> list[str]:
    """Return each plan in one line: its step, by how much it is worse, and its layout."""
    if len(found.plans) == 1:
        return []
    return [
        f"{formatting.seconds(plan.prediction.step_time_s)} (+{100 * max(worse, 0.0):.3g} %): "
        f"{formatting.configuration_words(plan.config)}"
        for plan, worse in zip(found.plans, found.worse, strict=True)
    ]
