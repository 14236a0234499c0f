"""What one rank of every row takes beside its layers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.search.rows import Rows


def column(values: FloatArray | IntArray | BoolArray) -> FloatArray:
    """(n,) as (n, 1) floats."""
    return values.astype(np.float64)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCosts:
    """What one rank takes beside its layers, columns of shape (n, 1); seconds of a micro-batch."""

    time_s: FloatArray
    forward_s: FloatArray
    tail_s: FloatArray

    @classmethod
    def of(cls, rows: Rows, rank: int) -> RankCosts:
        """Rank ``rank`` of every row."""
        prices, last = rows.prices, rows.head_rank == rank
        time = rows.v * rows.chunk_s + np.where(last, rows.head_s, 0.0)
        forward = rows.v * prices.transfer_s + np.where(last, prices.forward_s[:, -1], 0.0)
        tail = prices.rank_tail_s + np.where(last, prices.tail_s[:, -1], 0.0)
        if rank == 0:
            time, forward = time + rows.embedding_s, forward + prices.forward_s[:, -2]
            tail = tail + prices.tail_s[:, -2]
        return cls(time_s=column(time), forward_s=column(forward), tail_s=column(tail))
