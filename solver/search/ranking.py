"""How rows rank, and which of them are one layout.

Scores are compared in whole nanoseconds; equal ones rank the simple way: fewer parallel axes, less
recomputation, smaller tensor_parallel_size, smaller row number.

Rows that differ in how one layout is run (recomputation, chunks a rank, schedule, shard sets, sequence
parallelism, offload, way of context parallelism, order of ranks) are one *layout*; the best of them stands
for it, so that the best K are K layouts and not one layout with K numbers of chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from solver.columns import Columns, IntArray
from solver.crossing import Crossing
from solver.search.windows import Split

_NS = 1e9
INNER = (
    "recompute", "recompute_layers", "virtual_pipeline_size", "pipeline_schedule", "zero_shard_size",
    "sequence_parallel", "offload", "context_parallel_mode", "rank_order",
)  # fmt: skip
_LAYOUT = tuple(f.name for f in fields(Columns) if f.name not in INNER)
Layout = tuple[int, ...]
Rank = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True, order=True)
class Ranked:
    """One row in the ranking; ordered by its key."""

    key: Rank
    score_s: float
    row: int
    split: Split  # simulates to the score


def layouts_of(columns: Columns | Crossing, index: IntArray | list[int]) -> list[Layout]:
    """What tells the plans of rows apart: everything but ``INNER``."""
    taken = columns.take(np.asarray(index, dtype=np.int64))
    return list(zip(*(getattr(taken, name).tolist() for name in _LAYOUT), strict=True))


def ranked(columns: Columns | Crossing, row: int, score_s: float, split: Split) -> Ranked:
    """A row with its score and what orders it among others."""
    c = columns.take(np.array([row]))
    sizes = (
        c.tensor_parallel_size, c.pipeline_parallel_size, c.virtual_pipeline_size,
        c.context_parallel_size, c.expert_parallel_size, c.data_parallel_size,
    )  # fmt: skip
    axes = sum(int(size[0] > 1) for size in sizes) + int(c.zero_stage[0] > 0)
    replay, tensor = int(c.recompute_layers[0]), int(c.tensor_parallel_size[0])
    key = (round(score_s * _NS), axes, int(c.recompute[0]), replay, tensor, row)
    return Ranked(key, score_s, row, split)
