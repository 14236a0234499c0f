"""Which rows could step faster than a given time: whole layers, memory, and the bounds (A)-(D) and (H).

For layers of one kind. Given a time Z, ranks are filled one after the other with as many layers as the
bounds of ``bounds`` and their memory allow. What the bounds leave a rank depends on the layers before it
and on its own alone, and one layer more before it takes at most one layer from it: (A) and (C) grow by at
most one layer's time, which costs the rank at most 1 / m of a layer, and (D) and (H) shrink. So more layers
before a rank never leave fewer for it and those before it together, and the fill reaches layer L
exactly if some split keeps every bound below Z. Rank 0's tail depends on its layers, so every number of
them is tried side by side.

Where chunks interleave (chunks of a rank differ by at most one layer, the model's first and last may
hold fewer), a chunk of a rank of n layers holds at least (n - v + 1) / v of them and at least the
smallest chunk. (A) and (C) pass the first chunks of the ranks before, (B) and (D) the last ones of those
behind, and of the layers that ran before the first backward pass at most ``early`` were a
rank's own. That makes the bounds weaker, and keeps them valid for every split.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.cost.schedule import runs_all_forward_first
from solver.search.bounds import SAFETY, in_turn, whole_layers_s
from solver.search.caps import layer_caps
from solver.search.early import Early
from solver.search.fill import Fill, share_of
from solver.search.mixed import can_beat_mixed
from solver.search.per_stage import can_be_busy
from solver.search.rank_costs import RankCosts, column
from solver.search.reach_split import room_of_split
from solver.search.rows import Rows
from solver.search.watch import look

_BATCH = 256
_ROUNDING = 1e-9  # of a layer
_CLOSE = 1e-5  # share of a time up to which it is bisected


def _chain_layers(fill: Fill, rank: int, used: FloatArray, own: RankCosts) -> FloatArray:
    """Layers that (A) and (C) let a rank hold behind ``used`` layers, (n, L)."""
    rows, prices = fill.rows, fill.rows.prices
    first, each, m = fill.first_chunks(rank, used), column(rows.layer_s[:, 0]), column(rows.m)
    there, both = first * column(prices.forward_s[:, 0]), first * each
    if rank:
        there = there + column(prices.forward_s[:, -2] + rank * prices.transfer_s)
        both = both + column(rows.embedding_s + rank * rows.chunk_s)
    back = (fill.limit_s - fill.tail_s - both) / m - own.time_s
    away = fill.limit_s - there - own.tail_s - m * own.time_s
    return np.minimum(back / each, away / (m * each + column(prices.tail_s[:, 0])))


def _first_backward_s(fill: Fill, rank: int, used: FloatArray) -> FloatArray:
    """When a rank's first backward pass starts at the earliest, without what its layers shorten, (n, L).

    All forward passes of the first micro-batch, and the backward passes of the last chunks behind it.
    """
    rows, prices, layers = fill.rows, fill.rows.prices, fill.rows.layout.num_layers
    forward, v = column(prices.forward_s[:, 0]), column(rows.v)
    ends = prices.forward_s[:, -2] + prices.forward_s[:, -1] + rows.p * rows.v * prices.transfer_s
    behind = np.maximum(column(rows.p) - rank - 1.0, 0.0)
    chunks = np.where(v == 1.0, layers - used, behind * column(rows.smallest_chunk))
    back = chunks * (column(rows.layer_s[:, 0]) - forward) + behind * column(_back_s(rows))
    head = np.where(behind > 0.0, column(rows.head_s - prices.forward_s[:, -1]), 0.0)
    return np.asarray(layers * forward + column(ends) + back + head)


def _back_s(rows: Rows) -> FloatArray:
    """Backward time of a chunk beside its layers, shape (n,)."""
    return np.asarray(rows.chunk_s - rows.prices.transfer_s)


def _return_layers(fill: Fill, rank: int, used: FloatArray, own: RankCosts) -> FloatArray:
    """Layers that (B), (D) and (H) let a rank hold behind ``used`` layers, (n, L)."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    forward, each, tail = column(prices.forward_s[:, 0]), column(rows.layer_s[:, 0]), prices.tail_s[:, 0]
    early = Early.of(rows, rank)
    end = _first_backward_s(fill, rank, used) + m * own.time_s - early.beside_s - forward * early.offset
    way_back = fill.first_chunks(rank, used) * (each - forward)
    if rank:
        way_back = way_back + column(rows.embedding_s - prices.forward_s[:, -2] + rank * _back_s(rows))
    slope = m * each - forward * early.slope - np.where(column(rows.v) == 1.0, each - forward, 0.0)
    back = share_of(fill.limit_s - fill.tail_s - end - way_back, slope)
    late = np.minimum(back, share_of(fill.limit_s - own.tail_s - end, slope + column(tail)))
    return np.minimum(late, _steady_layers(fill, rank, used, own, way_back))


def _steady_layers(
    fill: Fill, rank: int, used: FloatArray, own: RankCosts, way_back: FloatArray
) -> FloatArray:
    """Layers that (H) lets a rank hold behind ``used`` layers, (n, L); no limit where it is not theirs.

    2 sum T + (m - w_s - 1) T_s - sum_{u<s} T_u is within the time left, with the way back and without it:
    more layers before the rank leave it more room.
    """
    rows, each = fill.rows, column(fill.rows.layer_s[:, 0])
    turns = rows.m - np.minimum(rows.m, rows.p - rank) - 1.0
    theirs = column(in_turn(rows) & (turns >= 0.0) & (rows.p > rank)) > 0.0
    if not theirs.any():
        return np.full_like(used, np.inf)
    before = used * each + (column(rows.embedding_s + rank * rows.chunk_s) if rank else 0.0)
    slope = np.maximum(column(turns), 0.0)
    end = 2.0 * column(rows.total_s) - before + slope * own.time_s
    home = share_of(fill.limit_s - fill.tail_s - end, slope * each)
    away = fill.limit_s - own.tail_s - end + way_back
    away = share_of(away, slope * each + column(rows.prices.tail_s[:, 0]))
    return np.where(theirs, np.minimum(home, away), np.inf)


def _all_first_layers(fill: Fill, rank: int, used: FloatArray, own: RankCosts) -> FloatArray:
    """Layers that (B') lets a rank hold behind ``used`` layers, (n, L); no limit where it is not theirs.

    The last chunks of the ranks behind hold at least the smallest number of layers each, and those between
    the rank and the last one, whose last chunk may be smaller, their share of all layers that are left.
    """
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    theirs = column(runs_all_forward_first(rows.columns)) > 0.0
    if not theirs.any():
        return np.full_like(used, np.inf)
    v, smallest, each = column(rows.v), column(rows.smallest_chunk), column(rows.layer_s[:, 0])
    behind = np.maximum(column(rows.p) - rank - 1.0, 0.0)
    between = np.where(v == 1.0, 0.0, np.maximum(behind - 1.0, 0.0))
    first, beside = fill.first_chunks(rank, used), m * own.time_s + behind * column(rows.chunk_s)
    beside = beside + np.where(behind > 0.0, column(rows.head_s), 0.0)
    ahead = column(prices.forward_s[:, -2] + rank * prices.transfer_s) if rank else 0.0
    both = column(rows.embedding_s + rank * rows.chunk_s) if rank else 0.0
    home = fill.limit_s - fill.tail_s - beside - both - first * each
    away = fill.limit_s - own.tail_s - beside - ahead - first * column(prices.forward_s[:, 0])
    last = np.where(v == 1.0, 0.0, _most_on_the_last(fill))
    shared = (rows.layout.num_layers - used - last - between * (v - 1.0)) / v
    shared = shared + np.where(v == 1.0, 0.0, smallest)
    tail, most = column(prices.tail_s[:, 0]), np.full_like(used, np.inf)
    for chunks, own_share in ((behind * smallest, 0.0), (shared, 1.0 / v)):
        slope, wait = (m - own_share) * each, chunks * each
        room = np.minimum(share_of(home - wait, slope), share_of(away - wait, slope + tail))
        most = np.minimum(most, np.where(behind > 0.0, room, np.inf))
    return np.where(theirs, most, np.inf)


def _most_on_the_last(fill: Fill) -> FloatArray:
    """Most layers that the last rank can work off behind the smallest chunks, (n, 1)."""
    rows, prices = fill.rows, fill.rows.prices
    ahead = (rows.p - 1) * (rows.smallest_chunk * prices.forward_s[:, 0] + prices.transfer_s)
    beside = rows.m * (rows.v * rows.chunk_s + rows.head_s) + prices.rank_tail_s + prices.tail_s[:, -1]
    each = rows.m * rows.layer_s[:, 0] + prices.tail_s[:, 0]
    most = (fill.limit_s - column(ahead + beside)) / column(each)
    return np.asarray(np.maximum(np.floor(most + _ROUNDING), 0.0))


def _room(fill: Fill, rank: int, used: FloatArray, own: RankCosts) -> FloatArray:
    """Layers that the bounds let a rank hold behind ``used`` layers, (n, L)."""
    room = np.minimum(_chain_layers(fill, rank, used, own), _return_layers(fill, rank, used, own))
    return np.minimum(room, _all_first_layers(fill, rank, used, own))


def _batches(rows: Rows) -> list[IntArray]:
    """Index batches of rows with like pipelines."""
    order = np.argsort(rows.p, kind="stable")
    return [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]


def can_beat(rows: Rows, step_s: FloatArray) -> BoolArray:
    """Whether a row may have a split that simulates to ``step_s`` or less; False is a proof."""
    if not rows.is_uniform:
        return can_beat_mixed(rows, step_s)
    answer = np.asarray(whole_layers_s(rows) * SAFETY <= step_s)
    caps = layer_caps(rows)
    answer &= caps.feasible(rows.layout.num_layers)
    own = np.flatnonzero(answer & rows.per_stage)
    answer[own] = can_be_busy(rows.take(own), step_s[own])
    for room, which in ((_room, ~rows.splits_backward), (room_of_split, rows.splits_backward)):
        asked = np.flatnonzero(answer & which)
        for batch in _batches(rows.take(asked)):
            look()
            index = asked[batch]
            some = rows.take(index)
            few = caps.take(index, int(some.p.max()))
            answer[index] = Fill.of(some, step_s[index], few).reaches(room)
    return answer


def most_layers(row: Rows, step_s: float) -> IntArray:
    """Most layers of each rank of one row, shape (p,), with which its bounds may keep ``step_s``.

    Memory is left aside.
    """
    room = room_of_split if row.splits_backward[0] else _room
    return Fill.of(row, np.array([step_s]), layer_caps(row)).most(room)


def least_bound_s(
    rows: Rows, low_s: float, high_s: float, tick: Callable[[], object] = lambda: None
) -> float:
    """Third tier over several rows: no split of any of them simulates faster; at most ``high_s``.

    Bisects between ``low_s``, a valid bound of all of them, and ``high_s``. Rows that cannot beat the
    middle while others can are left behind: their own bound is above the answer. ``tick`` is called
    between two steps.
    """
    low, high = low_s, high_s
    left = rows.take(np.flatnonzero(can_beat(rows, np.full(len(rows), high))))
    if not len(left):
        return high
    while high - low > _CLOSE * high:
        tick()
        middle = (low + high) / 2.0
        able = np.flatnonzero(can_beat(left, np.full(len(left), middle)))
        if len(able):
            left, high = left.take(able), middle
        else:
            low = middle
    return low
