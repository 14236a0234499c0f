"""Which rows that split the backward pass could step faster than a given time, for layers of one kind.

As in ``reach`` ranks are filled one after the other with as many layers as the bounds (``split_backward``)
and their memory allow. (E) limits each rank by itself. (F) counts where chunks lie in loops: without
interleaving, with n layers on rank s behind ``used`` others, f, i and t the forward pass, the input
gradient and the whole time of a layer,

  (L - used) f + (L - used - n) i + m n t - held n f + (what is not layers) + tail_s <= Z,

in which more layers before the rank leave it more room; with interleaving, where ranks also wait for one
another between steps, all forward passes of a micro-batch, the least chunks behind, and what can have run
early (``Early``). In a V the ranks before a rank hold first chunks before its own and second chunks behind
them, those of the least number y of layers: (L - used + y) f + y i pass before the rank's own work. So the
fill reaches all layers if some split keeps both within Z.
"""

from __future__ import annotations

import numpy as np

from solver.columns import SCHEDULES, BoolArray, FloatArray, IntArray
from solver.cost.schedule import BYPASSES_SYNC
from solver.search.bounds import SAFETY
from solver.search.caps import Caps
from solver.search.early import Early
from solver.search.rank_costs import RankCosts, column
from solver.search.rows import Rows

_BYPASSES = np.array([name in BYPASSES_SYNC for name in SCHEDULES])
_ROUNDING = 1e-9  # of a layer


def can_beat_split(rows: Rows, caps: Caps, step_s: FloatArray) -> BoolArray:
    """Whether a row may have a split that simulates to ``step_s`` or less, shape (n,); False is a proof."""
    num_layers, limit = rows.layout.num_layers, column(_limit_s(rows, step_s))
    used, alive = np.zeros((len(rows), 1)), np.ones((len(rows), 1), dtype=np.bool_)
    for rank in range(int(rows.p.max(initial=1))):
        present, own = column(rows.p > rank) > 0.0, RankCosts.of(rows, rank)
        low, high = column(caps.least[:, rank]), column(caps.most[:, rank])
        late = _late_layers(rows, rank, own, limit, used)
        room = np.minimum(_busy_layers(rows, rank, own, limit), late)
        behind = column(caps.least[:, rank + 1 :].sum(axis=1))
        take = np.floor(np.minimum(np.minimum(room + _ROUNDING, high), num_layers - behind - used))
        alive &= (take >= low) | ~present
        used = used + np.where(present & alive, take, 0.0)
    return np.asarray((alive & (used >= num_layers))[:, 0])


def _limit_s(rows: Rows, step_s: FloatArray) -> FloatArray:
    """End and tail of the slowest rank within a step, shape (n,)."""
    return np.asarray((step_s / SAFETY**2 - rows.prices.fixed_s) / rows.prices.straggler)


def _start_s(rows: Rows, rank: int) -> FloatArray:
    """The least time before a rank's first pass, (n, 1); 0 where it counts from its own."""
    shortest = rows.smallest_chunk * rows.prices.forward_s[:, 0] + rows.prices.transfer_s
    start = rank * shortest + (rank > 0) * rows.prices.forward_s[:, -2]
    return column(np.where(_BYPASSES[rows.columns.pipeline_schedule], 0.0, start))


def _busy_layers(rows: Rows, rank: int, own: RankCosts, limit: FloatArray) -> FloatArray:
    """Layers that (E) lets a rank hold, (n, 1)."""
    m, each = column(rows.m), column(rows.layer_s[:, 0])
    room = limit - _start_s(rows, rank) - own.tail_s - m * own.time_s
    return np.asarray(room / (m * each + column(rows.prices.tail_s[:, 0])))


def _late_layers(rows: Rows, rank: int, own: RankCosts, limit: FloatArray, used: FloatArray) -> FloatArray:
    """Layers that (F) lets a rank hold behind others, (n, 1); of a V what ``_late_in_a_v`` says."""
    prices, m, single = rows.prices, column(rows.m), column(rows.v) == 1.0
    forward, tail = column(prices.forward_s[:, 0]), column(prices.tail_s[:, 0])
    back = _input_gradient_s(rows)
    early, behind = Early.of(rows, rank), np.maximum(column(rows.p) - rank - 1.0, 0.0)
    left = rows.layout.num_layers - np.where(single, used, 0.0)
    layers = np.where(single, left, behind * column(rows.smallest_chunk))
    wait = left * forward + layers * back + _wait_beside_s(rows, np.where(rows.v == 1, rank, 0), behind)
    end = wait + m * own.time_s - early.beside_s - forward * early.offset
    slope = m * column(rows.layer_s[:, 0]) - forward * early.slope - np.where(single, back, 0.0) + tail
    room = _share(limit - own.tail_s - end, slope)
    if not rows.in_a_v.any():
        return room
    return np.where(column(rows.in_a_v) > 0.0, _late_in_a_v(rows, rank, own, limit, used), room)


def _late_in_a_v(rows: Rows, rank: int, own: RankCosts, limit: FloatArray, used: FloatArray) -> FloatArray:
    """The same in a V: first chunks of the ranks before lie before its own, second ones behind."""
    prices, m, least = rows.prices, column(rows.m), rank * column(rows.smallest_chunk)
    forward = column(prices.forward_s[:, 0])
    early, ahead = Early.in_a_v(rows, rank), np.full(len(rows), rank)
    wait = (rows.layout.num_layers - used + least) * forward + least * _input_gradient_s(rows)
    wait = wait + _wait_beside_s(rows, ahead, column(ahead)) + _start_s(rows, rank)
    end = wait + m * own.time_s - early.beside_s - forward * early.offset
    slope = m * column(rows.layer_s[:, 0]) - forward * early.slope + column(prices.tail_s[:, 0])
    return _share(limit - own.tail_s - end, slope)


def _share(room_s: FloatArray, each_s: FloatArray) -> FloatArray:
    """Layers in a time; without limit where they take none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(each_s > 0.0, room_s / each_s, np.inf)


def _input_gradient_s(rows: Rows) -> FloatArray:
    """Input gradient of a layer, (n, 1)."""
    prices = rows.prices
    return column(rows.layer_s[:, 0] - prices.forward_s[:, 0] - prices.weight_gradient_s[:, 0])


def _wait_beside_s(rows: Rows, ahead: IntArray, behind: FloatArray) -> FloatArray:
    """What is not layers of the passes that a rank's first input gradient waits for, (n, 1).

    ``ahead``: chunks that a rank starts behind, which do not count; ``behind``: those that pass back.
    """
    prices = rows.prices
    passed = (rows.p * rows.v - ahead) * prices.transfer_s + prices.forward_s[:, -1]
    passed = passed + np.where(ahead == 0, prices.forward_s[:, -2], 0.0)
    home = prices.backward_s[:, -1] - prices.weight_gradient_s[:, -1]
    return column(passed) + behind * column(prices.transfer_s) + (behind > 0.0) * column(home)
