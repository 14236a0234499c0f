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

from solver.columns import BoolArray, FloatArray, IntArray
from solver.cost.schedule import runs_all_forward_first
from solver.search.bounds import end_limit_s
from solver.search.caps import Caps
from solver.search.rank_costs import RankCosts, column
from solver.search.rows import Rows

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
        room = share_of(self.limit_s - self.tail_s - column(end), column((rows.m - 1.0) * each))
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


def share_of(room_s: FloatArray, each_s: FloatArray) -> FloatArray:
    """Layers in a time; without limit where they take none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(each_s > 0.0, room_s / each_s, np.where(room_s >= 0.0, np.inf, -1.0))
