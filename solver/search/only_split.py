"""A split that the request or the launcher prescribes: the bound, the split and the peak of every row.

Whatever the sizes of the chunks, ``bounds.split_s`` bounds the simulation of one given split; the other
tiers reason about the splits that the search would offer and are left out.
"""

from __future__ import annotations

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.search.bounds import split_s
from solver.search.rows import Rows
from solver.search.windows import Split


def only_splits(rows: Rows) -> list[Split | None]:
    """The prescribed split of every row; None where it has none, or where it does not fit in memory."""
    splits, layers = rows.only_split.splits(rows.columns), rows.layout.num_layers
    able = [
        split if split is not None and sum(split) == layers and smallest <= min(split) else None
        for split, smallest in zip(splits, rows.smallest_chunk.tolist(), strict=True)
    ]
    index, given = _with_a_split(able)
    if len(index):
        peak_bytes = rows.take(index).stages(given).peak_memory_bytes.max(axis=1)
        for row in index[peak_bytes > rows.budget_bytes].tolist():
            able[row] = None
    return able


def only_fits(rows: Rows) -> BoolArray:
    """Rows whose prescribed split fits in memory, shape (n,)."""
    return np.array([split is not None for split in only_splits(rows)], dtype=np.bool_)


def only_bound_s(rows: Rows) -> FloatArray:
    """The bound of every row under its prescribed split; +inf where that does not fit, shape (n,)."""
    bound = np.full(len(rows), np.inf)
    index, given = _with_a_split(only_splits(rows))
    if len(index):
        found = rows.take(index)
        bound[index] = split_s(found, found.stages(given))
    return bound


def _with_a_split(splits: list[Split | None]) -> tuple[IntArray, list[Split]]:
    """The rows that have a split, and their splits."""
    index = [row for row, split in enumerate(splits) if split is not None]
    return np.array(index, dtype=np.int64), [split for split in splits if split is not None]
