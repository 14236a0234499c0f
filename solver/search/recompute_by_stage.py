"""Full recomputation with a count of its own for every stage, under one chunk a rank.

Recomputing more layers of a stage never makes it faster and always lighter, and no stage's count changes
what another one needs. So under any split the best counts are the least ones that fit: those of stage s are
found by themselves, and the closed form and the simulation are both least there. That makes the cost of
layers i ... j on stage s a number, ``C[s][i, j]``, and the split is the same program over boundaries as
without (``splits.best_boundaries``).

Bounds take such a row as one that recomputes nothing and weighs what it weighs when everything is
recomputed: no split is faster or lighter. ``can_be_busy`` adds what memory asks for: n layers on rank s
need at least ``(n a - room) / d`` recomputed ones, a the bytes of a layer, d what recomputing one spares.
With layers of several kinds ``Replays`` gives how long the fewest layers that fit replay, for a stage that
begins where the fill of ``fill_kinds`` is. One layer less in front frees at least what recomputing it
spared, so that the others replay no longer: a stage that begins later still reaches as far, and the fill
stays valid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.solver.configuration import BoolArray, FloatArray, IntArray
from meshwright.solver.schedules.schedule import runs_all_forward_first
from meshwright.solver.search.bounds import end_limit_s, end_tail_s, least_tail_s
from meshwright.solver.search.memory_limits import held_by_rank, room_bytes
from meshwright.solver.search.rows import RankCosts, Rows, at, count_below, sums_of

_ROUNDING = 1.0 - 1e-9
_SLIGHTLY = 1e-12


def can_be_busy(rows: Rows, step_s: FloatArray) -> BoolArray:
    """Mark rows with one kind of layers that may step within ``step_s``, (n,); False is a proof.

    Each rank is limited by itself: by (C) with a layer on each rank before it, and by (B) with the least
    sum of all ranks and the least tail of rank 0.
    """
    layers = np.arange(rows.layout.num_layers + 1, dtype=np.float64)[None, :]
    limit = end_limit_s(rows, step_s)
    able, most, ranks = np.ones(len(rows), dtype=np.bool_), np.zeros(len(rows)), RankCosts.of(rows)
    for rank in range(int(rows.p.max(initial=1))):
        present = rows.p > rank
        fits = _end_s(rows, ranks, rank, layers) <= limit[:, None]
        own = np.where(fits, layers, 0.0).max(axis=1)
        able &= (own >= 1.0) | ~present
        most += np.where(present, own, 0.0)
    return np.asarray(able & (most >= rows.layout.num_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """Least replay of the stages of some rows; sums over the first l layers are (L + 1, k)."""

    own: IntArray  # (k,) rows with counts by stage
    state_bytes: FloatArray
    kept_bytes: FloatArray  # of one micro-batch in flight, nothing recomputed
    spared_bytes: FloatArray  # the same, by recomputing them
    replay_s: FloatArray

    @classmethod
    def of(cls, rows: Rows) -> Replays:
        """Return the replays of rows with one chunk a rank."""
        own = np.flatnonzero(rows.per_stage)
        some = rows.take(own)
        prices, spared = some.prices, some.prices.activation_bytes - some.prices.checkpoint_bytes
        priced = (some.prices.state_bytes, prices.activation_bytes, spared, prices.replay_s)
        states, kept, saved, again = (sums_of(some, price[:, :-2]) for price in priced)
        return cls(own=own, state_bytes=states, kept_bytes=kept, spared_bytes=saved, replay_s=again)

    def least_s(self, start: IntArray, end: IntArray, room: FloatArray, held: FloatArray) -> FloatArray:
        """Return the least replay seconds of layers ``start`` … ``end`` - 1 on a rank that fit, (k,).

        Args:
            start: first layer of the rank in every row, (k,).
            end: the layer behind its last, (k,).
            room: bytes that the rank has left for its layers, (k,).
            held: micro-batches that it keeps in flight, (k,).
        """
        whole = at(self.state_bytes, end) - at(self.state_bytes, start)
        whole = whole + held * (at(self.kept_bytes, end) - at(self.kept_bytes, start))
        over, begun = whole - room, at(self.spared_bytes, start)
        needed = np.where(over > 0.0, begun * (1.0 - _SLIGHTLY) + over / held * _ROUNDING, -np.inf)
        count = count_below(self.spared_bytes, np.nextafter(needed, -np.inf))
        last = np.clip(count, start, end)
        return at(self.replay_s, last) - at(self.replay_s, start)


def _end_s(rows: Rows, ranks: RankCosts, rank: int, layers: FloatArray) -> FloatArray:
    """Return the least end and tail of a step with so many layers on one rank, (n, L + 1)."""
    prices, own, col = rows.prices, slice(rank, rank + 1), np.newaxis
    replayed = np.ceil(_least_replayed(rows, rank, layers))
    replay = np.minimum(replayed, layers) * prices.replay_s[:, :1]
    time = layers * rows.layer_s[:, :1] + replay + ranks.time_s[:, own]
    ahead = rank * (prices.forward_s[:, 0] + prices.every_forward_s) + (rank > 0) * prices.forward_s[:, -2]
    chain = ahead[:, col] + rows.m[:, col] * time + layers * prices.tail_s[:, :1]
    chain = chain + ranks.tail_s[:, own]
    early = np.where(runs_all_forward_first(rows.columns), 1.0, np.minimum(rows.m, rows.p - rank)) - 1.0
    forward = layers * prices.forward_s[:, :1] + ranks.forward_s[:, own]
    tail = (
        end_tail_s(rows)[:, col] + layers * prices.tail_s[:, :1]
        if rank == 0
        else least_tail_s(rows)[:, col]
    )
    back = rows.total_s[:, col] + replay + (rows.m - 1.0)[:, col] * time - early[:, col] * forward + tail
    return np.where(replayed <= layers, np.maximum(chain, back), np.inf)


def _least_replayed(rows: Rows, rank: int, layers: FloatArray) -> FloatArray:
    """Return the least number of recomputed layers, not rounded, (n, L + 1)."""
    prices, index = rows.prices, np.minimum(rank, rows.p - 1)
    width = int(rows.p.max(initial=1))
    held = held_by_rank(rows, width, 1)[:, 0]
    room = np.take_along_axis(room_bytes(rows, held[:, None]), index[:, None], axis=1)
    own = np.take_along_axis(held, index[:, None], axis=1)
    each = rows.prices.state_bytes[:, :1] + own * prices.activation_bytes[:, :1]
    spared = own * (prices.activation_bytes - prices.checkpoint_bytes)[:, :1]
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(
            spared > 0.0, (layers * each - room) / spared, np.where(layers * each > room, np.inf, 0.0)
        )
    return np.asarray(np.maximum(needed * np.where(needed > 0.0, _ROUNDING, 1.0), 0.0))


# --------------------------------------------------------------------------------------------------
# What the first k layers of a stage spare and replay, where layers are of several kinds.
#
# ``Rows.chunk_s`` counts k of the shortest replay, ``room_bytes`` k layers that spare most. Where a stage
# begins is known in the fill of ``fill_kinds``, and with it which k layers those are. The fill is valid
# if a stage that begins a layer later reaches as far. It then holds one layer less, and one of its layers
# replays in the place of that one: memory falls, since a layer weighs at least what its recomputation
# spares; and so does time if b (1 - 1/m) + r of any kind is at least r of any other, b the backward pass
# of a layer, r its replay. Where that does not hold the least replay is counted.


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLayers:
    """Sums over the first l layers, (L + 1, n), of rows with one chunk a rank; k is ``count``."""

    count: IntArray  # (n,) recomputed layers of each stage
    spared_bytes: FloatArray  # less than the most that a layer of theirs may spare, of one micro-batch
    replay_s: FloatArray  # more than the least that one may replay; 0 where the best case is kept

    @classmethod
    def of(cls, rows: Rows) -> FirstLayers:
        """Return the sums of priced rows."""
        prices = rows.prices
        spared = (prices.activation_bytes - prices.checkpoint_bytes)[:, :-2]
        replay = prices.replay_s[:, :-2]
        missing = spared.max(axis=1, keepdims=True) - spared
        longer = np.where(_may_follow(rows)[:, None], replay - replay.min(axis=1, keepdims=True), 0.0)
        return cls(
            count=rows.some_layers, spared_bytes=sums_of(rows, missing), replay_s=sums_of(rows, longer)
        )

    def beyond_least(self, start: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return what a stage from ``start`` on spares less, and replays longer, than at best, (n,)."""
        if not self.count.any():
            return np.zeros(len(start)), np.zeros(len(start))
        end = np.minimum(start + self.count, len(self.replay_s) - 1)
        missing, longer = (at(sums, end) - at(sums, start) for sums in (self.spared_bytes, self.replay_s))
        return missing, longer


def _may_follow(rows: Rows) -> BoolArray:
    """Return whether a layer less in front never makes a stage slower, of whichever kinds, (n,)."""
    prices = rows.prices
    left = prices.backward_s[:, :-2] * (1.0 - 1.0 / rows.m)[:, None] + prices.replay_s[:, :-2]
    return np.asarray(left.min(axis=1) >= prices.replay_s[:, :-2].max(axis=1))
