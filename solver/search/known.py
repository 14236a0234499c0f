"""Configurations known beforehand as rows of a search: what an earlier one, broken off, had found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from solver.columns import BoolArray, Columns
from solver.crossing import OF_CHUNKS, Crossing
from solver.plan import Configuration

_OUTER = tuple(f.name for f in fields(Columns) if f.name not in OF_CHUNKS)


def rows_of(rows: Crossing | Columns, configurations: Sequence[Configuration]) -> list[int]:
    """The numbers of the rows that configurations belong to; one that is no legal row has none.

    Nothing of what is said about them is believed: a search that adopts such a row solves and scores it
    itself, so that its ranking is the same, and only found with fewer rows opened.
    """
    plain = [one for one in configurations if one.stage_layers and not (one.stage_groups or one.replicas)]
    if not plain or not len(rows):
        return []
    wanted, found = Columns.of(plain), list[int]()
    for at in range(len(plain)):
        if isinstance(rows, Columns):
            found += np.flatnonzero(_alike(rows, wanted, at, (*_OUTER, *OF_CHUNKS))).tolist()
            continue
        for outer in np.flatnonzero(_alike(rows.outer, wanted, at, _OUTER)):
            numbers = np.arange(rows.first[outer], rows.first[outer + 1])
            chunked = _alike(rows.take(numbers), wanted, at, OF_CHUNKS)
            found += numbers[chunked].tolist()
    return list(dict.fromkeys(found))


def _alike(columns: Columns, wanted: Columns, at: int, names: Sequence[str]) -> BoolArray:
    """Whether each row says the same as row ``at`` of ``wanted``, shape (n,)."""
    same = np.ones(len(columns), dtype=np.bool_)
    for name in names:
        same &= getattr(columns, name) == getattr(wanted, name)[at]
    return same
