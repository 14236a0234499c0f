"""The ways through a field: which berth each stage may stand on, and what may follow it.

State after a stage: (which berths were used, the berth of the stage, how many stages in a row it has).
Which stages of earlier berths there were does not matter any more, since a berth has one run. Only states
that lead from the first stage to a last one with every berth used are kept; they depend on the number of
stages and the room on each berth alone, so many fields share them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from solver.columns import IntArray

State: TypeAlias = tuple[int, int, int]  # berths used as bits, berth, stages in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Every way from a state of one stage to a state of the next, ordered by ``source``, arrays (K,)."""

    source: IntArray  # index among the states before
    target: IntArray  # index among the states after
    before: IntArray  # berth
    berth: IntArray
    first_of_source: IntArray  # where the ways of each state begin, every state having one or more
    by_target: IntArray  # the same ways ordered by target
    first_of_target: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """All states of p stages, and the p - 1 steps between them."""

    first: IntArray  # berth of each state of stage 0
    num_states: tuple[int, ...]  # of each stage
    steps: tuple[Steps, ...]


def _following(state: State, room: tuple[int, ...]) -> Iterator[State]:
    """States of the next stage: one more on the berth, or the first on another."""
    used, berth, run = state
    if run < room[berth]:
        yield (used, berth, run + 1)
    for other, most in enumerate(room):
        if most and not used >> other & 1:
            yield (used | 1 << other, other, 1)


@lru_cache(maxsize=1024)
def routes_of(p: int, room: tuple[int, ...]) -> Routes | None:
    """The routes of p stages over berths with that room each; None: there is none."""
    stages: list[set[State]] = [{(1 << berth, berth, 1) for berth in range(len(room))}]
    for _ in range(p - 1):
        stages.append({after for state in stages[-1] for after in _following(state, room)})
    every = (1 << len(room)) - 1
    stages[-1] = {state for state in stages[-1] if state[0] == every}
    for stage in range(p - 2, -1, -1):
        behind = stages[stage + 1]
        stages[stage] = {state for state in stages[stage] if behind & set(_following(state, room))}
    if not stages[0]:
        return None
    ordered = [sorted(states) for states in stages]
    return Routes(
        first=np.array([state[1] for state in ordered[0]]),
        num_states=tuple(len(states) for states in ordered),
        steps=tuple(_steps(ordered[at], ordered[at + 1], room) for at in range(p - 1)),
    )


def _steps(before: list[State], after: list[State], room: tuple[int, ...]) -> Steps:
    """All ways between the states of two stages."""
    index = {state: at for at, state in enumerate(after)}
    ways = [
        (at, index[state], one[1], state[1])
        for at, one in enumerate(before)
        for state in _following(one, room)
        if state in index
    ]
    source, target, left, entered = np.array(ways).T
    by_target = np.argsort(target, kind="stable")
    return Steps(
        source=source,
        target=target,
        before=left,
        berth=entered,
        first_of_source=np.searchsorted(source, np.arange(len(before))),
        by_target=by_target,
        first_of_target=np.searchsorted(target[by_target], np.arange(len(after))),
    )
