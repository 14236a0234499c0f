"""The fill: ranks take as many layers as the bounds and their memory leave them, one after the other.

For layers of one kind and a time Z. What a bound leaves a rank depends on the layers before it and on its
own alone. Where one layer more before it takes at most one layer from it, more layers before a rank never
leave fewer for it and those before it together, so that the fill reaches layer L if some split keeps every
bound within Z. Rank 0's tail depends on its layers, so every number of them is tried side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import SCHEDULES, BoolArray, FloatArray, IntArray
from meshwright.solver.schedules.schedule import BYPASSES_SYNC, runs_all_forward_first
from meshwright.solver.search.bounds import SAFETY, Early, end_limit_s, in_turn, whole_layers_s
from meshwright.solver.search.fill_kinds import can_beat_mixed
from meshwright.solver.search.memory_limits import Caps, layer_caps
from meshwright.solver.search.recompute_by_stage import can_be_busy
from meshwright.solver.search.rows import RankCosts, Rows, column, share_of

_ROUNDING = 1e-9  # of a layer
# Layers that the bounds let a rank hold behind others: fill, rank, layers used so far (n, L), its costs.
Room: TypeAlias = "Callable[[Fill, int, FloatArray, RankCosts], FloatArray]"


@dataclass(frozen=True, kw_only=True)
class Fill:
    """One batch of rows and the tries of rank 0's layers, (1, L)."""

    rows: Rows
    caps: Caps
    tries: FloatArray
    limit_s: FloatArray  # (n, 1) end + tail of the slowest rank
    tail_s: FloatArray  # (n, L) of rank 0

    @classmethod
    def of(cls, rows: Rows, step_s: FloatArray, caps: Caps) -> Fill:
        """Ready to fill within ``step_s``, shape (n,), under the memory that ``caps`` tell."""
        prices = rows.prices
        tries = np.arange(1, rows.layout.num_layers + 1, dtype=np.float64)[None, :]
        limit = end_limit_s(rows, step_s)
        tail = RankCosts.of(rows, 0).tail_s + tries * column(prices.tail_s[:, 0])
        return cls(rows=rows, caps=caps, tries=tries, limit_s=column(limit), tail_s=tail)

    @cached_property
    def first_end_s(self) -> FloatArray:
        """When rank 0 must have ended its passes, (n, L)."""
        return self.limit_s - self.tail_s

    def among(self, tried: BoolArray) -> Fill:
        """The same with some of the tries."""
        return replace(self, tries=self.tries[:, tried], tail_s=self.tail_s[:, tried])

    def first_chunks(self, rank: int, used: FloatArray) -> FloatArray:
        """Least number of layers in the first chunks of the ranks before ``rank``, (n, L).

        A chunk of a rank of n layers holds at least (n - v + 1) / v of them; rank 0's first the smallest.
        """
        if rank == 0:
            return np.zeros_like(used)
        v, smallest = column(self.rows.v), column(self.rows.smallest_chunk)
        share = (used - self.tries - (rank - 1) * (v - 1.0)) / v
        chunks = smallest + np.maximum(share, (rank - 1) * smallest)
        return np.where(v == 1.0, used, chunks)

    @cached_property
    def in_chunks(self) -> FloatArray:
        """Layers that (P) lets any rank hold, (n, L): its largest chunk has a v-th of them, rounded up."""
        rows, prices = self.rows, self.rows.prices
        forward, home = prices.forward_s[:, 0], rows.input_gradient_s[:, 0]
        beside = rows.chunk_s - prices.transfer_s
        first = runs_all_forward_first(rows.columns)
        each = np.where(first, forward + home, np.maximum(forward, home))
        beside = np.where(
            first, prices.transfer_s + beside, np.where(forward > home, prices.transfer_s, beside)
        )
        last = np.minimum(prices.weight_gradient_s, prices.backward_s)
        end = rows.path_s + (rows.m - 1.0) * beside + rows.smallest_chunk * last[:, 0] + last[:, -2]
        room = share_of(self.first_end_s - column(end), column((rows.m - 1.0) * each))
        return np.asarray(column(rows.v) * np.floor(room + _ROUNDING))

    def reaches(self, room: Room) -> BoolArray:
        """Whether the ranks find room for all layers, shape (n,)."""
        fill, rows, caps, num_layers = self, self.rows, self.caps, self.rows.layout.num_layers
        used = np.zeros(self.tail_s.shape)
        alive: BoolArray = np.ones(used.shape, dtype=np.bool_)
        for rank in range(int(rows.p.max(initial=1))):
            present, own = (rows.p > rank)[:, None], RankCosts.of(rows, rank)
            low, high = column(caps.least[:, rank]), column(caps.most[:, rank])
            most = np.minimum(np.minimum(room(fill, rank, used, own) + _ROUNDING, high), fill.in_chunks)
            behind = column(caps.least[:, rank + 1 :].sum(axis=1))
            take = np.floor(np.minimum(most, num_layers - behind - used))
            if rank == 0:
                alive = np.asarray((fill.tries <= take) & (fill.tries >= low))
                tried = np.asarray(alive.any(axis=0))  # a few of them in most cases
                fill, alive, used = fill.among(tried), alive[:, tried], used[:, tried]
                take = np.broadcast_to(fill.tries, used.shape)
            alive = alive & np.asarray((take >= low) | ~present)
            used = used + np.where(present & alive, take, 0.0)
        return np.asarray((alive & (used >= num_layers)).any(axis=1))

    def most(self, room: Room) -> IntArray:
        """Most layers that each rank of one row may hold, (p,), whatever lies before it; memory aside."""
        p, num_layers = int(self.rows.p[0]), self.rows.layout.num_layers
        least = int(self.rows.v[0] * self.rows.smallest_chunk[0])
        own, nothing = RankCosts.of(self.rows, 0), np.zeros(self.tail_s.shape)
        tried = (np.floor(room(self, 0, nothing, own) + _ROUNDING) >= self.tries)[0]
        if not tried.any():
            return np.zeros(p, dtype=np.int64)
        fill, most = self.among(tried), [self.tries[0, tried].max()]
        used = np.tile(np.arange(num_layers + 1.0), fill.tries.shape[1])[None, :]
        fill = replace(
            fill,
            tries=np.repeat(fill.tries, num_layers + 1, axis=1),
            tail_s=np.repeat(fill.tail_s, num_layers + 1, axis=1),
        )
        for rank in range(1, p):
            own = RankCosts.of(self.rows, rank)
            there = used >= fill.tries + (rank - 1) * least
            take = np.minimum(
                room(fill, rank, used, own) + _ROUNDING, num_layers - used - (p - 1 - rank) * least
            )
            most.append(max(float(np.floor(take[there]).max(initial=0.0)), 0.0))
        return np.array(most).astype(np.int64)


# --------------------------------------------------------------------------------------------------
# What the bounds of split backward passes leave a rank, for layers of one kind (``fill``).
#
# Ranks take as many layers as (E), (F), (G) and (K) of ``split_backward`` and their memory allow. f, i, w
# and t are a layer's forward pass, input gradient, weight gradient and whole time; n layers on rank s lie
# behind ``used`` others; what is not layers is left out here.
#
# (E) m n t + tail_s <= Z by itself.
# (F) (L - used) f + (L - used - n) i + m n t - held n f + tail_s <= Z without chunks: more layers before
#   the
#     rank leave it more room. With chunks in loops, where ranks also wait for one another between steps,
#       all
#     forward passes of a micro-batch, the least last chunks behind, and what can have run early
#       (``Early``).
#     In a V the ranks before a rank hold first chunks before its own and second chunks behind them, those
#       of
#     the least number y of layers: (L - used + y) f + y i pass before the rank's own work.
# (G) used (f + i) + m n (f + i) + w_0 + tail_0 <= Z without chunks; with chunks the least first chunks of
#   the
#     ranks before. One layer more there is worth 1 / m of a layer here.
# (K) L f + (L - n) i + m n (f + i) - held n f + w_0 + tail_0 <= Z without chunks, whatever lies before;
#   in
#     a V ``used`` takes the place of L - n, as each rank before has its chunks on both sides; one layer
#       more
#     of those is worth one layer here at most, as m i >= i of it is left. In loops the least first chunks
#     before and the least last ones behind.


_BYPASSES = np.array([name in BYPASSES_SYNC for name in SCHEDULES])


def room_of_split(fill: Fill, rank: int, used: FloatArray, own: RankCosts) -> FloatArray:
    """Layers that (E), (F), (G) and (K) let a rank hold behind ``used`` layers, (n, L)."""
    rows, shaped = fill.rows, column(fill.rows.in_a_v) > 0.0
    early = Early.of(rows, rank)
    late = np.minimum(
        _late_layers(fill, rank, own, used, early), _home_layers(fill, rank, own, used, early)
    )
    if shaped.any():
        early = Early.in_a_v(rows, rank)
        in_a_v = _late_in_a_v(fill, rank, own, used, early)
        in_a_v = np.minimum(in_a_v, _home_in_a_v(fill, rank, own, used, early))
        late = np.where(shaped, in_a_v, late)
    return np.minimum(
        np.minimum(_busy_layers(fill, rank, own), late), _split_chain_layers(fill, rank, own, used)
    )


def _start_s(rows: Rows, rank: int) -> FloatArray:
    """The least time before a rank's first pass, (n, 1); 0 where it counts from its own."""
    shortest = rows.smallest_chunk * rows.prices.forward_s[:, 0] + rows.prices.transfer_s
    start = rank * shortest + (rank > 0) * rows.prices.forward_s[:, -2]
    return column(np.where(_BYPASSES[rows.columns.pipeline_schedule], 0.0, start))


def _busy_layers(fill: Fill, rank: int, own: RankCosts) -> FloatArray:
    """Layers that (E) lets a rank hold, (n, 1)."""
    rows, m = fill.rows, column(fill.rows.m)
    room = fill.limit_s - _start_s(rows, rank) - own.tail_s - m * own.time_s
    return np.asarray(room / (m * column(rows.layer_s[:, 0]) + column(rows.prices.tail_s[:, 0])))


def _late_layers(fill: Fill, rank: int, own: RankCosts, used: FloatArray, early: Early) -> FloatArray:
    """Layers that (F) lets a rank hold behind others, (n, L), where chunks lie in loops or not at all."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    single, forward = column(rows.v) == 1.0, column(prices.forward_s[:, 0])
    back, behind = _input_gradient_s(rows), np.maximum(column(rows.p) - rank - 1.0, 0.0)
    left = rows.layout.num_layers - np.where(single, used, 0.0)
    layers = np.where(single, left, behind * column(rows.smallest_chunk))
    wait = left * forward + layers * back + _passed_s(rows, np.where(rows.v == 1, rank, 0))
    end = wait + _split_back_s(rows, behind, head=behind > 0.0) + m * own.time_s
    end = end - early.beside_s - forward * early.offset
    slope = m * column(rows.layer_s[:, 0]) - forward * early.slope - np.where(single, back, 0.0)
    return share_of(fill.limit_s - own.tail_s - end, slope + column(prices.tail_s[:, 0]))


def _late_in_a_v(fill: Fill, rank: int, own: RankCosts, used: FloatArray, early: Early) -> FloatArray:
    """The same in a V: first chunks of the ranks before lie before its own, second ones behind."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    forward, least, ahead = column(prices.forward_s[:, 0]), rank * column(rows.smallest_chunk), float(rank)
    wait = (rows.layout.num_layers - used + least) * forward + least * _input_gradient_s(rows)
    wait = wait + _passed_s(rows, np.full(len(rows), rank)) + _start_s(rows, rank)
    wait = wait + _split_back_s(rows, np.full_like(m, ahead), head=np.full_like(m, ahead) > 0.0)
    end = wait + m * own.time_s - early.beside_s - forward * early.offset
    slope = m * column(rows.layer_s[:, 0]) - forward * early.slope + column(prices.tail_s[:, 0])
    return share_of(fill.limit_s - own.tail_s - end, slope)


def _split_chain_layers(fill: Fill, rank: int, own: RankCosts, used: FloatArray) -> FloatArray:
    """Layers that (G) lets a rank hold behind others, (n, L)."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    both = column(prices.forward_s[:, 0]) + _input_gradient_s(rows)
    passed = fill.first_chunks(rank, used) * both
    if rank:
        passed = passed + column(prices.forward_s[:, -2] + rank * prices.transfer_s)
        passed = passed + _split_back_s(rows, np.full_like(m, float(rank)), embedding=np.ones_like(m) > 0.0)
    end = passed + m * _own_beside_s(rows, rank, own) + _last_weight_s(fill)
    return share_of(fill.first_end_s - end, m * both)


def _home_layers(fill: Fill, rank: int, own: RankCosts, used: FloatArray, early: Early) -> FloatArray:
    """Layers that (K) lets a rank hold behind others, (n, L), where chunks lie in loops or not at all."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    single, forward = column(rows.v) == 1.0, column(prices.forward_s[:, 0])
    back, behind = _input_gradient_s(rows), np.maximum(column(rows.p) - rank - 1.0, 0.0)
    layers, several = float(rows.layout.num_layers), behind * column(rows.smallest_chunk)
    passed = np.where(single, layers, several + fill.first_chunks(rank, used))
    ends = _split_back_s(rows, behind + rank, head=behind > 0.0, embedding=np.full_like(behind, rank) > 0.0)
    end = layers * forward + passed * back + _passed_s(rows, np.zeros(len(rows), dtype=np.int64)) + ends
    end = end + m * _own_beside_s(rows, rank, own) - early.beside_s - forward * early.offset
    end = end + _last_weight_s(fill)
    slope = m * (forward + back) - forward * early.slope - np.where(single, back, 0.0)
    return share_of(fill.first_end_s - end, slope)


def _home_in_a_v(fill: Fill, rank: int, own: RankCosts, used: FloatArray, early: Early) -> FloatArray:
    """The same in a V: every chunk of the ranks before lies before its own or behind them."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    forward, back = column(prices.forward_s[:, 0]), _input_gradient_s(rows)
    ends = np.full_like(m, float(rank))
    end = (
        rows.layout.num_layers * forward
        + used * back
        + _passed_s(rows, np.zeros(len(rows), dtype=np.int64))
    )
    end = end + _split_back_s(rows, 2.0 * ends, head=ends > 0.0, embedding=ends > 0.0)
    end = end + m * _own_beside_s(rows, rank, own) - early.beside_s - forward * early.offset
    slope = m * (forward + back) - forward * early.slope
    return share_of(fill.first_end_s - end - _last_weight_s(fill), slope)


def _input_gradient_s(rows: Rows) -> FloatArray:
    """Input gradient of a layer, (n, 1)."""
    prices = rows.prices
    return column(rows.layer_s[:, 0] - prices.forward_s[:, 0] - prices.weight_gradient_s[:, 0])


def _own_beside_s(rows: Rows, rank: int, own: RankCosts) -> FloatArray:
    """A rank's time of a micro-batch without layers and weight gradients, (n, 1)."""
    weight = rows.prices.weight_gradient_s
    head = np.where(rows.head_rank == rank, weight[:, -1], 0.0)
    return own.time_s - column(head + (rank == 0) * weight[:, -2])


def _last_weight_s(fill: Fill) -> FloatArray:
    """The least weight gradient of the model's first chunk, (n, L)."""
    rows, prices = fill.rows, fill.rows.prices
    layers = np.where(column(rows.v) == 1.0, fill.tries, column(rows.smallest_chunk))
    whole = np.minimum(prices.weight_gradient_s, prices.backward_s)
    return np.asarray(layers * column(whole[:, 0]) + column(whole[:, -2]))


def _passed_s(rows: Rows, ahead: IntArray) -> FloatArray:
    """What is not layers of the first micro-batch's forward passes but for ``ahead`` chunks, (n, 1)."""
    prices = rows.prices
    passed = (rows.p * rows.v - ahead) * prices.transfer_s + prices.forward_s[:, -1]
    return column(passed + np.where(ahead == 0, prices.forward_s[:, -2], 0.0))


def _split_back_s(
    rows: Rows,
    chunks: FloatArray,
    *,
    head: FloatArray | bool | np.ndarray = False,
    embedding: FloatArray | bool | np.ndarray = False,
) -> FloatArray:
    """What is not layers of the input gradients of so many chunks, (n, 1), with the head's or not."""
    prices = rows.prices
    ends = prices.backward_s - prices.weight_gradient_s
    back = chunks * column(prices.transfer_s) + head * column(ends[:, -1])
    return np.asarray(back + embedding * column(ends[:, -2]))


# --------------------------------------------------------------------------------------------------
# Which rows could step faster than a given time: whole layers, memory, and the bounds (A)-(D) and (H).
#
# For layers of one kind. Given a time Z, ranks are filled one after the other with as many layers as the
# bounds of ``bounds`` and their memory allow. What the bounds leave a rank depends on the layers before
# it and on its own alone, and one layer more before it takes at most one layer from it: (A) and (C) grow
# by at most one layer's time, which costs the rank at most 1 / m of a layer, and (D) and (H) shrink. So
# more layers before a rank never leave fewer for it and those before it together, and the fill reaches
# layer L exactly if some split keeps every bound below Z. Rank 0's tail depends on its layers, so every
# number of them is tried side by side.
#
# Where chunks interleave (chunks of a rank differ by at most one layer, the model's first and last may
# hold fewer), a chunk of a rank of n layers holds at least (n - v + 1) / v of them and at least the
# smallest chunk. (A) and (C) pass the first chunks of the ranks before, (B) and (D) the last ones of
# those behind, and of the layers that ran before the first backward pass at most ``early`` were a rank's
# own. That makes the bounds weaker, and keeps them valid for every split.


_BATCH = 256
_CLOSE = 1e-5  # share of a time up to which it is bisected


def _chain_layers(fill: Fill, rank: int, first: FloatArray, own: RankCosts) -> FloatArray:
    """Layers that (A) and (C) let a rank hold behind ``first`` layers in first chunks, (n, L)."""
    rows, prices = fill.rows, fill.rows.prices
    each, m = column(rows.layer_s[:, 0]), column(rows.m)
    there, both = first * column(prices.forward_s[:, 0]), first * each
    if rank:
        there = there + column(prices.forward_s[:, -2] + rank * prices.transfer_s)
        both = both + column(rows.embedding_s + rank * rows.chunk_s)
    back = (fill.first_end_s - both) / m - own.time_s
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


def _return_layers(
    fill: Fill, rank: int, used: FloatArray, first: FloatArray, own: RankCosts
) -> FloatArray:
    """Layers that (B), (D) and (H) let a rank hold behind ``used``, ``first`` in first chunks, (n, L)."""
    rows, prices, m = fill.rows, fill.rows.prices, column(fill.rows.m)
    forward, each, tail = column(prices.forward_s[:, 0]), column(rows.layer_s[:, 0]), prices.tail_s[:, 0]
    early = Early.of(rows, rank)
    end = _first_backward_s(fill, rank, used) + m * own.time_s - early.beside_s - forward * early.offset
    way_back = first * (each - forward)
    if rank:
        way_back = way_back + column(rows.embedding_s - prices.forward_s[:, -2] + rank * _back_s(rows))
    slope = m * each - forward * early.slope - np.where(column(rows.v) == 1.0, each - forward, 0.0)
    back = share_of(fill.first_end_s - end - way_back, slope)
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
    home = share_of(fill.first_end_s - end, slope * each)
    away = fill.limit_s - own.tail_s - end + way_back
    away = share_of(away, slope * each + column(rows.prices.tail_s[:, 0]))
    return np.where(theirs, np.minimum(home, away), np.inf)


def _all_first_layers(
    fill: Fill, rank: int, used: FloatArray, first: FloatArray, own: RankCosts
) -> FloatArray:
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
    beside = m * own.time_s + behind * column(rows.chunk_s)
    beside = beside + np.where(behind > 0.0, column(rows.head_s), 0.0)
    ahead = column(prices.forward_s[:, -2] + rank * prices.transfer_s) if rank else 0.0
    both = column(rows.embedding_s + rank * rows.chunk_s) if rank else 0.0
    home = fill.first_end_s - beside - both - first * each
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
    first = fill.first_chunks(rank, used)
    room = np.minimum(_chain_layers(fill, rank, first, own), _return_layers(fill, rank, used, first, own))
    return np.minimum(room, _all_first_layers(fill, rank, used, first, own))


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
