"""Gap of the answer: how fast any split of any row could simulate, beyond the closed bounds.

``fill.least_bound_s`` bounds all splits at once. Where it leaves rows more than a hundredth below the
first plan, they are held against that time rank by rank (``branch``), as long as the effort lasts. Rows
with few and known splits are simulated under all of them, the row with the least bound first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshwright.solver.answer import RankFloors
from meshwright.solver.clock import Watch, look
from meshwright.solver.configuration import MESH, FloatArray, IntArray
from meshwright.solver.search.bounds import SAFETY, Bounds, objective_bound_s, whole_layers_s
from meshwright.solver.search.branch import (
    SimulationBudget,
    are_tried,
    dominators,
    is_branchable,
    least_simulation_s,
    passes_of,
)
from meshwright.solver.search.candidates import simulated_s
from meshwright.solver.search.fill import bounds_s, can_beat, least_bound_s
from meshwright.solver.search.fill_kinds import may_reach_objective
from meshwright.solver.search.frontier import LAYOUT, Frontier, Layout, Solved, layouts_of, least_by
from meshwright.solver.search.paths import PathShape, are_averaged, least_average_s
from meshwright.solver.search.priced_space import CHUNK
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import best_splits

_SHARE = 0.01  # of the first plan's step: a gap that small is not narrowed further
_EFFORT = 3 * 2**27  # passes simulated; about a second
_BRANCHED = 2**25  # of one row that averages of paths can bound as well
_MOST_PASSES = 2**16  # of a step that is simulated under all splits of a row


def least_step_bound_s(
    rows: Rows, low_s: float, best_s: float, tick: Callable[[], object] = lambda: None
) -> float:
    """Bound the simulation of every split of every row, between the valid bound ``low_s`` and ``best_s``.

    ``tick`` is called now and then.
    """
    bound = least_bound_s(rows, low_s, best_s, tick)
    effort = SimulationBudget(_EFFORT, tick, reserve=_EFFORT)
    target = best_s * (1.0 - _SHARE)
    if bound < target and rows.is_uniform:
        bound = max(bound, _beaten_s(rows, bound, target, effort))
    return bound


def _beaten_s(rows: Rows, low_s: float, target_s: float, effort: SimulationBudget) -> float:
    """Return that bound up to ``target_s``."""
    left = rows.take(np.flatnonzero(can_beat(rows, np.full(len(rows), target_s))))
    left = left.take(np.argsort(whole_layers_s(left), kind="stable"))  # quick rows dominate others
    tried = are_tried(left)
    hopeless = left.take(np.flatnonzero(~tried))
    if len(hopeless):  # they hold the bound down, so nothing more has to be shown of the others
        target_s = least_bound_s(hopeless, low_s, target_s, effort.tick)
    least, done, open_ = target_s, list[int](), dict[int, float]()
    averaged = are_averaged(left)
    held_down = set[PathShape]()  # branching left a row of the shape below the target
    for row in np.flatnonzero(tried & can_beat(left, np.full(len(left), target_s))).tolist():
        effort.tick()
        if done and dominators(left, row)[done].any():
            continue
        one = left.take([row])
        shape = PathShape.of(one)
        if (averaged[row] and shape in held_down) or not is_branchable(one, least):
            open_[row] = low_s
            continue
        own = effort.part(_BRANCHED if averaged[row] else effort.passes)
        held = least_simulation_s(one, least, own)
        effort.passes += own.passes
        if held.step_s < least and averaged[row]:
            open_[row] = held.step_s
            held_down.add(shape)
            continue
        least = min(least, held.step_s)
        if held.for_all:
            done.append(row)
    others, averaged = left.take(list(open_)), averaged[list(open_)]
    low, high = np.full(len(open_), low_s), np.full(len(open_), least)
    bounds = np.maximum(bounds_s(others, low, high, effort.tick), list(open_.values()))
    least = float(bounds[~averaged].min(initial=least))
    return least_average_s(others.take(np.flatnonzero(averaged)), bounds[averaged], least, effort)


def least_of_candidates_s(
    rows: Rows, solved: list[Solved], best_s: float, tick: Callable[[], object] = lambda: None
) -> float:
    """Bound all candidates of rows that have no other splits; at most ``best_s``.

    The row with the least bound is simulated under each of its candidates until that bound is one of a
    simulation, a step has too many passes, or the effort is spent.
    """
    effort, simulated = SimulationBudget(_EFFORT, tick), set[int]()
    waiting = [(one.bound_s, at) for at, one in enumerate(solved)]
    heapq.heapify(waiting)
    while waiting and waiting[0][0] < best_s:
        bound, at = waiting[0]
        row, splits = rows.take([at]), list(solved[at].candidates)
        tried = passes_of(row) <= _MOST_PASSES and not row.makes_order[0] and at not in simulated
        if not tried or not effort.takes(len(splits) * passes_of(row)):
            return bound
        tick()
        simulated.add(at)
        heapq.heapreplace(waiting, (max(bound, float(simulated_s(row, splits).min()) * SAFETY), at))
    return best_s


# --------------------------------------------------------------------------------------------------
# How fast the k-th best plan could be: no split of any row of a mesh, or layout, simulates faster.
#
# A row that was refuted is held by the score that it was held against; one with no other splits than its
# candidates has its score. Of the others the time is bisected that they cannot beat. The k-th least of
# these floors bounds the k-th best of all simulations: of any k layouts one has a floor that is not less.


_NEAR = 1e-3  # share of a time up to which a floor is bisected


def floors_of(frontier: Frontier, low_s: float, tick: Callable[[], object] = lambda: None) -> RankFloors:
    """Return floors of all that may rank in a finished frontier; ``low_s`` is one of every row."""
    columns, ranked = frontier.rows.columns, frontier.ranked
    last_s = max([frontier.cutoff_s, *(one.score_s for one in ranked)])
    index = frontier.bound_s.below(np.nextafter(last_s, np.inf))
    index = np.union1d(index, np.array([one.row for one in ranked], dtype=np.int64))
    limit_s, meshes = frontier.limits_s(index), layouts_of(columns, index, MESH)
    if frontier.filled:  # the best plan of a slow mesh may take longer than the last layout
        own = layouts_of(columns, [one.row for one in ranked[::-1]], MESH)
        best = dict(zip(own, (one.score_s for one in ranked[::-1]), strict=True))
        limit_s = np.maximum(limit_s, [best.get(mesh, 0.0) for mesh in meshes])
    bound_s = np.maximum(frontier.bound_s[index], low_s)
    asked = np.flatnonzero((bound_s < limit_s) & frontier.are_open(index))
    asked = asked[np.argsort(bound_s[asked], kind="stable")]
    numbers = dict[Layout, int]()
    keys = layouts_of(columns, index, frontier.apart)
    group = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)
    contest = Contest(
        rows=frontier.rows.take(index[asked]),
        low_s=bound_s[asked],
        high_s=limit_s[asked],
        group=group[asked],
    )
    rest = np.full(len(numbers), np.inf)
    closed = np.setdiff1d(np.arange(len(index)), asked)
    np.minimum.at(rest, group[closed], limit_s[closed])
    floor_s = limit_s.copy()
    floor_s[asked] = contest.floors_s(rest, len(index) if frontier.filled else frontier.top_k, tick)
    by_mesh = {} if frontier.apart == LAYOUT and not frontier.filled else least_by(meshes, floor_s)
    by_layout = {} if frontier.apart == MESH else least_by(layouts_of(columns, index), floor_s)
    return RankFloors(known=True, meshes=by_mesh, layouts=by_layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Rows with floors that decide those of their groups, least bound first; arrays are (n,)."""

    rows: Rows
    low_s: FloatArray  # what no split of a row beats
    high_s: FloatArray  # up to which its floor counts
    group: IntArray

    def floors_s(self, rest: FloatArray, most: int, tick: Callable[[], object]) -> FloatArray:
        """Return floors of the rows, (n,), that are exact for the least ``most`` of all groups.

        ``rest``: the least floor of other rows of each group. The row of least bound in as many groups
        comes first; most others are known to be beyond those floors, or shown to be at one look.
        """

        def bisected_s(index: IntArray) -> FloatArray:
            low_s, high_s, group = self.low_s[index], self.high_s[index], self.group[index]
            return bounds_s(self.rows.take(index), low_s, high_s, tick, near=_NEAR, group=group)

        floor_s, least = self.low_s.copy(), rest.copy()
        first = np.sort(np.unique(self.group, return_index=True)[1])[:most]
        floor_s[first] = bisected_s(first)
        np.minimum.at(least, self.group[first], floor_s[first])
        enough = np.sort(least)[most - 1] if most <= len(least) else np.inf
        limit_s = np.minimum(least[self.group], enough)
        beyond_s = np.minimum(limit_s * (1.0 + 2.0 * _NEAR), self.high_s)  # where bisection ends above it
        left = np.setdiff1d(np.flatnonzero(self.low_s < limit_s), first)
        able = can_beat(self.rows.take(left), beyond_s[left])
        floor_s[left[~able]] = beyond_s[left[~able]]
        floor_s[left[able]] = bisected_s(left[able])
        return floor_s


# --------------------------------------------------------------------------------------------------
# Rows with a closed form that may be less than the first plan's: the least of all is found, and proved.


_TOGETHER = 4096  # rows asked at once whether their closed form may be less
_RIVALS = 64  # rows held against the least closed form between two looks at the clock


class Rival(NamedTuple):
    """A row and its least closed form."""

    row: int
    objective_s: float


def rivals_of(frontier: Frontier, limit_s: float, watch: Watch) -> tuple[list[Rival], float]:
    """Solve rows with a bound on the closed form below the least known one, and return the best first.

    Also returns the least bound of those that are not solved when the time is over: +inf where none is
    left, -inf where nothing is known.
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
        left_s = min(left_s, frontier.beyond_s)
    return sorted(rivals, key=lambda rival: (rival.objective_s, rival.row)), left_s


def _closed_forms(frontier: Frontier, indices: list[int]) -> list[Rival]:
    fresh = [row for row in indices if row not in frontier.solved]
    splits = best_splits(frontier.rows.take(fresh)) if fresh else []
    fitting = [(row, split) for row, split in zip(fresh, splits, strict=True) if split is not None]
    found = [Rival(row, frontier.solved[row].objective_s) for row in indices if row in frontier.solved]
    if fitting:
        least = frontier.rows.take([row for row, _ in fitting]).objective_s([split for _, split in fitting])
        found += [Rival(row, float(value)) for (row, _), value in zip(fitting, least, strict=True)]
    return found


def _that_may_reach(frontier: Frontier, order: IntArray, objective_s: float, watch: Watch) -> IntArray:
    """Return, in order, rows with several kinds of layers and a closed form that may be so little."""
    kept = [order[:0]]
    for start in range(0, len(order), _TOGETHER):
        watch.tick()
        some = order[start : start + _TOGETHER]
        kept.append(some[may_reach_objective(frontier.rows.take(some), objective_s)])
    return np.concatenate(kept)


def _objective_bounds_s(frontier: Frontier, least_s: float, watch: Watch) -> Bounds:
    """Bound every row's closed form from below; +inf if it is not less, or no split fits."""
    bounds = Bounds(len(frontier.rows))
    open_rows = frontier.rivals_below(least_s)
    for start in range(0, len(open_rows), CHUNK):
        watch.tick()
        index = open_rows[start : start + CHUNK]
        bounds[index] = objective_bound_s(frontier.rows.take(index))
    return bounds
