"""Moves of placed configurations, priced together: how fast, whether they fit, which rules they break."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

from profiles.profile import Profile
from solver.columns import IntArray
from solver.mixed.pipeline import GroupPrices, PlacedPipeline
from solver.plan import Configuration
from solver.problem import Problem
from solver.rules import BATCH_RULE, rules_of, violation_masks
from solver.why.alternatives import Alternative
from solver.why.moves import Move
from solver.why.placed import Placed, placed_all, placed_waterfalls
from solver.why.placed_moves import placed_moves_of

_ROUNDED_BYTES = 16  # a stage's terms are rounded to bytes


def placed_alternatives_of(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration]
) -> list[list[Alternative]]:
    """The judged moves of every configuration, in the order of the configurations."""
    starts = placed_all(problem, profile, configurations)
    moves = [placed_moves_of(problem, one.config, one.slowest) for one in starts]
    flat = [move for some in moves for move in some]
    found = placed_all(problem, profile, [move.configuration for move in flat])
    steps = [one.objective_s for one in found]
    falls = placed_waterfalls(found, steps)
    start_steps = [one.objective_s for one in starts]
    start_falls = placed_waterfalls(starts, start_steps)
    judge = Judge()
    judged, at = list[list[Alternative]](), 0
    for start, some in enumerate(moves):
        mine = range(at, at + len(some))
        at += len(some)
        judged.append([
            _alternative(judge, flat[one], found[one], (steps[one], falls[one]),
                         (start_steps[start], start_falls[start]))
            for one in mine
        ])  # fmt: skip
    return judged


def _alternative(
    judge: Judge,
    move: Move,
    found: Placed,
    now: tuple[float, dict[str, float]],
    start: tuple[float, dict[str, float]],
) -> Alternative:
    """One move, judged; ``now`` and ``start``: step and waterfall with and without it."""
    short, stage = max((bytes_short, -at) for at, bytes_short in enumerate(short_bytes(found)))
    heaviest = found.stages[-stage]
    terms = heaviest.memory_bytes()
    return Alternative(
        move=move,
        step_s=now[0],
        start_s=start[0],
        waterfall_s=now[1],
        start_waterfall_s=start[1],
        broken=judge.broken(found),
        short_bytes=max(short, 0.0),
        heaviest_stage=-stage,
        largest_term=max(terms, key=lambda name: terms[name]),
        place=f" on {heaviest.on.profile.group.gpu.slug}",
    )


def short_bytes(found: Placed) -> list[float]:
    """What each stage of all classes needs beyond its budget; below 0: it fits."""
    return [
        sum(stage.memory_bytes().values()) - budget - _ROUNDED_BYTES
        for one in found.classes
        for stage, budget in zip(one.stages, one.budgets_bytes(), strict=True)
    ]


class Judge:
    """Which rules configurations break; masks of rows that were priced together are found once."""

    def __init__(self) -> None:
        self._masks = cache(_masks)

    def broken(self, found: Placed) -> tuple[str, ...]:
        """Names of the rules that a configuration breaks on any group; too few GPUs or sequences."""
        names = dict[str, None]()
        for one in found.classes:
            for on, row in {(stage.on, stage.row): None for stage in one.stages}:
                rules, masks = self._masks(on)
                mask = int(masks[row])
                names |= {name: None for bit, name in enumerate(rules) if mask >> bit & 1}
        names.pop(BATCH_RULE, None)
        batch = found.classes[0].fleet.problem.workload.global_batch_size
        if found.config.global_batch_size != batch:
            names[BATCH_RULE] = None
        return (*names, *_too_few_gpus(found.classes))


def _masks(on: GroupPrices) -> tuple[list[str], IntArray]:
    """Names of the rules on a group, and the broken ones of each row."""
    rules = rules_of(on.problem)
    return [rule.name for rule in rules], violation_masks(rules, on.columns)


def _too_few_gpus(classes: Sequence[PlacedPipeline]) -> list[str]:
    """Groups that would have to give more GPUs than they have."""
    fleet, used = classes[0].fleet, Counter[str]()
    for one in classes:
        for stage in one.config.stage_groups:
            used[stage.group] += stage.num_gpus
    have = {name: group.num_gpus for name, group in zip(fleet.names, fleet.groups, strict=True)}
    return [f"GPUs of {name}: there are {have[name]}" for name in used if used[name] > have[name]]
