"""Fill of the ranks, one after the other, with all layers that the bounds and their memory allow.

For layers of one kind and a time Z. What a bound leaves a rank depends on the layers before it and on its
own alone. Where one layer more before it takes at most one layer from it, more layers before a rank never
leave fewer for it and those before it together, so that the fill reaches layer L if some split keeps every
bound within Z. Rank 0's tail depends on its layers, so every number of them is tried side by side.

Every bound is linear in the layers before a rank and in its own, and the rest of it does not
depend on Z: ``FillBounds`` holds that for all ranks, for as many times as are asked about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, FloatArray, IntArray
from meshwright.solver.schedules.schedule import bypasses_sync, runs_all_forward_first
from meshwright.solver.search.bounds import SAFETY, Early, end_limit_s, in_turn, whole_layers_s
from meshwright.solver.search.fill_kinds import can_beat_mixed
from meshwright.solver.search.memory_limits import layer_caps
from meshwright.solver.search.recompute_by_stage import can_be_busy
from meshwright.solver.search.rows import RankCosts, Rows, share_of

_ROUNDING = 1e-9  # of a layer


class LinearBound(NamedTuple):
    """A bound: fixed + before * (layers before a rank) + first * (those in first chunks) + each * own <= Z.

    Seconds, (n, p) or what broadcasts to that. A rank that it does not limit has ``fixed`` -inf.
    """

    home: bool  # the way ends on rank 0, whose tail is not in it; else on the rank, whose tail is
    fixed: FloatArray
    each: FloatArray
    before: FloatArray | float = 0.0
    first: FloatArray | float = 0.0
    on_the_last: FloatArray | float = 0.0  # taken off ``fixed`` for each layer that the last rank can hold


@dataclass(frozen=True, kw_only=True)
class FillBounds:
    """The bounds on every rank of one batch of rows, and the layers that their memory takes.

    Of bounds (p, B, n, 1), of layers (p, n, 1): what is asked of one rank lies together.
    """

    rows: Rows
    home: BoolArray  # (B,)
    fixed_s: FloatArray
    each_s: FloatArray
    before_s: FloatArray
    first_s: FloatArray
    on_the_last: FloatArray
    endless: BoolArray  # (p,): ranks of which some bound takes no time for a layer
    least: FloatArray
    most: FloatArray
    behind: FloatArray  # the least layers of the ranks behind
    present: BoolArray

    @classmethod
    def of(cls, rows: Rows, least: IntArray, most: IntArray) -> FillBounds:
        """Prepare for any time; ``least`` and ``most`` layers of every rank, (n, p)."""
        lines = (_split_lines if rows.splits_backward[0] else _lines)(rows)

        def stacked(values: list[FloatArray | float]) -> FloatArray:
            every = np.stack([np.broadcast_to(value, least.shape) for value in values])
            return np.ascontiguousarray(every.transpose(2, 0, 1))[:, :, :, None]

        each = stacked([line.each for line in lines])
        behind = least[:, ::-1].cumsum(axis=1)[:, ::-1] - least
        return cls(
            rows=rows,
            home=np.array([line.home for line in lines]),
            fixed_s=stacked([line.fixed for line in lines]),
            each_s=each,
            before_s=stacked([line.before for line in lines]),
            first_s=stacked([line.first for line in lines]),
            on_the_last=stacked([line.on_the_last for line in lines]),
            endless=np.asarray((each <= 0.0).any(axis=(1, 2, 3))),
            least=_by_rank(least),
            most=_by_rank(most),
            behind=_by_rank(behind),
            present=_by_rank(rows.p[:, None] > np.arange(least.shape[1])) > 0.0,
        )


def _column(values: FloatArray | IntArray | BoolArray) -> FloatArray:
    """Return (n,) as (n, 1) floats."""
    return values.astype(np.float64)[:, None]


def _by_rank(values: IntArray | BoolArray) -> FloatArray:
    return np.ascontiguousarray(values.T.astype(np.float64))[:, :, None]


@dataclass(frozen=True, kw_only=True)
class Fill:
    """One batch of rows and the tries of rank 0's layers, (1, L)."""

    limits: FillBounds
    tries: FloatArray
    time_s: FloatArray  # (B, n, L): what each bound may take
    in_chunks: FloatArray  # (n, L): layers that (P) lets any rank hold

    @classmethod
    def of(cls, limits: FillBounds, step_s: FloatArray) -> Fill:
        """Prepare to fill within ``step_s``, shape (n,).

        A bound that ends on rank 0 has to leave time for rank 0's tail, and for the weight gradient of its
        first chunk where the backward pass is split.
        """
        rows, prices = limits.rows, limits.rows.prices
        tries = np.arange(1, rows.layout.num_layers + 1, dtype=np.float64)[None, :]
        limit_s = _column(end_limit_s(rows, step_s))
        tail_s = prices.rank_tail_s + prices.tail_s[:, -2] + (rows.head_rank == 0) * prices.tail_s[:, -1]
        first_end_s = limit_s - (_column(tail_s) + tries * _column(prices.tail_s[:, 0]))
        home_s = first_end_s - _last_weight_s(rows, tries) if rows.splits_backward[0] else first_end_s
        time_s = np.where(limits.home[:, None, None], home_s, limit_s)
        if limits.on_the_last.any():
            time_s = time_s + limits.on_the_last[0] * _most_on_the_last(rows, limit_s)
        return cls(limits=limits, tries=tries, time_s=time_s, in_chunks=_in_chunks(rows, first_end_s))

    def among(self, tried: BoolArray) -> Fill:
        """Return the fill with some of the tries."""
        return replace(
            self, tries=self.tries[:, tried], time_s=self.time_s[:, :, tried],
            in_chunks=self.in_chunks[:, tried],
        )  # fmt: skip

    @cached_property
    def _several(self) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Return whether a row's ranks have one chunk, their chunks, the smallest's layers, (n, 1).

        None if no row has several.
        """
        v = self.limits.rows.v
        if not (v > 1).any():
            return None
        return _column(v == 1), _column(v), _column(self.limits.rows.smallest_chunk)

    def first_chunks(self, rank: int, used: FloatArray) -> FloatArray:
        """Return the least layers in the first chunks of the ranks before ``rank``, (n, L).

        A chunk of a rank of n layers holds at least (n - v + 1) / v of them; rank 0's first the smallest.
        """
        if rank == 0:
            return np.zeros_like(used)
        if self._several is None:
            return used
        single, v, smallest = self._several
        share = (used - self.tries - (rank - 1) * (v - 1.0)) / v
        return np.where(single, used, smallest + np.maximum(share, (rank - 1) * smallest))

    def room(self, rank: int, used: FloatArray) -> FloatArray:
        """Return the layers that the bounds let a rank hold behind ``used`` layers, (n, L)."""
        limits = self.limits
        left_s = self.time_s - limits.fixed_s[rank]
        if rank:
            left_s -= limits.before_s[rank] * used
            left_s -= limits.first_s[rank] * self.first_chunks(rank, used)
        each_s = limits.each_s[rank]
        if limits.endless[rank]:
            return np.asarray(share_of(left_s, each_s).min(axis=0))
        left_s /= each_s
        return np.asarray(left_s.min(axis=0))

    def reaches(self) -> BoolArray:
        """Return whether the ranks find room for all layers, shape (n,)."""
        fill, limits, num_layers = self, self.limits, float(self.limits.rows.layout.num_layers)
        used = np.zeros((len(limits.rows), self.tries.shape[1]))
        alive: BoolArray = np.ones(used.shape, dtype=np.bool_)
        for rank in range(len(limits.least)):
            room = np.minimum(fill.room(rank, used) + _ROUNDING, limits.most[rank])
            np.minimum(room, fill.in_chunks, out=room)
            np.minimum(room, num_layers - limits.behind[rank] - used, out=room)
            taken = np.floor(room, out=room)
            if rank == 0:  # every try is a number of layers of rank 0
                alive = np.asarray((fill.tries <= taken) & (fill.tries >= limits.least[0]))
                tried = np.asarray(alive.any(axis=0))  # a few of them in most cases
                fill, alive, used = fill.among(tried), alive[:, tried], used[:, tried]
                taken = np.broadcast_to(fill.tries, used.shape)
            alive &= (taken >= limits.least[rank]) | ~limits.present[rank]
            used = used + np.where(limits.present[rank] & alive, taken, 0.0)
        return np.asarray((alive & (used >= num_layers)).any(axis=1))

    def most(self) -> IntArray:
        """Return the most layers of each rank of one row, (p,), whatever lies before it; memory aside.

        Every number of layers before a rank is tried next to every number on rank 0.
        """
        rows, num_layers = self.limits.rows, self.limits.rows.layout.num_layers
        p, least = int(rows.p[0]), int(rows.v[0] * rows.smallest_chunk[0])
        tried = (np.floor(self.room(0, np.zeros(self.tries.shape)) + _ROUNDING) >= self.tries)[0]
        if not tried.any():
            return np.zeros(p, dtype=np.int64)
        fill, most_of_rank = self.among(tried), [self.tries[0, tried].max()]
        used = np.tile(np.arange(num_layers + 1.0), fill.tries.shape[1])[None, :]
        fill = replace(
            fill,
            tries=np.repeat(fill.tries, num_layers + 1, axis=1),
            time_s=np.repeat(fill.time_s, num_layers + 1, axis=2),
        )
        for rank in range(1, p):
            possible = used >= fill.tries + (rank - 1) * least
            room = np.minimum(fill.room(rank, used) + _ROUNDING, num_layers - used - (p - 1 - rank) * least)
            most_of_rank.append(max(float(np.floor(room[possible]).max(initial=0.0)), 0.0))
        return np.array(most_of_rank).astype(np.int64)


def _in_chunks(rows: Rows, first_end_s: FloatArray) -> FloatArray:
    """Return layers that (P) lets any rank hold, (n, L): its largest chunk has a v-th, rounded up.

    Args:
        rows: whose passes follow one another.
        first_end_s: when rank 0's last pass may end, by its number of layers.
    """
    prices = rows.prices
    forward, gradient = prices.forward_s[:, 0], rows.input_gradient_s[:, 0]
    forward_other_s = prices.every_forward_s
    other_s = rows.chunk_s - forward_other_s
    all_first = runs_all_forward_first(rows.columns)
    each_s = np.where(all_first, forward + gradient, np.maximum(forward, gradient))
    other_s = np.where(
        all_first, forward_other_s + other_s, np.where(forward > gradient, forward_other_s, other_s)
    )
    weight = np.minimum(prices.weight_gradient_s, prices.backward_s)
    fixed_s = rows.path_s + (rows.m - 1.0) * other_s + rows.smallest_chunk * weight[:, 0] + weight[:, -2]
    room = share_of(first_end_s - _column(fixed_s), _column((rows.m - 1.0) * each_s))
    return np.asarray(_column(rows.v) * np.floor(room + _ROUNDING))


# --------------------------------------------------------------------------------------------------
# What the bounds of split backward passes leave a rank.
#
# (E), (F), (G) and (K) of ``bounds``. f, i, w and t are a layer's forward pass, input gradient, weight
# gradient and whole time; n layers on rank s lie behind ``used`` others; what is not layers is left out.
#
# (E) m n t + tail_s <= Z by itself.
# (F) (L - used) f + (L - used - n) i + m n t - held n f + tail_s <= Z without chunks: more layers before
#     the rank leave it more room. With chunks in loops, where ranks also wait for one another between
#     steps, all forward passes of a micro-batch, the least last chunks behind, and what can have run early
#     (``Early``). In a V the ranks before a rank hold first chunks before its own and second chunks behind
#     them, those of the least number y of layers: (L - used + y) f + y i pass before the rank's own work.
# (G) used (f + i) + m n (f + i) + w_0 + tail_0 <= Z without chunks; with chunks the least first chunks of
#     the ranks before. One layer more there is worth 1 / m of a layer here.
# (K) L f + (L - n) i + m n (f + i) - held n f + w_0 + tail_0 <= Z without chunks, whatever lies before; in
#     a V ``used`` takes the place of L - n, as each rank before has its chunks on both sides; one layer
#     more of those is worth one layer here at most, as m i >= i of it is left. In loops the least first
#     chunks before and the least last ones behind.


def _split_lines(rows: Rows) -> list[LinearBound]:
    """Return (E), (F), (G), (K); w_0 is counted with the time of those that end on rank 0.

    ``forward``, ``gradient`` and ``layer`` are f, i and t; ``in_a_v`` and ``one_chunk`` mark rows.
    """
    prices, ranks = rows.prices, RankCosts.of(rows)
    rank = np.arange(ranks.time_s.shape[1])[None, :]
    behind, not_first = np.maximum(_column(rows.p) - rank - 1.0, 0.0), rank > 0
    m, smallest, num_layers = _column(rows.m), _column(rows.smallest_chunk), float(rows.layout.num_layers)
    forward, layer = _column(prices.forward_s[:, 0]), _column(rows.layer_s[:, 0])
    gradient = layer - forward - _column(prices.weight_gradient_s[:, 0])
    round_trip, one_chunk = forward + gradient, _column(rows.v == 1)
    shortest = rows.smallest_chunk * prices.forward_s[:, 0] + prices.every_forward_s
    start = rank * _column(shortest) + not_first * _column(prices.forward_s[:, -2])
    start = np.where(bypasses_sync(rows.columns)[:, None], 0.0, start)  # passes before a rank's first
    work, layer_tail = m * ranks.time_s, _column(prices.tail_s[:, 0])
    weight = prices.weight_gradient_s
    # The way home waits for no weight gradient of head or embedding on the ranks that hold them.
    home_work = ranks.time_s - (rank == _column(rows.head_rank)) * _column(weight[:, -1])
    home_work = m * (home_work - ~not_first * _column(weight[:, -2]))
    end_gradient = prices.backward_s - weight
    head, embedding = _column(end_gradient[:, -1]), _column(end_gradient[:, -2])
    there, back = _column(prices.every_forward_s), _column(prices.every_backward_s)

    def passed_s(skipped: FloatArray | IntArray) -> FloatArray:
        """Return the first micro-batch's forward passes without layers, of all but ``skipped`` chunks."""
        passed = (_column(rows.p * rows.v) - skipped) * there + _column(prices.forward_s[:, -1])
        return np.asarray(passed + (skipped == 0) * _column(prices.forward_s[:, -2]))

    in_a_v, early = rows.in_a_v[:, None], Early.of(rows)
    if in_a_v.any():
        early = Early(*(np.where(in_a_v, *pair) for pair in zip(Early.in_a_v(rows), early, strict=True)))
    behind = np.where(in_a_v, rank, behind)  # the ranks before lie behind it too
    least_behind, v_before = behind * smallest, np.where(in_a_v, rank, 0)
    behind_s = behind * back + (behind > 0.0) * head - early.other_s - forward * early.offset
    returning = np.where(one_chunk, num_layers, least_behind)
    wait = num_layers * forward + returning * gradient + v_before * smallest * forward
    wait = wait + passed_s(np.where(one_chunk, rank, v_before)) + np.where(in_a_v, start, 0.0) + behind_s
    bound_f = LinearBound(
        home=False,
        fixed=wait + work + ranks.tail_s,
        before=-one_chunk * round_trip - in_a_v * forward,
        each=m * layer - forward * early.slope - one_chunk * gradient + layer_tail,
    )
    returning = np.where(one_chunk, num_layers, np.where(in_a_v, 0.0, least_behind))
    end = num_layers * forward + returning * gradient
    end = end + passed_s(np.zeros_like(m)) + rank * back + not_first * embedding + behind_s
    bound_k = LinearBound(
        home=True,
        fixed=end + home_work,
        before=in_a_v * gradient,
        first=np.where(in_a_v, 0.0, (1.0 - one_chunk) * gradient),
        each=m * round_trip - forward * early.slope - one_chunk * gradient,
    )
    way = not_first * _column(prices.forward_s[:, -2]) + rank * (there + back) + not_first * embedding
    bound_g = LinearBound(home=True, fixed=way + home_work, first=round_trip, each=m * round_trip)
    bound_e = LinearBound(home=False, fixed=start + ranks.tail_s + work, each=m * layer + layer_tail)
    return [bound_e, bound_f, bound_g, bound_k]


def _last_weight_s(rows: Rows, tries: FloatArray) -> FloatArray:
    """Return the least weight gradient of the model's first chunk, (n, L)."""
    layers = np.where(rows.v[:, None] == 1, tries, _column(rows.smallest_chunk))
    whole = np.minimum(rows.prices.weight_gradient_s, rows.prices.backward_s)
    return np.asarray(layers * _column(whole[:, 0]) + _column(whole[:, -2]))


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


def _lines(rows: Rows) -> list[LinearBound]:
    """Return (A) to (D), (H) if passes run in turn, (B') if all forward passes come first."""
    prices, ranks = rows.prices, RankCosts.of(rows)
    rank = np.arange(ranks.time_s.shape[1])[None, :]
    behind, not_first = np.maximum(_column(rows.p) - rank - 1.0, 0.0), rank > 0
    m, smallest, num_layers = _column(rows.m), _column(rows.smallest_chunk), float(rows.layout.num_layers)
    forward, layer = _column(prices.forward_s[:, 0]), _column(rows.layer_s[:, 0])
    backward, layer_tail, one_chunk = layer - forward, _column(prices.tail_s[:, 0]), _column(rows.v == 1)
    work, chunk_back_s = m * ranks.time_s, _column(rows.chunk_s - prices.every_forward_s)
    # Forward passes before the rank's first, and with the way back, without layers.
    way_there = not_first * _column(prices.forward_s[:, -2]) + rank * _column(prices.every_forward_s)
    round_trip = not_first * _column(rows.embedding_s) + rank * _column(rows.chunk_s)
    fixed_c = way_there + ranks.tail_s + work
    lines = [
        LinearBound(home=True, fixed=round_trip + work, first=layer, each=m * layer),
        LinearBound(home=False, fixed=fixed_c, first=forward, each=m * layer + layer_tail),
    ]

    # When a rank's first backward pass starts at the earliest, without what its layers shorten: all forward
    # passes of the first micro-batch, and the backward passes of the last chunks behind it.
    early = Early.of(rows)
    ends = prices.forward_s[:, -2] + prices.forward_s[:, -1] + rows.p * rows.v * prices.every_forward_s
    end = num_layers * forward + _column(ends) + behind * chunk_back_s
    end = end + np.where(one_chunk, num_layers, behind * smallest) * backward
    end = end + (behind > 0.0) * _column(rows.head_s - prices.forward_s[:, -1])
    end = end + work - early.other_s - forward * early.offset
    # From the rank's last pass to rank 0's: backward passes, without layers, of the ranks before.
    way_back = not_first * _column(rows.embedding_s - prices.forward_s[:, -2]) + rank * chunk_back_s
    each, before = m * layer - forward * early.slope - one_chunk * backward, -one_chunk * backward
    lines += [
        LinearBound(home=True, fixed=end + way_back, before=before, first=backward, each=each),
        LinearBound(home=False, fixed=end + ranks.tail_s, before=before, each=each + layer_tail),
    ]

    # (H): 2 sum T + (m - w_s - 1) T_s - sum_{u<s} T_u, with the way back and without it: more layers before
    # the rank leave it more room.
    turns = m - np.minimum(m, _column(rows.p) - rank) - 1.0
    limited = in_turn(rows)[:, None] & (turns >= 0.0) & (rows.p[:, None] > rank)
    if limited.any():
        turns = np.maximum(turns, 0.0)
        end = np.where(limited, 2.0 * _column(rows.total_s) - round_trip + turns * ranks.time_s, -np.inf)
        slope = turns * layer
        lines += [
            LinearBound(home=True, fixed=end, before=-layer, each=slope),
            LinearBound(
                home=False,
                fixed=end + ranks.tail_s - way_back,
                before=-layer,
                first=-backward,
                each=slope + layer_tail,
            ),
        ]
    limited = (runs_all_forward_first(rows.columns)[:, None] > 0) & (behind > 0.0)
    if limited.any():
        lines += _all_first_lines(rows, behind, limited, round_trip + work, fixed_c)
    return lines


def _all_first_lines(
    rows: Rows, behind: FloatArray, limited: BoolArray, fixed_a: FloatArray, fixed_c: FloatArray
) -> list[LinearBound]:
    """Return (B') of ``limited`` ranks, with and without the way back, from the constants of (A) and (C).

    The last chunks of the ranks behind hold at least the smallest number of layers each, and those between
    the rank and the last one, with a perhaps smaller last chunk, their share of all layers that are left.

    Args:
        rows: whose forward passes all come before the first backward pass.
        behind: number of ranks behind each, (n, p).
        limited: ranks that (B') limits.
        fixed_a: the constant of (A), (n, p).
        fixed_c: that of (C).
    """
    prices, one_chunk = rows.prices, _column(rows.v == 1)
    m, v, smallest = _column(rows.m), _column(rows.v), _column(rows.smallest_chunk)
    forward, layer = _column(prices.forward_s[:, 0]), _column(rows.layer_s[:, 0])
    layer_tail = _column(prices.tail_s[:, 0])
    between = np.where(one_chunk, 0.0, np.maximum(behind - 1.0, 0.0))
    other_s = behind * _column(rows.chunk_s) + _column(rows.head_s)
    fixed_a, fixed_c = fixed_a + other_s, fixed_c + other_s
    shared = (rows.layout.num_layers - between * (v - 1.0)) / v + np.where(one_chunk, 0.0, smallest)
    taken_by_last, lines = np.where(one_chunk, 0.0, layer / v), list[LinearBound]()
    for chunks, own_share, on_the_last in ((behind * smallest, 0.0, 0.0), (shared, 1.0 / v, taken_by_last)):
        each, wait = (m - own_share) * layer, chunks * layer
        before = -own_share * layer
        lines += [
            LinearBound(home=True, fixed=np.where(limited, fixed_a + wait, -np.inf), before=before,
                 first=layer, each=each, on_the_last=on_the_last),
            LinearBound(home=False, fixed=np.where(limited, fixed_c + wait, -np.inf), before=before,
                 first=forward, each=each + layer_tail, on_the_last=on_the_last),
        ]  # fmt: skip
    return lines


def _most_on_the_last(rows: Rows, limit_s: FloatArray) -> FloatArray:
    """Return the most layers that the last rank can pass m times before ``limit_s``, both (n, 1)."""
    prices = rows.prices
    start_s = (rows.p - 1) * (rows.smallest_chunk * prices.forward_s[:, 0] + prices.every_forward_s)
    other_s = rows.m * (rows.v * rows.chunk_s + rows.head_s) + prices.rank_tail_s + prices.tail_s[:, -1]
    each_s = rows.m * rows.layer_s[:, 0] + prices.tail_s[:, 0]
    layers = (limit_s - _column(start_s + other_s)) / _column(each_s)
    return np.asarray(np.maximum(np.floor(layers + _ROUNDING), 0.0))


@dataclass(frozen=True, kw_only=True)
class StepTimeFilter:
    """Rows that are tested against several step times in turn."""

    rows: Rows
    least_s: FloatArray  # (n,): no split is faster; +inf where none fits
    batches: tuple[tuple[IntArray, FillBounds], ...] = ()  # rows with like pipelines

    @classmethod
    def of(cls, rows: Rows, most_s: FloatArray) -> StepTimeFilter:
        """Prepare for times up to ``most_s``, shape (n,)."""
        if not rows.is_uniform:
            return cls(rows=rows, least_s=np.zeros(len(rows)))
        caps = layer_caps(rows)
        least = np.asarray(whole_layers_s(rows) * SAFETY)
        least[~caps.feasible(rows.layout.num_layers)] = np.inf
        batches = []
        for alike in (~rows.splits_backward, rows.splits_backward):
            open_rows = np.flatnonzero((least <= most_s) & alike)
            order = open_rows[np.argsort(rows.p[open_rows], kind="stable")]
            for start in range(0, len(order), _BATCH):
                look()
                index = order[start : start + _BATCH]
                own_caps = caps.take(index, int(rows.p[index].max()))
                batches.append((index, FillBounds.of(rows.take(index), own_caps.least, own_caps.most)))
        return cls(rows=rows, least_s=least, batches=tuple(batches))

    def able(self, step_s: FloatArray) -> BoolArray:
        """Return whether a row may have a split that simulates to ``step_s`` or less; False is a proof."""
        if not self.rows.is_uniform:
            return can_beat_mixed(self.rows, step_s)
        answer = np.asarray(self.least_s <= step_s)
        own = np.flatnonzero(answer & self.rows.per_stage)
        answer[own] = can_be_busy(self.rows.take(own), step_s[own])
        for index, limits in self.batches:
            look()
            if answer[index].any():
                answer[index] &= Fill.of(limits, step_s[index]).reaches()
        return answer


def can_beat(rows: Rows, step_s: FloatArray) -> BoolArray:
    """Return whether a row may have a split that simulates to ``step_s`` or less; False is a proof."""
    return StepTimeFilter.of(rows, step_s).able(step_s)


def most_layers(row: Rows, step_s: float) -> IntArray:
    """Return each rank's most layers of one row, (p,), with which its bounds may keep ``step_s``.

    Memory is left aside.
    """
    caps = layer_caps(row)
    return Fill.of(FillBounds.of(row, caps.least, caps.most), np.array([step_s])).most()


def least_bound_s(
    rows: Rows, low_s: float, high_s: float, tick: Callable[[], object] = lambda: None
) -> float:
    """Bound several rows by the third tier: none simulates faster; at most ``high_s``.

    Bisects between ``low_s``, a valid bound of all of them, and ``high_s``. Rows that cannot beat the
    middle while others can are left behind: their own bound is above the answer. ``tick`` is called
    between two steps.
    """
    low, high, remaining = low_s, high_s, rows
    able = np.flatnonzero(can_beat(rows, np.full(len(rows), high)))
    if not len(able):
        return high
    while high - low > _CLOSE * high:
        if len(able):
            remaining = remaining.take(able)
            step_filter = StepTimeFilter.of(remaining, np.full(len(remaining), high))
        tick()
        middle = (low + high) / 2.0
        able = np.flatnonzero(step_filter.able(np.full(len(remaining), middle)))
        if len(able):
            high = middle
        else:
            low = middle
    return low


def bounds_s(
    rows: Rows, low_s: FloatArray, high_s: FloatArray, tick: Callable[[], object] = lambda: None,
    *, near: float = _CLOSE, group: IntArray | None = None,
) -> FloatArray:  # fmt: skip
    """Bound each row by the third tier, (n,), between ``low_s``, which is valid, and ``high_s``.

    Rows with a bound above what another row of their group may reach are not followed.

    Args:
        rows: to bound.
        low_s: valid bounds.
        high_s: what no bound exceeds.
        tick: called between two steps.
        near: share of a time up to which it is bisected.
        group: number of each row's group, (n,); None: each row is one.
    """
    low_s, high_s, tried_s = low_s.copy(), high_s.copy(), high_s.copy()
    step_filter, open_rows = StepTimeFilter.of(rows, high_s), np.ones(len(rows), dtype=np.bool_)
    group = np.arange(len(rows)) if group is None else group
    while open_rows.any():
        tick()
        able = step_filter.able(np.where(open_rows, tried_s, 0.0))
        high_s[able], low_s[open_rows & ~able] = tried_s[able], tried_s[open_rows & ~able]
        best_s = np.full(int(group.max()) + 1, np.inf)
        np.minimum.at(best_s, group, high_s)
        open_rows = (high_s - low_s > near * high_s) & (low_s < best_s[group])
        tried_s = (low_s + high_s) / 2.0
    return low_s
