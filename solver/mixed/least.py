"""How far the least closed form that is known may be from the least there is.

Fields are opened best first under a bound on their closed form and the most promising ones are solved; what
is left bounds the rest (``objective_bounds``). That of a class of replicas stands in
``shares``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from solver.mixed.batch_split import best_split
from solver.mixed.field import Field
from solver.mixed.frontier import PlacedFrontier, Waiting
from solver.mixed.objective_bounds import objective_bound_s
from solver.mixed.program import Program
from solver.mixed.sets import sets_of
from solver.mixed.shares import GroupShares

_SOLVED = 128  # fields at most
_EXACT = 1.0 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Least:
    """The least closed form known, and a bound that no configuration's is below; seconds."""

    known_s: float
    bound_s: float


def least_objective(
    frontier: PlacedFrontier, shares: Sequence[GroupShares], known_s: float, stopped: Callable[[], bool]
) -> Least:
    """Look for less than ``known_s`` among all placements, as far as the effort goes."""
    known_s = min([known_s, *frontier.objectives.values()])
    waiting, solved = _waiting(frontier, known_s), 0
    while waiting and waiting[0][0] < known_s * _EXACT and solved < _SOLVED and not stopped():
        _, row, berths = heapq.heappop(waiting)
        solved += 1
        best = Program(Field(outer=frontier.outer, row=row, berths=berths)).solve()
        if best is not None:
            known_s = min(known_s, best.objective_s)
    least = min([known_s, *(bound for bound, _, _ in waiting[:1]), *_of_classes(frontier, shares)])
    return Least(known_s=known_s, bound_s=known_s if least >= known_s * _EXACT else least)


def _waiting(frontier: PlacedFrontier, known_s: float) -> list[Waiting]:
    """Fields that were not solved and whose closed form may be less, by bound: a heap."""
    outer = frontier.outer
    bounds = objective_bound_s(frontier.floors, outer.group_of, outer.columns, outer.layout.num_layers)
    rows = np.flatnonzero(bounds < known_s)
    found = [one for one in frontier.fields_of(rows, objective_bound_s, known_s)
             if one[1:] not in frontier.objectives]  # fmt: skip
    heapq.heapify(found)
    return found


def _of_classes(frontier: PlacedFrontier, shares: Sequence[GroupShares]) -> list[float]:
    """What no split of the batch over two or more groups is below."""
    found = []
    for groups in sets_of(len(shares)):
        floors = [shares[at].objective_s for at in groups]
        split = best_split(floors, len(floors[0]) - 1)
        if split is not None:
            found.append(split[0] + frontier.outer.fleet.exchange_s(groups))
    return found
