"""Every change that saves time, energy or nodes, as ``explain --levers`` prints it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from meshwright.service.report import formatting
from meshwright.service.report.sentences import remedy_words, saved_words, step_words
from meshwright.solver.answer import OBJECTIVE_NAMES, Lever, Plan


def lever_words(lever: Lever, saved: str, step: str) -> tuple[str, str, str]:
    """Return ``Bf16 gradients (--allow gradient_dtype)``, its gain with its plan, and what it changes."""
    change, plan = remedy_words(lever, step)
    return change, f"saves {saved_words(lever)} of the {saved}: {plan}", lever.effect.removesuffix(": ")


def _step_words(lever: Lever, objective: str, *, fewest: bool) -> str:
    """Return the step of a lever's plan, and whether a search may find a shorter one."""
    seconds = formatting.seconds(lever.step_time_s)
    if fewest:  # on fewer nodes a step may be longer
        return seconds if lever.at_least else f"up to {seconds}"
    if objective in OBJECTIVE_NAMES:  # others may be better by it and slower
        return f"a predicted step of {seconds}"
    return step_words(lever)


_UNSOUGHT = (
    "No changes are searched for this request. Use --objective step_time and --gpus all, on GPUs of "
    "one kind."
)


def render_levers(
    levers: Sequence[Lever],
    first: Plan,
    *,
    objective: str,
    fewest: bool = False,
    sought: bool,
    complete: bool,
    width: int,
) -> Group:
    """Return the changes with their gains in what plans are ranked by, and whether all were searched.

    ``fewest``: plans are on the fewest nodes, and changes save some of these.
    ``sought``: whether any is looked for.
    """
    if not sought:
        return Group(formatting.wrapped(_UNSOUGHT, width))
    other = "nodes" if fewest else OBJECTIVE_NAMES[objective] if objective == "energy_per_token" else ""
    seen, kind, step_s = first.prediction, "", first.prediction.step_time_s
    if objective == "robust":
        kind, step_s = "90th-percentile ", seen.step_time_high_s
    saved = other or f"{kind}time per token"
    step = f"{kind}step of {formatting.seconds(step_s)}"
    on_nodes = f"nodes, on which a step takes {formatting.seconds(seen.step_time_s)}"
    of_first = on_nodes if fewest else other or step
    head = f"Changes that you may decide and that save more than 1 % of the first plan's {of_first}:"
    none = f"No change that you may decide saves more than 1 % of the first plan's {of_first}."
    lines = [formatting.wrapped(head if levers else none, width)]
    for lever in levers:
        change, gain, effect = map(
            formatting.with_ties, lever_words(lever, saved, _step_words(lever, objective, fewest=fewest))
        )
        lines.append(Text(""))
        lines.append(formatting.wrapped(change, width, indent=2))
        lines.append(formatting.wrapped(gain, width, indent=4))
        lines += [formatting.wrapped(f"changes: {effect}", width, indent=4)] if effect else []
    if not complete:
        lines.append(formatting.wrapped("The time was over before all changes were searched.", width))
    return Group(*lines)
