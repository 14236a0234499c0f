"""What a rank can have run forward before its first backward pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from solver.columns import FloatArray
from solver.search.rank_costs import column
from solver.search.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Early:
    """What a rank ran forward before its first backward pass, columns of shape (n, 1).

    Of n layers at most ``slope * n + offset`` passes, and ``beside_s`` of what is not layers.
    """

    slope: FloatArray
    offset: FloatArray
    beside_s: FloatArray

    @classmethod
    def of(cls, rows: Rows, rank: int) -> Early:
        """The most that can have run early on rank ``rank``.

        Chunks that differ by at most one layer hold most early passes when the first ones, which keep most
        micro-batches in flight, are the larger ones. The last chunk of the last rank may be smaller still:
        there every layer is counted as if it sat in the first.
        """
        held, prices = rows.held, rows.prices
        chunk = np.arange(int(rows.v.max(initial=1)))[None, :]
        index = np.minimum(chunk * rows.p[:, None] + rank, held.shape[1] - 1)
        there = (chunk < rows.v[:, None]) & (rank < rows.p)[:, None]
        own = np.where(there, np.take_along_axis(held, index, axis=1), 0).astype(np.float64)
        passes, last = own.sum(axis=1), rows.p == rank + 1
        more = np.where(there, np.cumsum(own, axis=1) - (chunk + 1) * (passes / rows.v)[:, None], 0.0)
        loose = last & (rows.v > 1)
        final = np.take_along_axis(own, rows.v[:, None] - 1, axis=1)[:, 0]
        beside = prices.transfer_s * passes + np.where(last, final * prices.forward_s[:, -1], 0.0)
        return cls(
            slope=column(np.where(loose, own[:, 0], passes / rows.v)),
            offset=column(np.where(loose, 0.0, more.max(axis=1))),
            beside_s=column(beside + (rank == 0) * own[:, 0] * prices.forward_s[:, -2]),
        )

    @classmethod
    def in_a_v(cls, rows: Rows, rank: int) -> Early:
        """The same for rows whose chunks lie in a V, where a rank's first chunk keeps no fewer.

        Chunks differ by one layer at most; those of rank 0, the model's first and last, do as they like.
        """
        held, prices = rows.held.astype(np.float64), rows.prices
        other = np.clip(2 * rows.p - 1 - rank, 0, held.shape[1] - 1)
        first = held[:, min(rank, held.shape[1] - 1)]
        second = np.take_along_axis(held, other[:, None], axis=1)[:, 0]
        beside = (first + second) * prices.transfer_s
        if rank == 0:
            beside = beside + first * prices.forward_s[:, -2] + second * prices.forward_s[:, -1]
            spared = (first - second) * rows.smallest_chunk
            return cls(slope=column(first), offset=column(-spared), beside_s=column(beside))
        return cls(
            slope=column((first + second) / 2.0),
            offset=column((first - second) / 2.0),
            beside_s=column(beside),
        )
