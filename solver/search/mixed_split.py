"""Which rows of mixed layers that split the backward pass could step faster than a given time.

Layers of several kinds, one chunk a rank: ranks are filled one after the other, as in ``mixed``, with as
many layers as (E), (F), (G) (``split_backward``) and their memory allow. Layers u … j - 1 on rank s are
within (F) if

  F(u, L) + I(j, L) + m T(u, j) - held_s F(u, j) + tail(u, j) + (what is not layers) <= Z.

It grows with j, since m T >= held_s F + I of every layer, and falls with u, since m T >= (held_s - 1) F: a
rank that begins a layer later reaches as far, so the fill reaches layer L if some split keeps the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.search.bounds import end_limit_s
from solver.search.caps import room_bytes
from solver.search.layer_sums import at, furthest, sums_of
from solver.search.rank_costs import RankCosts
from solver.search.rows import Rows


def can_beat_mixed_split(rows: Rows, p: int, step_s: FloatArray) -> BoolArray:
    """Whether rows of ``p`` ranks may have a split that fits and simulates within ``step_s``, (n,).

    False is a proof.
    """
    fill = _Fill.of(rows, p, step_s)
    used = np.zeros(len(rows), dtype=np.int64)
    alive = np.ones(len(rows), dtype=np.bool_)
    for rank in range(p):
        end = np.minimum(fill.furthest(rank, used), rows.layout.num_layers - (p - 1 - rank))
        alive &= end > used
        used = np.maximum(end, used)
    return np.asarray(alive & (used >= rows.layout.num_layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fill:
    """Sums over the first l layers, (L + 1, n), and what bounds them."""

    rows: Rows
    p: int
    limit_s: FloatArray  # (n,) end and tail of the slowest rank
    forward_s: FloatArray
    input_s: FloatArray  # input gradients
    busy_s: FloatArray  # all micro-batches of a layer, and its tail
    states_bytes: FloatArray
    kept_bytes: FloatArray  # of one micro-batch in flight
    held: FloatArray  # (n, p) micro-batches in flight
    room_bytes: FloatArray  # (n, p)

    @classmethod
    def of(cls, rows: Rows, p: int, step_s: FloatArray) -> _Fill:
        """Ready to fill within ``step_s``."""
        prices = rows.prices
        held = rows.held[:, :p].astype(np.float64)
        return cls(
            rows=rows,
            p=p,
            limit_s=end_limit_s(rows, step_s),
            forward_s=sums_of(rows, prices.forward_s[:, :-2]),
            input_s=sums_of(rows, _input_s(rows)[:, :-2]),
            busy_s=sums_of(rows, rows.m[:, None] * rows.layer_s + prices.tail_s[:, :-2]),
            states_bytes=sums_of(rows, rows.state_bytes[:, :-2]),
            kept_bytes=sums_of(rows, rows.least_kept_bytes[:, :-2]),
            held=held,
            room_bytes=room_bytes(rows, held[:, None, :]),
        )

    def furthest(self, rank: int, used: IntArray) -> IntArray:
        """The last layer that a rank may hold which begins behind ``used`` of them, (n,)."""
        own, held = RankCosts.of(self.rows, rank), self.held[:, rank]
        busy = self.rows.m * own.time_s[:, 0] + own.tail_s[:, 0]
        left = self.limit_s - busy
        weighs = self.states_bytes + held * self.kept_bytes
        late = self.busy_s - held * self.forward_s - self.input_s
        wait = self._wait_s(rank, used) - held * own.forward_s[:, 0]
        ends = (
            furthest(weighs, used, self.room_bytes[:, rank]),
            furthest(self.busy_s, used, left),
            furthest(late, used, left - wait),
            self._return_end(rank, used),
        )
        return np.asarray(np.minimum.reduce(ends))

    def _wait_s(self, rank: int, used: IntArray) -> FloatArray:
        """F and I of all layers behind ``used``, and what is not layers of the passes waited for, (n,)."""
        prices, behind = self.rows.prices, self.p - 1 - rank
        both = self.forward_s + self.input_s
        wait = both[-1] - at(both, used) + (2 * behind + 1) * prices.transfer_s + prices.forward_s[:, -1]
        if rank == 0:
            wait = wait + prices.forward_s[:, -2]
        return np.asarray(wait + (behind > 0) * _input_s(self.rows)[:, -1])

    def _return_end(self, rank: int, used: IntArray) -> IntArray:
        """Where (G) ends a rank."""
        rows, prices = self.rows, self.rows.prices
        both, ends = self.forward_s + self.input_s, prices.forward_s + _input_s(rows)
        own = 2.0 * prices.transfer_s + (rank == 0) * ends[:, -2] + (rank == self.p - 1) * ends[:, -1]
        before = at(both, used) + rank * 2.0 * prices.transfer_s + (rank > 0) * ends[:, -2]
        last = prices.weight_gradient_s[:, :-2].min(axis=1) + prices.weight_gradient_s[:, -2]
        tail = prices.tail_s[:, :-2].min(axis=1) + prices.rank_tail_s + prices.tail_s[:, -2]
        room = self.limit_s - before - last - tail - rows.m * own
        return furthest(rows.m * both, used, room)


def _input_s(rows: Rows) -> FloatArray:
    """Input gradient of every part, (n, P)."""
    return np.asarray(rows.prices.backward_s - rows.prices.weight_gradient_s)
