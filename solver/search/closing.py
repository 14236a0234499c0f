"""The gap: how fast any split of any row could simulate, beyond what the closed bounds see.

``reach.least_bound_s`` bounds all splits at once. Where it leaves rows more than a hundredth below the
first plan, they are held against that time rank by rank (``patterns``), as long as the effort lasts. Rows
whose splits are few and known are simulated under all of them, the row with the least bound first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

from solver.search.arrange import simulated_s
from solver.search.bounds import SAFETY, whole_layers_s
from solver.search.dominance import dominates
from solver.search.frontier import Solved
from solver.search.partial import makes_its_order, passes_of
from solver.search.patterns import Effort, Held, are_tried, is_branchable, least_simulation_s
from solver.search.reach import can_beat, least_bound_s
from solver.search.rows import Rows

_SHARE = 0.01  # of the first plan's step: a gap that small is left as it is
_EFFORT = 2**27  # passes simulated; about half a second
_MOST_PASSES = 2**16  # of a step that is simulated under all splits of a row


def least_step_bound_s(
    rows: Rows, low_s: float, best_s: float, tick: Callable[[], object] = lambda: None
) -> float:
    """No split of any row simulates faster; at most ``best_s``, at least ``low_s``, which is a valid bound.

    ``tick`` is called now and then.
    """
    bound, effort = least_bound_s(rows, low_s, best_s, tick), Effort(_EFFORT, tick)
    target = best_s * (1.0 - _SHARE)
    if bound < target and rows.is_uniform:
        bound = max(bound, _beaten_s(rows, bound, target, effort))
    return bound


def _beaten_s(rows: Rows, low_s: float, target_s: float, effort: Effort) -> float:
    """The same up to ``target_s``."""
    left = rows.take(np.flatnonzero(can_beat(rows, np.full(len(rows), target_s))))
    left = left.take(np.argsort(whole_layers_s(left), kind="stable"))  # quick rows dominate others
    tried = are_tried(left)
    hopeless = left.take(np.flatnonzero(~tried))
    if len(hopeless):  # they hold the bound down, so nothing more has to be shown of the others
        target_s = least_bound_s(hopeless, low_s, target_s, effort.tick)
    least, done = target_s, list[int]()
    for row in np.flatnonzero(tried & can_beat(left, np.full(len(left), target_s))).tolist():
        effort.tick()
        if any(dominates(left, known, row) for known in done):
            continue
        one = left.take([row])
        if is_branchable(one, least):
            held = least_simulation_s(one, least, effort)
        else:
            held = Held(least_bound_s(one, low_s, least, effort.tick), for_all=False)
        least = min(least, held.step_s)
        if held.for_all:
            done.append(row)
    return least


def least_of_candidates_s(
    rows: Rows, solved: list[Solved], best_s: float, tick: Callable[[], object] = lambda: None
) -> float:
    """No candidate of rows that have no other splits simulates faster; at most ``best_s``.

    The row with the least bound is simulated under each of its candidates until that bound is one of a
    simulation, a step has too many passes, or the effort is spent.
    """
    effort, simulated = Effort(_EFFORT, tick), set[int]()
    waiting = [(one.bound_s, at) for at, one in enumerate(solved)]
    heapq.heapify(waiting)
    while waiting and waiting[0][0] < best_s:
        bound, at = waiting[0]
        row, splits = rows.take([at]), list(solved[at].candidates)
        tried = passes_of(row) <= _MOST_PASSES and not makes_its_order(row) and at not in simulated
        if not tried or not effort.takes(len(splits) * passes_of(row)):
            return bound
        tick()
        simulated.add(at)
        heapq.heapreplace(waiting, (max(bound, float(simulated_s(row, splits).min()) * SAFETY), at))
    return best_s
