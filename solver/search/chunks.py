"""Interleaved rows with layers of several kinds: the splits that the space offers for them.

Which chunk a layer sits in couples the ranks' times through the order of the layers, so that over all
splits no dynamic program of a useful size is exact. The space offers the regular ones: windows of larger
chunks (``windows``) at a few places, the model's first and last chunk with fewer layers or not. They
are all tried, so that the best of them is exact; on rows of DeepSeek-V3 no other split that keeps a
rank's chunks alike had a smaller closed form.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from solver.columns import IntArray
from solver.cost.assemble import objective_s
from solver.search.rows import Rows
from solver.search.watch import look
from solver.search.windows import Split, windows

_STARTS = 8
_TOGETHER = 16  # rows whose splits are priced at once
_MOST_CUT = 4  # layers that the model's last chunk may lack, for head, loss and prediction layers


@lru_cache(maxsize=512)
def offered(num_layers: int, chunks: int, smallest: int) -> IntArray:
    """Every split on offer into ``chunks`` chunks of at least ``smallest`` layers, (k, chunks)."""
    found = [
        split for first, last in product((0, 1), range(_MOST_CUT + 1))
        for split in windows(num_layers, chunks, first=first, last=last, smallest=smallest, starts=_STARTS)
    ]  # fmt: skip
    return np.unique(np.array(found, dtype=np.int64).reshape(-1, chunks), axis=0)


def best_offered(rows: Rows) -> list[Split | None]:
    """The split on offer that minimises the closed form of each row; None where none fits."""
    found: list[Split | None] = [None] * len(rows)
    shapes = np.stack([rows.p * rows.v, rows.smallest_chunk], axis=1)
    for chunks, smallest in np.unique(shapes, axis=0).tolist():
        index = np.flatnonzero((shapes == (chunks, smallest)).all(axis=1))
        splits = [tuple(split) for split in offered(rows.layout.num_layers, chunks, smallest).tolist()]
        for start in range(0, len(index) if splits else 0, _TOGETHER):
            look()
            some = index[start : start + _TOGETHER]
            many = rows.take(np.repeat(some, len(splits)))
            stages = many.stages(splits * len(some))
            fits = stages.peak_memory_bytes.max(axis=1) <= rows.budget_bytes
            cost = np.where(fits, objective_s(many.prices, many.columns, stages), np.inf)
            for row, costs in zip(some.tolist(), cost.reshape(len(some), -1), strict=True):
                found[row] = splits[int(costs.argmin())] if np.isfinite(costs.min()) else None
    return found
