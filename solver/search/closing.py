"""The gap: how fast any split of any row could simulate, beyond what the closed bounds see.

``reach.least_bound_s`` bounds all splits at once. Where it leaves rows more than a hundredth below the
first plan, they are held against that time rank by rank (``patterns``), as long as the effort lasts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solver.search.patterns import Effort, dominates, is_branchable, least_simulation_s
from solver.search.reach import can_beat, least_bound_s
from solver.search.rows import Rows

_SHARE = 0.01  # of the first plan's step: a gap that small is left as it is
_EQUAL = 1e-6
_EFFORT = 2**27  # passes simulated; about half a second


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
    binding = rows.take(np.flatnonzero(can_beat(rows, np.full(len(rows), low_s * (1.0 + _EQUAL)))))
    if not all(is_branchable(binding.take([row]), target_s) for row in range(len(binding))):
        return low_s
    left = rows.take(np.flatnonzero(can_beat(rows, np.full(len(rows), target_s))))
    hopeless = [row for row in range(len(left)) if not is_branchable(left.take([row]), target_s)]
    if hopeless:  # they hold the bound down, so nothing more has to be shown of the others
        target_s = least_bound_s(left.take(hopeless), low_s, target_s, effort.tick)
        left = left.take(np.flatnonzero(can_beat(left, np.full(len(left), target_s))))
    least, refuted = target_s, list[int]()
    for row in range(len(left)):
        effort.tick()
        one = left.take([row])
        if not is_branchable(one, target_s) or any(dominates(left, known, row) for known in refuted):
            continue
        found = least_simulation_s(one, target_s, effort)
        least = min(least, found)
        if found == target_s:
            refuted.append(row)
    return least
