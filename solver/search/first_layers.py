"""What the first k layers of a stage spare and replay, where layers are of several kinds.

``Rows.chunk_s`` counts k of the shortest replay, ``caps.room_bytes`` k layers that spare most. Where a
stage begins is known in the fill of ``mixed``, and with it which k layers those are. The fill is valid if a
stage that begins a layer later reaches as far. It then holds one layer less, and one of its layers replays
in the place of that one: memory falls, since a layer weighs at least what its recomputation spares; and so
does time if b (1 - 1/m) + r of any kind is at least r of any other, b the backward pass of a layer, r its
replay. Where that does not hold the least replay is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.search.layer_sums import at, sums_of
from solver.search.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLayers:
    """Sums over the first l layers, (L + 1, n), of rows with one chunk a rank; k is ``count``."""

    count: IntArray  # (n,) recomputed layers of each stage
    spared_bytes: FloatArray  # less than the most that a layer of theirs may spare, of one micro-batch
    replay_s: FloatArray  # more than the least that one may replay; 0 where the best case is kept

    @classmethod
    def of(cls, rows: Rows) -> FirstLayers:
        """Those of priced rows."""
        prices = rows.prices
        spared = (prices.activation_bytes - prices.checkpoint_bytes)[:, :-2]
        replay = prices.replay_s[:, :-2]
        missing = spared.max(axis=1, keepdims=True) - spared
        longer = np.where(_may_follow(rows)[:, None], replay - replay.min(axis=1, keepdims=True), 0.0)
        return cls(
            count=rows.some_layers, spared_bytes=sums_of(rows, missing), replay_s=sums_of(rows, longer)
        )

    def missing_bytes(self, start: IntArray) -> FloatArray:
        """Bytes of a micro-batch that a stage from layer ``start`` on spares less than at best, (n,)."""
        return self._first(self.spared_bytes, start)

    def longer_s(self, start: IntArray) -> FloatArray:
        """Seconds that it replays longer than at best, (n,)."""
        return self._first(self.replay_s, start)

    def _first(self, sums: FloatArray, start: IntArray) -> FloatArray:
        """What the first layers from ``start`` on add up to, (n,)."""
        return at(sums, np.minimum(start + self.count, len(sums) - 1)) - at(sums, start)


def _may_follow(rows: Rows) -> BoolArray:
    """Whether a layer less in front never makes a stage slower, whichever kinds they are of, (n,)."""
    prices = rows.prices
    left = prices.backward_s[:, :-2] * (1.0 - 1.0 / rows.m)[:, None] + prices.replay_s[:, :-2]
    return np.asarray(left.min(axis=1) >= prices.replay_s[:, :-2].max(axis=1))
