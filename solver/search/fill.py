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

    Seconds, (n, p) or what broadcasts to that. ``home``: its way ends on rank 0 with its tail; else on
    the rank itself, with its tail in it. A rank that it does not limit has ``fixed`` -inf.
    """

    home: bool
    fixed: FloatArray
    each: FloatArray
    before: FloatArray | float = 0.0
    first: FloatArray | float = 0.0
    on_the_last: FloatArray | float = (
        0.0  # what a layer that the last rank can take makes of ``fixed`` less
    )


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
        """Prepare to fill within ``step_s``, shape (n,)."""
        rows, prices = limits.rows, limits.rows.prices
        tries = np.arange(1, rows.layout.num_layers + 1, dtype=np.float64)[None, :]
        limit = _column(end_limit_s(rows, step_s))
        tail = prices.rank_tail_s + prices.tail_s[:, -2] + (rows.head_rank == 0) * prices.tail_s[:, -1]
        first_end = limit - (_column(tail) + tries * _column(prices.tail_s[:, 0]))
        home = first_end - _last_weight_s(rows, tries) if rows.splits_backward[0] else first_end
        time = np.where(limits.home[:, None, None], home, limit)
        if limits.on_the_last.any():
            time = time + limits.on_the_last[0] * _most_on_the_last(rows, limit)
        return cls(limits=limits, tries=tries, time_s=time, in_chunks=_in_chunks(rows, first_end))

    def among(self, tried: BoolArray) -> Fill:
        """Return the fill with some of the tries."""
        return replace(
            self, tries=self.tries[:, tried], time_s=self.time_s[:, :, tried],
            in_chunks=self.in_chunks[:, tried],
        )  # fmt: skip

    @cached_property
    def _several(self) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Return ranks' chunks and the smallest's layers, (n, 1), for rows of one chunk; None: all are."""
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
        left = self.time_s - limits.fixed_s[rank]
        if rank:
            left -= limits.before_s[rank] * used
            left -= limits.first_s[rank] * self.first_chunks(rank, used)
        each = limits.each_s[rank]
        if limits.endless[rank]:
            return np.asarray(share_of(left, each).min(axis=0))
        left /= each
        return np.asarray(left.min(axis=0))

    def reaches(self) -> BoolArray:
        """Return whether the ranks find room for all layers, shape (n,)."""
        fill, limits, num_layers = self, self.limits, float(self.limits.rows.layout.num_layers)
        used = np.zeros((len(limits.rows), self.tries.shape[1]))
        alive: BoolArray = np.ones(used.shape, dtype=np.bool_)
        for rank in range(len(limits.least)):
            most = np.minimum(fill.room(rank, used) + _ROUNDING, limits.most[rank])
            np.minimum(most, fill.in_chunks, out=most)
            np.minimum(most, num_layers - limits.behind[rank] - used, out=most)
            take = np.floor(most, out=most)
            if rank == 0:
                alive = np.asarray((fill.tries <= take) & (fill.tries >= limits.least[0]))
                tried = np.asarray(alive.any(axis=0))  # a few of them in most cases
                fill, alive, used = fill.among(tried), alive[:, tried], used[:, tried]
                take = np.broadcast_to(fill.tries, used.shape)
            alive &= (take >= limits.least[rank]) | ~limits.present[rank]
            used = used + np.where(limits.present[rank] & alive, take, 0.0)
        return np.asarray((alive & (used >= num_layers)).any(axis=1))

    def most(self) -> IntArray:
        """Return the most layers of each rank of one row, (p,), whatever lies before it; memory aside."""
        rows, num_layers = self.limits.rows, self.limits.rows.layout.num_layers
        p, least = int(rows.p[0]), int(rows.v[0] * rows.smallest_chunk[0])
        tried = (np.floor(self.room(0, np.zeros(self.tries.shape)) + _ROUNDING) >= self.tries)[0]
        if not tried.any():
            return np.zeros(p, dtype=np.int64)
        fill, most = self.among(tried), [self.tries[0, tried].max()]
        used = np.tile(np.arange(num_layers + 1.0), fill.tries.shape[1])[None, :]
        fill = replace(
            fill,
            tries=np.repeat(fill.tries, num_layers + 1, axis=1),
            time_s=np.repeat(fill.time_s, num_layers + 1, axis=2),
        )
        for rank in range(1, p):
            there = used >= fill.tries + (rank - 1) * least
            take = np.minimum(fill.room(rank, used) + _ROUNDING, num_layers - used - (p - 1 - rank) * least)
            most.append(max(float(np.floor(take[there]).max(initial=0.0)), 0.0))
        return np.array(most).astype(np.int64)


def _in_chunks(rows: Rows, first_end_s: FloatArray) -> FloatArray:
    """Return layers that (P) lets any rank hold, (n, L): its largest chunk has a v-th, rounded up."""
    prices = rows.prices
    forward, home = prices.forward_s[:, 0], rows.input_gradient_s[:, 0]
    other_s = rows.chunk_s - prices.transfer_s
    first = runs_all_forward_first(rows.columns)
    each = np.where(first, forward + home, np.maximum(forward, home))
    other_s = np.where(
        first, prices.transfer_s + other_s, np.where(forward > home, prices.transfer_s, other_s)
    )
    last = np.minimum(prices.weight_gradient_s, prices.backward_s)
    end = rows.path_s + (rows.m - 1.0) * other_s + rows.smallest_chunk * last[:, 0] + last[:, -2]
    room = share_of(first_end_s - _column(end), _column((rows.m - 1.0) * each))
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
    """Return (E), (F), (G), (K); w_0 is counted with the time of those that end on rank 0."""
    prices, ranks = rows.prices, RankCosts.of(rows)
    rank = np.arange(ranks.time_s.shape[1])[None, :]
    behind, later = np.maximum(_column(rows.p) - rank - 1.0, 0.0), rank > 0
    m, smallest, num_layers = _column(rows.m), _column(rows.smallest_chunk), float(rows.layout.num_layers)
    forward, whole, tail = _column(prices.forward_s[:, 0]), _column(rows.layer_s[:, 0]), prices.tail_s[:, 0]
    back = whole - forward - _column(prices.weight_gradient_s[:, 0])
    both, single = forward + back, _column(rows.v == 1)
    shortest = rows.smallest_chunk * prices.forward_s[:, 0] + prices.transfer_s
    start = rank * _column(shortest) + later * _column(prices.forward_s[:, -2])
    start = np.where(bypasses_sync(rows.columns)[:, None], 0.0, start)
    work, tail = m * ranks.time_s, _column(tail)
    weight = prices.weight_gradient_s
    own = ranks.time_s - (rank == _column(rows.head_rank)) * _column(weight[:, -1])
    own = m * (own - ~later * _column(weight[:, -2]))
    ends = prices.backward_s - weight
    head, embedding, transfer = _column(ends[:, -1]), _column(ends[:, -2]), _column(prices.transfer_s)

    def passed_s(ahead: FloatArray | IntArray) -> FloatArray:
        """Return the first micro-batch's forward passes without layers, but for ``ahead`` chunks."""
        passed = (_column(rows.p * rows.v) - ahead) * transfer + _column(prices.forward_s[:, -1])
        return np.asarray(passed + (ahead == 0) * _column(prices.forward_s[:, -2]))

    shaped, early = rows.in_a_v[:, None], Early.of(rows)
    if shaped.any():
        early = Early(*(np.where(shaped, *pair) for pair in zip(Early.in_a_v(rows), early, strict=True)))
    behind = np.where(shaped, rank, behind)  # the ranks before lie behind it too
    chunks, twice = behind * smallest, np.where(shaped, rank, 0)
    ends_s = behind * transfer + (behind > 0.0) * head - early.other_s - forward * early.offset
    wait = num_layers * forward + np.where(single, num_layers, chunks) * back + twice * smallest * forward
    wait = wait + passed_s(np.where(single, rank, twice)) + np.where(shaped, start, 0.0) + ends_s
    late = LinearBound(
        home=False,
        fixed=wait + work + ranks.tail_s,
        before=-single * both - shaped * forward,
        each=m * whole - forward * early.slope - single * back + tail,
    )
    end = num_layers * forward + np.where(single, num_layers, np.where(shaped, 0.0, chunks)) * back
    end = end + passed_s(np.zeros_like(m)) + rank * transfer + later * embedding + ends_s
    home = LinearBound(
        home=True,
        fixed=end + own,
        before=shaped * back,
        first=np.where(shaped, 0.0, (1.0 - single) * back),
        each=m * both - forward * early.slope - single * back,
    )
    ahead = later * _column(prices.forward_s[:, -2]) + rank * 2.0 * transfer + later * embedding
    chain = LinearBound(home=True, fixed=ahead + own, first=both, each=m * both)
    busy = LinearBound(home=False, fixed=start + ranks.tail_s + work, each=m * whole + tail)
    return [busy, late, chain, home]


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
    behind, later = np.maximum(_column(rows.p) - rank - 1.0, 0.0), rank > 0
    m, smallest, num_layers = _column(rows.m), _column(rows.smallest_chunk), float(rows.layout.num_layers)
    forward, whole, tail = _column(prices.forward_s[:, 0]), _column(rows.layer_s[:, 0]), prices.tail_s[:, 0]
    tail, single, back = _column(tail), _column(rows.v == 1), whole - forward
    work, back_s = m * ranks.time_s, _column(rows.chunk_s - prices.transfer_s)
    there = later * _column(prices.forward_s[:, -2]) + rank * _column(prices.transfer_s)
    both = later * _column(rows.embedding_s) + rank * _column(rows.chunk_s)
    away = there + ranks.tail_s + work
    lines = [
        LinearBound(home=True, fixed=both + work, first=whole, each=m * whole),
        LinearBound(home=False, fixed=away, first=forward, each=m * whole + tail),
    ]

    # When a rank's first backward pass starts at the earliest, without what its layers shorten: all forward
    # passes of the first micro-batch, and the backward passes of the last chunks behind it.
    early = Early.of(rows)
    ends = prices.forward_s[:, -2] + prices.forward_s[:, -1] + rows.p * rows.v * prices.transfer_s
    end = num_layers * forward + _column(ends) + behind * back_s
    end = end + np.where(single, num_layers, behind * smallest) * back
    end = end + (behind > 0.0) * _column(rows.head_s - prices.forward_s[:, -1])
    end = end + work - early.other_s - forward * early.offset
    way_back = later * _column(rows.embedding_s - prices.forward_s[:, -2]) + rank * back_s
    each, before = m * whole - forward * early.slope - single * back, -single * back
    lines += [
        LinearBound(home=True, fixed=end + way_back, before=before, first=back, each=each),
        LinearBound(home=False, fixed=end + ranks.tail_s, before=before, each=each + tail),
    ]

    # (H): 2 sum T + (m - w_s - 1) T_s - sum_{u<s} T_u, with the way back and without it: more layers before
    # the rank leave it more room.
    turns = m - np.minimum(m, _column(rows.p) - rank) - 1.0
    theirs = in_turn(rows)[:, None] & (turns >= 0.0) & (rows.p[:, None] > rank)
    if theirs.any():
        turns = np.maximum(turns, 0.0)
        end = np.where(theirs, 2.0 * _column(rows.total_s) - both + turns * ranks.time_s, -np.inf)
        slope = turns * whole
        lines += [
            LinearBound(home=True, fixed=end, before=-whole, each=slope),
            LinearBound(
                home=False,
                fixed=end + ranks.tail_s - way_back,
                before=-whole,
                first=-back,
                each=slope + tail,
            ),
        ]
    theirs = (runs_all_forward_first(rows.columns)[:, None] > 0) & (behind > 0.0)
    if theirs.any():
        lines += _all_first_lines(rows, behind, theirs, both + work, away)
    return lines


def _all_first_lines(
    rows: Rows, behind: FloatArray, theirs: BoolArray, home: FloatArray, away: FloatArray
) -> list[LinearBound]:
    """Return (B') of ``theirs``, with and without the way back, from the constants of (A) and (C).

    The last chunks of the ranks behind hold at least the smallest number of layers each, and those between
    the rank and the last one, with a perhaps smaller last chunk, their share of all layers that are left.
    """
    prices, single = rows.prices, _column(rows.v == 1)
    m, v, smallest = _column(rows.m), _column(rows.v), _column(rows.smallest_chunk)
    forward, whole, tail = prices.forward_s[:, 0], _column(rows.layer_s[:, 0]), _column(prices.tail_s[:, 0])
    between = np.where(single, 0.0, np.maximum(behind - 1.0, 0.0))
    other_s = behind * _column(rows.chunk_s) + _column(rows.head_s)
    home, away = home + other_s, away + other_s
    shared = (rows.layout.num_layers - between * (v - 1.0)) / v + np.where(single, 0.0, smallest)
    taken, lines = np.where(single, 0.0, whole / v), list[LinearBound]()
    for chunks, own, last in ((behind * smallest, 0.0, 0.0), (shared, 1.0 / v, taken)):
        each, wait = (m - own) * whole, chunks * whole
        before = -own * whole
        lines += [
            LinearBound(home=True, fixed=np.where(theirs, home + wait, -np.inf), before=before, first=whole,
                 each=each, on_the_last=last),
            LinearBound(home=False, fixed=np.where(theirs, away + wait, -np.inf), before=before,
                 first=_column(forward), each=each + tail, on_the_last=last),
        ]  # fmt: skip
    return lines


def _most_on_the_last(rows: Rows, limit_s: FloatArray) -> FloatArray:
    prices = rows.prices
    ahead = (rows.p - 1) * (rows.smallest_chunk * prices.forward_s[:, 0] + prices.transfer_s)
    other_s = rows.m * (rows.v * rows.chunk_s + rows.head_s) + prices.rank_tail_s + prices.tail_s[:, -1]
    each = rows.m * rows.layer_s[:, 0] + prices.tail_s[:, 0]
    most = (limit_s - _column(ahead + other_s)) / _column(each)
    return np.asarray(np.maximum(np.floor(most + _ROUNDING), 0.0))


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
        for which in (~rows.splits_backward, rows.splits_backward):
            asked = np.flatnonzero((least <= most_s) & which)
            order = asked[np.argsort(rows.p[asked], kind="stable")]
            for start in range(0, len(order), _BATCH):
                look()
                index = order[start : start + _BATCH]
                few = caps.take(index, int(rows.p[index].max()))
                batches.append((index, FillBounds.of(rows.take(index), few.least, few.most)))
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
    low, high, left = low_s, high_s, rows
    able = np.flatnonzero(can_beat(rows, np.full(len(rows), high)))
    if not len(able):
        return high
    while high - low > _CLOSE * high:
        if len(able):
            left = left.take(able)
            reach = StepTimeFilter.of(left, np.full(len(left), high))
        tick()
        middle = (low + high) / 2.0
        able = np.flatnonzero(reach.able(np.full(len(left), middle)))
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

    Bisects to a share ``near``. Rows with a bound above what another row of their ``group`` may reach are
    not followed.
    """
    low_s, high_s, tried_s = low_s.copy(), high_s.copy(), high_s.copy()
    reach, asked = StepTimeFilter.of(rows, high_s), np.ones(len(rows), dtype=np.bool_)
    group = np.arange(len(rows)) if group is None else group
    while asked.any():
        tick()
        able = reach.able(np.where(asked, tried_s, 0.0))
        high_s[able], low_s[asked & ~able] = tried_s[able], tried_s[asked & ~able]
        least = np.full(int(group.max()) + 1, np.inf)
        np.minimum.at(least, group, high_s)
        asked = (high_s - low_s > near * high_s) & (low_s < least[group])
        tried_s = (low_s + high_s) / 2.0
    return low_s
