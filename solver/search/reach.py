"""Which rows could step faster than a given time: whole layers, memory, and the bounds (A) to (D).

For layers of one kind. Given a time Z, ranks are filled one after the other with as many layers as the
bounds of ``bounds`` and their memory allow. What the bounds leave a rank depends on the layers before it
and on its own alone, and one layer more before it takes at most one layer from it: (A) and (C) grow by at
most one layer's time, which costs the rank at most 1 / m of a layer, and (D) shrinks. So more layers
before a rank never leave fewer for it and those before it together, and the fill reaches layer L
exactly if some split keeps every bound below Z. Rank 0's tail depends on its layers, so every number of
them is tried side by side.

Where chunks interleave (chunks of a rank differ by at most one layer, the model's first and last may
hold fewer), a chunk of a rank of n layers holds at least (n - v + 1) / v of them and at least the
smallest chunk. (A) and (C) pass the first chunks of the ranks before, (B) and (D) the last ones of those
behind, and of the layers that ran before the first backward pass at most ``_early_layers`` were a
rank's own. That makes the bounds weaker, and keeps them valid for every split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.cost.schedule import in_flight
from solver.search.bounds import SAFETY, end_tail_s, whole_layers_s
from solver.search.caps import Caps, layer_caps
from solver.search.mixed import can_beat_mixed
from solver.search.rows import Rows

_BATCH = 256
_BISECTIONS = 30
_ROUNDING = 1e-9  # of a layer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fill:
    """One batch of rows and the tries of rank 0's layers, (1, L)."""

    rows: Rows
    caps: Caps
    tries: FloatArray
    limit_s: FloatArray  # (n, 1) end + tail of the slowest rank
    tail_s: FloatArray  # (n, L) of rank 0

    @classmethod
    def of(cls, rows: Rows, step_s: FloatArray) -> _Fill:
        """Ready to fill within ``step_s``, shape (n,)."""
        prices = rows.prices
        tries = np.arange(1, rows.layout.num_layers + 1, dtype=np.float64)[None, :]
        limit = (step_s / SAFETY**2 - prices.fixed_s) / prices.straggler
        tail = _column(end_tail_s(rows)) + tries * _column(prices.tail_s[:, 0])
        return cls(rows=rows, caps=layer_caps(rows), tries=tries, limit_s=_column(limit), tail_s=tail)


def _column(values: FloatArray | IntArray) -> FloatArray:
    """(n,) as (n, 1) floats."""
    return values.astype(np.float64)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """What one rank takes beside its layers, columns of shape (n, 1); seconds of a micro-batch."""

    time_s: FloatArray
    forward_s: FloatArray
    tail_s: FloatArray

    @classmethod
    def of(cls, rows: Rows, rank: int) -> _Rank:
        """Rank ``rank`` of every row."""
        prices, last = rows.prices, rows.p == rank + 1
        time = rows.v * rows.chunk_s + np.where(last, rows.head_s, 0.0)
        forward = rows.v * prices.transfer_s + np.where(last, prices.forward_s[:, -1], 0.0)
        tail = prices.rank_tail_s + np.where(last, prices.tail_s[:, -1], 0.0)
        if rank == 0:
            time, forward = time + rows.embedding_s, forward + prices.forward_s[:, -2]
            tail = tail + prices.tail_s[:, -2]
        return cls(time_s=_column(time), forward_s=_column(forward), tail_s=_column(tail))


def _first_chunks(fill: _Fill, rank: int, used: FloatArray) -> FloatArray:
    """Least number of layers in the first chunks of the ranks before ``rank``, (n, L)."""
    if rank == 0:
        return np.zeros_like(used)
    v, smallest = _column(fill.rows.v), _column(fill.rows.smallest_chunk)
    share = (used - fill.tries - (rank - 1) * (v - 1.0)) / v
    chunks = smallest + np.maximum(share, (rank - 1) * smallest)
    return np.where(v == 1.0, used, chunks)


def _chain_layers(fill: _Fill, rank: int, used: FloatArray, own: _Rank) -> FloatArray:
    """Layers that (A) and (C) let a rank hold behind ``used`` layers, (n, L)."""
    rows, prices = fill.rows, fill.rows.prices
    first, each, m = _first_chunks(fill, rank, used), _column(rows.layer_s[:, 0]), _column(rows.m)
    there, both = first * _column(prices.forward_s[:, 0]), first * each
    if rank:
        there = there + _column(prices.forward_s[:, -2] + rank * prices.transfer_s)
        both = both + _column(rows.embedding_s + rank * rows.chunk_s)
    back = (fill.limit_s - fill.tail_s - both) / m - own.time_s
    away = fill.limit_s - there - own.tail_s - m * own.time_s
    return np.minimum(back / each, away / (m * each + _column(prices.tail_s[:, 0])))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Early:
    """What a rank ran forward before its first backward pass, columns of shape (n, 1).

    Of n layers at most ``slope * n + offset`` passes, and ``beside_s`` of what is not layers.
    """

    slope: FloatArray
    offset: FloatArray
    beside_s: FloatArray


def _early(rows: Rows, rank: int) -> _Early:
    """The most that can have run early on rank ``rank``.

    Chunks that differ by at most one layer hold most early passes when the first ones, which keep most
    micro-batches in flight, are the larger ones. The last chunk of the last rank may be smaller still:
    there every layer is counted as if it sat in the first.
    """
    held, prices = in_flight(rows.columns), rows.prices
    chunk = np.arange(int(rows.v.max(initial=1)))[None, :]
    index = np.minimum(chunk * rows.p[:, None] + rank, held.shape[1] - 1)
    there = (chunk < rows.v[:, None]) & (rank < rows.p)[:, None]
    own = np.where(there, np.take_along_axis(held, index, axis=1), 0).astype(np.float64)
    passes, last = own.sum(axis=1), rows.p == rank + 1
    more = np.where(there, np.cumsum(own, axis=1) - (chunk + 1) * (passes / rows.v)[:, None], 0.0)
    loose = last & (rows.v > 1)
    final = np.take_along_axis(own, rows.v[:, None] - 1, axis=1)[:, 0]
    beside = prices.transfer_s * passes + np.where(last, final * prices.forward_s[:, -1], 0.0)
    return _Early(
        slope=_column(np.where(loose, own[:, 0], passes / rows.v)),
        offset=_column(np.where(loose, 0.0, more.max(axis=1))),
        beside_s=_column(beside + (rank == 0) * own[:, 0] * prices.forward_s[:, -2]),
    )


def _first_backward_s(fill: _Fill, rank: int, used: FloatArray) -> FloatArray:
    """When a rank's first backward pass starts at the earliest, without what its layers shorten, (n, L).

    All forward passes of the first micro-batch, and the backward passes of the last chunks behind it.
    """
    rows, prices, layers = fill.rows, fill.rows.prices, fill.rows.layout.num_layers
    forward, v = _column(prices.forward_s[:, 0]), _column(rows.v)
    ends = prices.forward_s[:, -2] + prices.forward_s[:, -1] + rows.p * rows.v * prices.transfer_s
    behind = np.maximum(_column(rows.p) - rank - 1.0, 0.0)
    chunks = np.where(v == 1.0, layers - used, behind * _column(rows.smallest_chunk))
    back = chunks * (_column(rows.layer_s[:, 0]) - forward) + behind * _column(_back_s(rows))
    head = np.where(behind > 0.0, _column(rows.head_s - prices.forward_s[:, -1]), 0.0)
    return np.asarray(layers * forward + _column(ends) + back + head)


def _back_s(rows: Rows) -> FloatArray:
    """Backward time of a chunk beside its layers, shape (n,)."""
    return np.asarray(rows.chunk_s - rows.prices.transfer_s)


def _return_layers(fill: _Fill, rank: int, used: FloatArray, own: _Rank) -> FloatArray:
    """Layers that (B) and (D) let a rank hold behind ``used`` layers, (n, L)."""
    rows, prices, m = fill.rows, fill.rows.prices, _column(fill.rows.m)
    forward, each, tail = _column(prices.forward_s[:, 0]), _column(rows.layer_s[:, 0]), prices.tail_s[:, 0]
    early = _early(rows, rank)
    end = _first_backward_s(fill, rank, used) + m * own.time_s - early.beside_s - forward * early.offset
    way_back = _first_chunks(fill, rank, used) * (each - forward)
    if rank:
        way_back = way_back + _column(rows.embedding_s - prices.forward_s[:, -2] + rank * _back_s(rows))
    slope = m * each - forward * early.slope - np.where(_column(rows.v) == 1.0, each - forward, 0.0)
    back = _share(fill.limit_s - fill.tail_s - end - way_back, slope)
    return np.minimum(back, _share(fill.limit_s - own.tail_s - end, slope + _column(tail)))


def _share(room_s: FloatArray, each_s: FloatArray) -> FloatArray:
    """Layers in a time; without limit where they take none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(each_s > 0.0, room_s / each_s, np.where(room_s >= 0.0, np.inf, -1.0))


def _can_beat(fill: _Fill) -> BoolArray:
    """Whether the bounds leave a split of a row that steps within the fill's time, shape (n,)."""
    rows, caps, num_layers = fill.rows, fill.caps, fill.rows.layout.num_layers
    used = np.zeros(fill.tail_s.shape)
    alive: BoolArray = np.ones(used.shape, dtype=np.bool_)
    for rank in range(int(rows.p.max(initial=1))):
        present, own = (rows.p > rank)[:, None], _Rank.of(rows, rank)
        low, high = _column(caps.least[:, rank]), _column(caps.most[:, rank])
        room = np.minimum(_chain_layers(fill, rank, used, own), _return_layers(fill, rank, used, own))
        behind = _column(caps.least[:, rank + 1 :].sum(axis=1))
        take = np.floor(np.minimum(np.minimum(room + _ROUNDING, high), num_layers - behind - used))
        if rank == 0:
            alive = np.asarray((fill.tries <= take) & (fill.tries >= low))
            take = np.broadcast_to(fill.tries, take.shape)
        alive = alive & np.asarray((take >= low) | ~present)
        used = used + np.where(present & alive, take, 0.0)
    return np.asarray((alive & (used >= num_layers)).any(axis=1))


def _batches(rows: Rows) -> list[IntArray]:
    """Index batches of rows with like pipelines."""
    order = np.argsort(rows.p, kind="stable")
    return [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]


def can_beat(rows: Rows, step_s: FloatArray) -> BoolArray:
    """Whether a row may have a split that simulates to ``step_s`` or less; False is a proof."""
    if not rows.is_uniform:
        return can_beat_mixed(rows, step_s)
    answer = np.asarray(whole_layers_s(rows) * SAFETY <= step_s)
    answer &= layer_caps(rows).feasible(rows.layout.num_layers)
    filled = np.flatnonzero(answer & ~rows.splits_backward)
    for batch in _batches(rows.take(filled)):
        index = filled[batch]
        answer[index] = _can_beat(_Fill.of(rows.take(index), step_s[index]))
    return answer


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
    for _ in range(_BISECTIONS):
        tick()
        middle = (low + high) / 2.0
        able = np.flatnonzero(can_beat(left, np.full(len(left), middle)))
        if len(able):
            left, high = left.take(able), middle
        else:
            low = middle
    return low
