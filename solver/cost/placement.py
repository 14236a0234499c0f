"""Where the ranks of a row lie: which strides each order of the mesh axes gives them.

Ranks are numbered along one axis after the other (Megatron-Core ``RankGenerator``: ``tp-cp-ep-dp-pp``). The
ranks of one stage keep the order of their own axes; where pp does not come last, the axes behind it are
one block of ranks for each step along them, and as many blocks of other stages lie in between. Experts are
split over the innermost ranks of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.collectives import Blocks
from solver.columns import BoolArray, Columns, FloatArray, IntArray
from solver.rank_orders import RANK_ORDERS


def _before(first: str, second: str) -> BoolArray:
    """Whether the first axis is the faster one, for each of ``RANK_ORDERS``."""
    return np.array(
        [order.split("-").index(first) < order.split("-").index(second) for order in RANK_ORDERS]
    )


_CONTEXT_BEFORE_STAGES, _DATA_BEFORE_STAGES = _before("cp", "pp"), _before("dp", "pp")
_DATA_BEFORE_CONTEXT = _before("dp", "cp")
DEFAULT = 0  # of RANK_ORDERS: stages outermost, whose ranks lie side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Distances between ranks, shape (n,)."""

    block: FloatArray  # from one stage to the next: ranks of a stage that lie side by side
    context_stride: FloatArray  # of context-parallel ranks among those of their stage
    blocks: Blocks | None  # None: stages are outermost in every row


def placement_of(columns: Columns) -> Placement:
    """Where the ranks of every row lie."""
    order = columns.rank_order
    block, context_stride = _distances(columns, order)
    size = block.astype(np.float64)
    stages = columns.pipeline_parallel_size.astype(np.float64)
    return Placement(
        block=size,
        context_stride=context_stride.astype(np.float64),
        blocks=Blocks(size=size, stages=stages) if (order != DEFAULT).any() else None,
    )


def _distances(columns: Columns, order: IntArray | int) -> tuple[IntArray, IntArray]:
    """Ranks from one stage to the next, and from one context-parallel rank to the next in a stage."""
    tp, cp, dp = columns.tensor_parallel_size, columns.context_parallel_size, columns.data_parallel_size
    block = (
        tp * np.where(_CONTEXT_BEFORE_STAGES[order], cp, 1) * np.where(_DATA_BEFORE_STAGES[order], dp, 1)
    )
    return block, tp * np.where(_DATA_BEFORE_CONTEXT[order], dp, 1)


def same_ranks(columns: Columns, order: IntArray | int, other: IntArray | int) -> BoolArray:
    """Rows whose every rank lies at the same place in both orders, shape (n,)."""
    return _alike(columns, order, other, int(columns.num_gpus.max(initial=1)))


def same_links(
    columns: Columns, order: IntArray | int, other: IntArray | int, island_gpus: int
) -> BoolArray:
    """Rows whose collectives cross the same links in both orders, shape (n,).

    Beyond ``island_gpus`` no distance tells from another: each rank is alone on its island either way.
    """
    return np.asarray(_alike(columns, order, other, island_gpus) | (columns.num_gpus <= island_gpus))


def _alike(columns: Columns, order: IntArray | int, other: IntArray | int, most: int) -> BoolArray:
    """Rows whose distances are equal in both orders, as far as ``most``; shape (n,)."""
    alike = np.ones(len(columns), dtype=np.bool_)
    for one, two, size in zip(
        _distances(columns, order),
        _distances(columns, other),
        (columns.pipeline_parallel_size, columns.context_parallel_size),
        strict=True,
    ):
        alike &= (size == 1) | (np.minimum(one, most) == np.minimum(two, most))
    return alike
