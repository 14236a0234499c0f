"""Plans with their reasons: the waterfall of a step, its largest losses, the limits that bind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from profiles.frameworks import FrameworkFacts, with_options
from profiles.profile import Profile
from profiles.units import GIB
from solver.plan import Configuration, Plan
from solver.predictions import predicted_all
from solver.problem import Problem
from solver.reasons import Limit, Loss, Why
from solver.why.advice import advice
from solver.why.alternatives import Alternative, alternatives_of
from solver.why.placed import placed_all, placed_waterfalls
from solver.why.placed_alternatives import placed_alternatives_of
from solver.why.waterfall import NO_LOSS, waterfalls

Chosen = tuple[Loss, Alternative | None]
_LOSSES = 3
_MOST_LIMITS = 4
_LOWERED = 0.1  # of a term: what a change must take off it
_NOTICEABLE = 1e-3  # of the step: what a limit must cost to be said to bind


def reasons_of(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration], steps_s: Sequence[float]
) -> list[Why]:
    """The reasons of every configuration under its step time; one pass over all of their moves."""
    if not configurations:
        return []
    facts = with_options(profile.framework, problem.workload.framework_options)
    falls = fallen(problem, profile, configurations, steps_s)
    others = _alternatives(problem, profile, configurations)
    chosen = [
        _losses(problem, facts, one, fall, some)
        for one, fall, some in zip(configurations, falls, others, strict=True)
    ]
    steps = dict(zip(configurations, steps_s, strict=True)) | _simulated_s(problem, profile, chosen)
    return [
        Why(
            waterfall_s=fall,
            losses=tuple(_told(loss, move, steps, now) for loss, move in losses),
            limits=_limits(some),
        )
        for fall, losses, some, now in zip(falls, chosen, others, steps_s, strict=True)
    ]


def fallen(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration], steps_s: Sequence[float]
) -> list[dict[str, float]]:
    """The waterfalls of meshes and of placed configurations, in the order of the configurations."""
    pairs = list(zip(configurations, steps_s, strict=True))
    meshes, placed = [p for p in pairs if not p[0].is_placed], [p for p in pairs if p[0].is_placed]
    even = iter(waterfalls(problem, profile, [one for one, _ in meshes], [step for _, step in meshes]))
    stands = placed_all(problem, profile, [one for one, _ in placed])
    uneven = iter(placed_waterfalls(stands, [step for _, step in placed]))
    return [next(uneven if one.is_placed else even) for one in configurations]


def _alternatives(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration]
) -> list[list[Alternative]]:
    """The judged moves of meshes and of placed configurations, in the order of the configurations."""
    meshes = [one for one in configurations if not one.is_placed]
    placed = [one for one in configurations if one.is_placed]
    even = iter(alternatives_of(problem, profile, meshes))
    uneven = iter(placed_alternatives_of(problem, profile, placed))
    return [next(uneven if one.is_placed else even) for one in configurations]


def _simulated_s(
    problem: Problem, profile: Profile, chosen: Sequence[Sequence[Chosen]]
) -> dict[Configuration, float]:
    """Step times of all changes that are offered, each simulated once."""
    offered = {move.move.configuration: None for losses in chosen for _, move in losses if move}
    found = predicted_all(problem, profile, list(offered))
    return {one: price.step_time_s for one, price in zip(offered, found, strict=True)}


def _told(
    loss: Loss, move: Alternative | None, steps_s: Mapping[Configuration, float], now_s: float
) -> Loss:
    """The loss with the change that lowers it most."""
    if move is None:
        return loss
    return replace(
        loss,
        change=move.move.words,
        saves_s=move.start_waterfall_s[loss.term] - move.waterfall_s[loss.term],
        step_change_s=steps_s[move.move.configuration] - now_s,
    )


def with_reasons(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """The plans, each with its reasons."""
    steps = [plan.prediction.step_time_s for plan in plans]
    found = reasons_of(problem, profile, [plan.config for plan in plans], steps)
    return tuple(replace(plan, why=why) for plan, why in zip(plans, found, strict=True))


def _losses(
    problem: Problem,
    facts: FrameworkFacts,
    configuration: Configuration,
    fall_s: Mapping[str, float],
    others: Sequence[Alternative],
) -> list[Chosen]:
    """The three largest terms, each with what would lower it and the change that does so most."""
    step_s = sum(fall_s.values())
    lost = sorted((name for name in fall_s if name not in NO_LOSS), key=lambda name: -fall_s[name])
    losses: list[Chosen] = []
    for name in lost[:_LOSSES]:
        if fall_s[name] <= 0.0:
            break
        words = advice(name, problem, facts, configuration)
        loss = Loss(term=name, seconds=fall_s[name], share=fall_s[name] / step_s, lowered_by=words)
        losses.append((loss, _lowering(name, others)))
    return losses


def _lowering(term: str, others: Sequence[Alternative]) -> Alternative | None:
    """The move that stands, lowers the term noticeably, and costs the step least."""
    able = [
        one
        for one in others
        if one.stands
        and one.start_waterfall_s[term] - one.waterfall_s[term] > _LOWERED * one.start_waterfall_s[term]
    ]
    return min(able, key=lambda one: one.step_s, default=None)


def _limits(others: Sequence[Alternative]) -> tuple[Limit, ...]:
    """Limits that alone stop a faster move; the costliest first."""
    binding: dict[str, Limit] = {}
    for one in others:
        gain = one.start_s - one.step_s
        name = _stopped_by(one)
        if name is None or gain < _NOTICEABLE * one.start_s:
            continue
        key = name.partition(":")[0]
        if key not in binding or binding[key].gain_s < gain:
            binding[key] = Limit(name=name, change=one.move.words, gain_s=gain)
    return tuple(sorted(binding.values(), key=lambda limit: -limit.gain_s)[:_MOST_LIMITS])


def _stopped_by(one: Alternative) -> str | None:
    """The only thing that stands against a move, if it is one."""
    if one.short_bytes and not one.broken:
        stage, short = one.heaviest_stage, one.short_bytes / GIB
        where = f"{one.largest_term} of stage {stage}{one.place}"
        return f"memory: {where}, {short:.1f} GiB more than may be filled"
    return one.broken[0] if len(one.broken) == 1 and not one.short_bytes else None
