"""A split that the request prescribes: the bound, the split and the peak of every row that has it.

Whatever the sizes of the chunks, ``bounds.split_s`` bounds the simulation of one given split; the other
tiers reason about the splits that the search would offer and are left out.
"""

from __future__ import annotations

import numpy as np

from solver.columns import BoolArray, FloatArray
from solver.search.bounds import split_s
from solver.search.rows import Rows
from solver.search.windows import Split


def _fits(rows: Rows) -> BoolArray:
    """Rows of as many chunks that hold as many layers as they recompute, within their memory, (n,)."""
    many = np.asarray(rows.p * rows.v == len(rows.only_split))
    able: BoolArray = many & (rows.smallest_chunk <= min(rows.only_split))
    if rows.layout.num_layers != sum(rows.only_split):
        return np.zeros(len(rows), dtype=np.bool_)
    index = np.flatnonzero(able)
    if len(index):
        stages = rows.take(index).stages([rows.only_split] * len(index))
        able[index] = stages.peak_memory_bytes.max(axis=1) <= rows.budget_bytes
    return able


def only_bound_s(rows: Rows) -> FloatArray:
    """The bound of every row under the prescribed split; +inf where it does not fit, shape (n,)."""
    bound = np.full(len(rows), np.inf)
    index = np.flatnonzero(_fits(rows))
    if len(index):
        found = rows.take(index)
        bound[index] = split_s(found, found.stages([rows.only_split] * len(index)))
    return bound


def only_splits(rows: Rows) -> list[Split | None]:
    """The prescribed split of every row; None where it does not fit."""
    return [rows.only_split if fits else None for fits in _fits(rows).tolist()]
