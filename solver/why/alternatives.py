"""Moves of several plans, priced together: how fast, whether they fit, which rules they break.

All times are closed-form, so that hundreds of moves cost milliseconds; a move is held against the closed
form of the plan it starts from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from profiles.profile import Profile
from solver.cost.memory import memory_budget_bytes
from solver.plan import Configuration
from solver.problem import Problem
from solver.rules import rules_of, violation_masks
from solver.why.assembled import Assembled
from solver.why.moves import Move, moves_of
from solver.why.waterfall import waterfalls_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One move, judged."""

    move: Move
    step_s: float  # closed form, for the whole global batch
    start_s: float  # of the plan it starts from
    waterfall_s: dict[str, float]
    start_waterfall_s: dict[str, float]
    broken: tuple[str, ...]  # names of the rules it breaks
    short_bytes: float  # memory beyond the budget on its heaviest stage; 0 where it fits
    heaviest_stage: int
    largest_term: str  # of that stage's memory
    place: str = ""  # of that stage, where GPUs differ: `` on l40s``

    @property
    def stands(self) -> bool:
        """Whether it is legal and fits."""
        return not self.broken and not self.short_bytes


def alternatives_of(
    problem: Problem, profile: Profile, configurations: Sequence[Configuration]
) -> list[list[Alternative]]:
    """The judged moves of every configuration, in the order of the configurations."""
    moves = [moves_of(problem, one) for one in configurations]
    flat = [move for some in moves for move in some]
    if not flat:
        return [[] for _ in configurations]
    starts = Assembled.of(problem, profile, configurations)
    steps = starts.objective_s()
    falls = waterfalls_of(problem, profile, starts, steps)
    origin = [row for row, some in enumerate(moves) for _ in some]
    judged = iter(_judged(problem, profile, flat, [(float(steps[row]), falls[row]) for row in origin]))
    return [[next(judged) for _ in some] for some in moves]


def _judged(
    problem: Problem,
    profile: Profile,
    moves: Sequence[Move],
    starts: Sequence[tuple[float, dict[str, float]]],
) -> list[Alternative]:
    """Every move priced and held against rules and memory; ``starts``: step and waterfall before it."""
    found = Assembled.of(problem, profile, [move.configuration for move in moves])
    steps = found.objective_s()
    falls = waterfalls_of(problem, profile, found, steps)
    rules = rules_of(problem)
    masks = violation_masks(rules, found.columns).tolist()
    names = [rule.name for rule in rules]
    sequences = [move.configuration.global_batch_size for move in moves]
    whole = steps * problem.workload.global_batch_size / np.array(sequences)
    budget = memory_budget_bytes(problem, profile, problem.options.max_out_of_memory_probability)
    peaks = found.stages.peak_memory_bytes
    heaviest = peaks.argmax(axis=1).tolist()
    terms = list(found.stages.memory_bytes)
    sizes = np.stack([found.stages.memory_bytes[term] for term in terms])
    return [
        Alternative(
            move=move,
            step_s=float(whole[row]),
            start_s=starts[row][0],
            waterfall_s=falls[row],
            start_waterfall_s=starts[row][1],
            broken=tuple(name for bit, name in enumerate(names) if masks[row] >> bit & 1),
            short_bytes=max(float(peaks[row, heaviest[row]] - budget), 0.0),
            heaviest_stage=heaviest[row],
            largest_term=terms[int(sizes[:, row, heaviest[row]].argmax())],
        )
        for row, move in enumerate(moves)
    ]
