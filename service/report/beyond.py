"""Parts of a request beyond the ranking: its objective, the whole run, the client's own configuration."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from meshwright.profiles.figures import percent, tied
from meshwright.service.report import formatting as figures
from meshwright.service.report.different import head_words, lines_of
from meshwright.service.report.ranking import changes_of, switch_words
from meshwright.solver.answer import (
    OBJECTIVE_NAMES,
    Answer,
    Baseline,
    Outlook,
    ParetoFront,
    Plan,
)

_MINUTE_S = 60.0
_WHOLE_KG = 10.0  # less is shown with decimals
_BAR = 20  # characters of the heaviest point's bar
_BARS_FROM = 80  # columns; a narrower terminal has no room for them


def beyond_lines(answer: Answer, width: int) -> list[Text]:
    """Return lines below the ranking; none for a plain request."""
    lines, claim = list[str](), answer.objective
    if claim is not None and claim.name in OBJECTIVE_NAMES:
        value = "" if claim.value is None else f": {tied(f'{claim.value:.3g} {claim.unit}')}"
        lines.append(f"Ranked by {OBJECTIVE_NAMES[claim.name]}{value}.")
    if answer.plans and answer.plans[0].outlook is not None:
        lines.append(run_words(answer.plans[0], answer.plans[0].outlook))
    if answer.baseline is not None:
        lines.append(baseline_words(answer.baseline, len(answer.ranking)))
    lines += deciding_words(answer.plans)
    texts = [figures.wrapped(line, width, indent=2, hang=2) for line in lines]
    return [*texts, *(_front(answer.pareto, width) if answer.pareto else [])]


def different_lines(answer: Answer, width: int) -> list[Text]:
    """Return the near-optimal plans that differ as the request asks; none where it does not."""
    if answer.different is None:
        return []
    head = figures.wrapped(head_words(answer.different), width, indent=2, hang=2)
    lines = (figures.pieces(figures.with_ties(line), "·") for line in lines_of(answer.different))
    return [head, *(figures.wrapped(line, width, indent=4, hang=2) for line in lines)]


def _front(front: ParetoFront, width: int) -> list[Text]:
    """Return the points of the front, fastest first, with bars of their memory."""
    lines = [figures.wrapped(f"Step time and peak memory: {front.claim}.", width, indent=2, hang=2)]
    words = _front_words(front)
    heaviest = max((point.plan.prediction.peak_memory_bytes for point in front.points), default=1)
    for point, said in zip(front.points, words, strict=True):
        seen = point.plan.prediction
        bar = "█" * max(round(_BAR * seen.peak_memory_bytes / heaviest), 1)
        cells = f"{figures.seconds(seen.step_time_s):>8} {figures.gib(seen.peak_memory_bytes):>6} GiB "
        cells += f"{bar:<{_BAR}} " if width >= _BARS_FROM else ""
        lines.append(
            figures.wrapped(tied(cells) + figures.pieces(said, "·"), width, indent=4, hang=len(cells))
        )
    return lines


def _front_words(front: ParetoFront) -> list[str]:
    """Return each point's configuration; with its layers if only its split distinguishes it."""
    several = len({point.plan.config.num_gpus for point in front.points}) > 1
    words = [
        " · ".join(
            [
                *([f"{point.plan.config.num_gpus} GPUs"] if several else []),
                figures.configuration_words(point.plan.config),
                *map(switch_words, changes_of(point.plan)),
            ]
        )
        for point in front.points
    ]
    return [
        f"{said} · layers {figures.split(point.plan.config.stage_layers)}"
        if words.count(said) > 1
        else said
        for said, point in zip(words, front.points, strict=True)
    ]


def deciding_words(plans: Sequence[Plan]) -> list[str]:
    """Return what to measure to decide between #1 and the others, each measurement once."""
    ranks = dict[str, list[str]]()
    for plan in plans:
        if plan.deciding is not None:
            ranks.setdefault(plan.deciding, []).append(f"#{plan.rank}")
    return [f"Decides between #1 and {', '.join(some)}: {what}." for what, some in ranks.items()]


def run_words(plan: Plan, outlook: Outlook) -> str:
    """Return the whole run under ``plan`` in a sentence."""
    every = tied(f"{outlook.checkpoint_interval_s / _MINUTE_S:.0f} min")
    parts = [f"goodput {tied(percent(outlook.goodput))} with a checkpoint every {every}"]
    if outlook.days is not None:
        parts.insert(0, tied(f"{outlook.days:.1f} days"))
    if outlook.cost is not None:
        parts.append(f"cost {tied(figures.count(round(outlook.cost)))}")
    if outlook.energy_per_token_j is not None:
        parts.append(tied(f"{outlook.energy_per_token_j:.2g} J/token"))
    if outlook.co2_kg is not None:
        kg = outlook.co2_kg
        mass = f"{figures.count(round(kg))} kg" if kg >= _WHOLE_KG else f"{kg:.2g} kg"
        parts.append(tied(f"{mass} CO2 (GPUs alone)"))
    return f"Run of #{plan.rank} on {tied(f'{outlook.num_gpus} GPUs')}: {', '.join(parts)}."


def baseline_words(baseline: Baseline, plans: int) -> str:
    """Return the step and the place of the client's own configuration among ``plans`` ranked ones."""
    behind = "behind the only plan" if plans == 1 else f"behind all {plans} plans"
    place = f"rank {baseline.rank}" if baseline.rank else behind
    gap = ""
    if baseline.gap_to_best is not None:
        side = "behind" if baseline.gap_to_best >= 0 else "ahead of"
        gap = f", {abs(baseline.gap_to_best) * 100:.1f} % {side} #1"
    own = f"Your configuration ({tied(figures.configuration_words(baseline.config))})"
    step = figures.step_time(baseline.prediction)
    if baseline.problems:
        return f"{own} cannot run: {'; '.join(baseline.problems)}. Its step would take {step}{gap}."
    return f"{own}: {step}, {place}{gap}."
