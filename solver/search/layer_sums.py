"""Sums of prices over the first layers of a model, and how far a rank reaches in them.

The boundary leads in memory: to find one for hundreds of rows is an operation on rows side by side.
"""

from __future__ import annotations

import numpy as np

from solver.columns import FloatArray, IntArray
from solver.search.rows import Rows

_ROUNDING = 1e-9


def sums_of(rows: Rows, price: FloatArray) -> FloatArray:
    """Sum of a price by kind of layer (n, K) over the first l layers, (L + 1, n)."""
    return np.asarray(rows.layout.cumulative.astype(np.float64) @ np.ascontiguousarray(price.T))


def at(sums: FloatArray, index: IntArray) -> FloatArray:
    """Entry ``index`` of every row, (n,)."""
    return np.asarray(sums.take(index * sums.shape[1] + np.arange(sums.shape[1])))


def furthest(sums: FloatArray, start: IntArray, room: FloatArray) -> IntArray:
    """Last boundary whose sum is at most ``room`` above the sum at ``start``, (n,); -1 if none is."""
    limit = at(sums, start) + room
    return count_below(sums, limit + _ROUNDING * np.abs(limit)) - 1


def count_below(sums: FloatArray, limit: FloatArray) -> IntArray:
    """How many sums of every row are at most its limit, (n,)."""
    reached = (sums <= limit).view(np.uint8)
    return np.asarray(np.add.reduce(reached, axis=0, dtype=np.uint16), dtype=np.int64)
