"""Rows whose closed form may be less than the first plan's: the least of all is found, and proved."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solver.columns import IntArray
from solver.cost.assemble import objective_s
from solver.search.bounds import Bounds, objective_bound_s
from solver.search.by_kind import may_reach_objective
from solver.search.frontier import Frontier
from solver.search.priced import CHUNK
from solver.search.stages import best_splits
from solver.search.watch import Watch, look

_TOGETHER = 4096  # rows asked at once whether their closed form may be less
_RIVALS = 64  # rows held against the least closed form between two looks at the clock


class Rival(NamedTuple):
    """A row and its least closed form."""

    row: int
    objective_s: float


def rivals_of(frontier: Frontier, limit_s: float, watch: Watch) -> tuple[list[Rival], float]:
    """Rows whose bound on the closed form is below the least known one, solved, best first.

    And the least bound of those that are not solved when the time is over: +inf where none is left, -inf
    where nothing is known.
    """
    least, rivals, left_s = limit_s, list[Rival](), frontier.least_objective_s
    mixed = not (frontier.rows.is_uniform or frontier.rows.only_split)
    with watch.cut():
        bounds = _objective_bounds_s(frontier, limit_s, watch)
        order = bounds.below(limit_s)
        order = order[np.argsort(bounds[order], kind="stable")]
        left_s = float(bounds[order].min(initial=np.inf))
        while len(order):
            look()
            watch.tick()
            batch, rest = order[:_RIVALS], order[_RIVALS:]
            batch = batch[bounds[batch] < least]
            if mixed:
                batch = _that_may_reach(frontier, batch, least, watch)
            found = _closed_forms(frontier, batch.tolist())
            lower = min([least, *(rival.objective_s for rival in found)])
            if mixed and (lower < least or not rivals):
                rest = _that_may_reach(frontier, rest[bounds[rest] < lower], lower, watch)
            least, rivals, order = lower, rivals + found, rest
            left_s = float(bounds[order].min(initial=np.inf))
    return sorted(rivals, key=lambda rival: (rival.objective_s, rival.row)), left_s


def _closed_forms(frontier: Frontier, indices: list[int]) -> list[Rival]:
    """The least closed form of each row that has a split that fits."""
    fresh = [row for row in indices if row not in frontier.solved]
    splits = best_splits(frontier.rows.take(fresh)) if fresh else []
    fitting = [(row, split) for row, split in zip(fresh, splits, strict=True) if split is not None]
    found = [Rival(row, frontier.solved[row].objective_s) for row in indices if row in frontier.solved]
    if fitting:
        rows = frontier.rows.take([row for row, _ in fitting])
        least = objective_s(rows.prices, rows.columns, rows.stages([split for _, split in fitting]))
        found += [Rival(row, float(value)) for (row, _), value in zip(fitting, least, strict=True)]
    return found


def _that_may_reach(frontier: Frontier, order: IntArray, objective_s: float, watch: Watch) -> IntArray:
    """Those of the rows with layers of several kinds whose closed form may be so little, in their order."""
    kept = [order[:0]]
    for start in range(0, len(order), _TOGETHER):
        watch.tick()
        some = order[start : start + _TOGETHER]
        kept.append(some[may_reach_objective(frontier.rows.take(some), objective_s)])
    return np.concatenate(kept)


def _objective_bounds_s(frontier: Frontier, least_s: float, watch: Watch) -> Bounds:
    """Lower bound on every row's closed form; +inf where it is no less, or no split fits."""
    bounds = Bounds(len(frontier.rows))
    open_rows = frontier.rivals_below(least_s)
    for start in range(0, len(open_rows), CHUNK):
        watch.tick()
        index = open_rows[start : start + CHUNK]
        bounds[index] = objective_bound_s(frontier.rows.take(index))
    return bounds
