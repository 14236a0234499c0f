"""Lower bounds on the closed form of rows of a mixed cluster, before any placement is looked at.

With x the time of the slowest stage it is ``straggler (sum_s t_s + (m - 1) x + tail) + fixed``, the tail
at its least. No x is below tau (``bounds.least_stage_s``). In a given x the sum is least with as many
stages on the fastest berths as there is room for, each filled up to x, layers divisible: any other has
fewer stages and layers on the fastest one, two, … berths together, so that its layers cost no less. That
sum falls with x, so between two values of x the larger one's sum and the smaller one itself bound it.
"""

from __future__ import annotations

import numpy as np

from solver.columns import Columns, FloatArray, IntArray
from solver.mixed.bounds import Floors, counts_of, least_stage_s
from solver.search.bounds import SAFETY

_STEP, _STEPS = 1.0025, 64  # values of x from tau on, to 1.17 tau; the last one counts for all above
_UNLIMITED = 1e6


def objective_bound_s(floors: Floors, groups: IntArray | None, columns: Columns, layers: int) -> FloatArray:
    """Lower bound of every row over all placements, (n,), as ``step_bound_s``."""
    p, m = columns.pipeline_parallel_size, columns.num_microbatches
    slowest_s = least_stage_s(floors, groups, p, layers)
    known = np.where(np.isfinite(slowest_s), slowest_s, 0.0)
    each, count, forced = _stages(floors, groups, p)
    beside = floors.least(floors.beside_s)
    least = np.full(len(p), np.inf)
    for step in range(_STEPS):
        below = known * _STEP**step
        above = below * (_STEP if step < _STEPS - 1 else _UNLIMITED)
        room = count * np.maximum(above - beside, 0.0) / each
        least = np.minimum(least, (m - 1.0) * below + _filled_s(each, room, forced, layers))
    ends = least + (p - 1) * beside + floors.least(floors.ends_s) + floors.least(floors.any_tail_s)
    with np.errstate(invalid="ignore"):
        found = floors.least(floors.straggler) * ends + floors.least(floors.fixed_s)
    return np.asarray(np.where(np.isfinite(slowest_s), found * SAFETY**2, np.inf))


def _stages(
    floors: Floors, groups: IntArray | None, p: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of a layer, most stages and least layers by group, fastest first, (G, n).

    Without ``groups`` every berth that has room has a stage with a layer.
    """
    if groups is not None:
        each, count = counts_of(floors, groups, p)
        return np.where(np.isfinite(each), each, 1.0), count, np.zeros_like(count)
    present = floors.room > 0
    each = np.where(present, floors.layer_s, np.inf)
    order = np.argsort(each, axis=0, kind="stable")
    each = np.take_along_axis(each, order, axis=0)
    forced = np.take_along_axis(present, order, axis=0).astype(np.float64)
    room = np.take_along_axis(np.maximum(floors.room - 1, 0), order, axis=0)
    upto = np.minimum(np.cumsum(room, axis=0), p - present.sum(axis=0))
    count = np.diff(upto, axis=0, prepend=0) + forced
    return np.where(np.isfinite(each), each, 1.0), count, forced


def _filled_s(each: FloatArray, room: FloatArray, forced: FloatArray, layers: int) -> FloatArray:
    """Seconds of all layers, the fastest berths filled first; +inf where they have no room, (n,)."""
    free = np.cumsum(np.maximum(room - forced, 0.0), axis=0)
    taken = np.diff(np.minimum(free, layers - forced.sum(axis=0)), axis=0, prepend=0.0)
    placed = (taken + forced).sum(axis=0) * (1.0 + 1e-9) >= layers
    return np.asarray(np.where(placed, ((taken + forced) * each).sum(axis=0), np.inf))
