"""Rows with so few splits that all of them are simulated: the reported split is the best of its row.

The closed form chooses a split by the work of each rank, and candidates move the usual few layers. Where
constraints (2), (3) and (5) of ``search`` leave at most ``MOST`` splits, none of them is left out: the
least simulation of those that fit is the score of the row, and no split of it is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from meshwright.solver.configuration import BoolArray, FloatArray, IntArray, distinct
from meshwright.solver.schedules.simulate import MAX_PASSES
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.splits import Split, ranks_of

MOST = 500  # splits of a row that are all simulated
_MOST_PASSES = MAX_PASSES // 16  # of a step that is simulated side by side with others


class Shape(NamedTuple):
    """What the splits of a row depend on, apart from its memory."""

    num_layers: int
    p: int
    v: int
    smallest: int  # least number of layers of a chunk
    in_a_v: bool


def are_listed(rows: Rows) -> BoolArray:
    """Mark rows with all of their splits among the candidates, (n,)."""
    if not rows.uneven_stages or rows.only_split or rows.layout.counts_ends or not len(rows):
        return np.zeros(len(rows), dtype=np.bool_)
    few = rows.columns.num_microbatches <= side_by_side(rows)  # every split is simulated in full
    few &= (rows.is_uniform | (rows.v == 1)) & ~rows.makes_order
    first, alike = distinct([rows.p, rows.v, rows.smallest_chunk, rows.in_a_v.astype(np.int64)])
    shapes = [shape_of(rows, at) for at in first.tolist()]
    return np.asarray(few & np.array([number_of_splits(shape) <= MOST for shape in shapes])[alike])


def side_by_side(rows: Rows) -> IntArray:
    """Return how many micro-batches of each row are simulated side by side, if it has as many, (n,)."""
    p, chunks = rows.p, rows.p * rows.v
    return np.asarray(np.maximum(_MOST_PASSES // (2 * chunks * p), 2) * p)


def shape_of(rows: Rows, at: int) -> Shape:
    """Return the shape of one row."""
    sizes = (rows.layout.num_layers, int(rows.p[at]), int(rows.v[at]), int(rows.smallest_chunk[at]))
    return Shape(*sizes, in_a_v=bool(rows.in_a_v[at]))


@lru_cache(maxsize=4096)
def number_of_splits(shape: Shape) -> int:
    """Return the number of splits, at most MOST + 1: ways to give each rank its layers."""
    spare = shape.num_layers - shape.p * shape.v * shape.smallest
    of_ranks = comb(spare + shape.p - 1, spare) if spare >= 0 else 0
    if shape.v == 1 or not 0 < of_ranks <= MOST:
        return min(of_ranks, MOST + 1)
    ends, inner = [_ways(shape, 0)], shape.p - 2
    if shape.p > 1:
        ends.append(_ways(shape, shape.p - 1))
    total = _convolved(ends[0], ends[-1]) if shape.p > 1 else ends[0]
    each = _ways(shape, 1) if inner > 0 else total
    while inner > 0:  # the ranks between are alike: their ways are raised to a power
        if inner % 2:
            total = _convolved(total, each)
        each, inner = _convolved(each, each), inner // 2
    return int(total[shape.num_layers])


def _convolved(one: FloatArray, other: FloatArray) -> FloatArray:
    return np.asarray(np.minimum(np.convolve(one, other)[: len(one)], MOST + 1.0))


@lru_cache(maxsize=4096)
def _ways(shape: Shape, rank: int) -> FloatArray:
    """Return in how many ways a rank holds 0 … L layers, (L + 1,)."""
    if 1 < rank < shape.p - 1:
        return _ways(shape, 1)
    v, least, held = shape.v, shape.smallest, np.arange(shape.num_layers + 1)
    if shape.in_a_v and rank == 0:
        return np.clip(held - 2.0 * least + 1.0, 0.0, MOST + 1.0)
    loose = v > 1 and rank in (0, shape.p - 1) and not shape.in_a_v
    alike, end = v - int(loose), held[least:] if loose else held[:1]
    each, more = np.divmod(held[:, None] - end, alike)
    there = (each >= least) & ((end <= each + 1) | (not loose))
    number = np.array([float(min(comb(alike, larger), MOST + 1)) for larger in range(alike)])
    return np.asarray(np.minimum(np.where(there, number[more], 0.0).sum(axis=1), MOST + 1.0))


class Way(NamedTuple):
    """Patterns of a rank's chunks that are alike: ``more`` of ``alike`` hold a layer beyond ``each``."""

    each: int
    alike: int
    more: int
    end: int | None  # layers of the model's first or last chunk

    def written(self, *, in_front: bool) -> IntArray:
        """Return the layers of each chunk, (k, v), for each choice of the larger chunks."""
        larger = np.array(list(combinations(range(self.alike), self.more)), dtype=np.int64)
        inner = np.full((len(larger), self.alike), self.each)
        np.put_along_axis(inner, larger.reshape(len(larger), self.more), self.each + 1, axis=1)
        if self.end is None:
            return inner
        end = np.full((len(inner), 1), self.end)
        return np.concatenate([end, inner] if in_front else [inner, end], axis=1)


def ways_of(shape: Shape, rank: int, held: int) -> Iterator[Way]:
    """Yield all patterns of a rank that holds so many layers, those that are alike together.

    Chunks differ by at most one layer; the model's first chunk, on the first rank, and its last one, on the
    last, may hold fewer. In a V the first rank holds both, in any sizes.
    """
    v, least = shape.v, shape.smallest
    if shape.in_a_v and rank == 0:
        yield from (Way(first, 1, 0, held - first) for first in range(least, held - least + 1))
        return
    loose = v > 1 and rank in (0, shape.p - 1) and not shape.in_a_v
    alike = v - int(loose)
    for end in range(least, held - alike * least + 1) if loose else (None,):
        each, more = divmod(held - (end or 0), alike)
        if each >= least and (end is None or end <= each + 1):
            yield Way(each, alike, more, end)


def patterns_of(shape: Shape, rank: int, counts: Iterable[int]) -> IntArray:
    """Return the layers of the chunks of one rank that add up to one of ``counts``, (k, v)."""
    in_front = rank == 0 and not shape.in_a_v
    ways = (way for held in counts for way in ways_of(shape, rank, held))
    found = [way.written(in_front=in_front) for way in ways]
    return np.concatenate([np.zeros((0, shape.v), dtype=np.int64), *found])


@lru_cache(maxsize=256)
def splits_of(shape: Shape) -> tuple[Split, ...]:
    """Return all splits of a shape with at most MOST of them."""
    behind = [np.eye(1, shape.num_layers + 1)[0]]  # ways of the ranks behind to hold 0 … L layers
    for rank in range(shape.p - 1, 0, -1):
        behind.append(_convolved(behind[-1], _ways(shape, rank)))
    # Chunks of each rank, and the layers that are left
    found: list[tuple[tuple[Split, ...], int]] = [((), shape.num_layers)]
    for rank in range(shape.p):
        left = behind[shape.p - 1 - rank]
        held = np.flatnonzero(_ways(shape, rank)).tolist()
        found = [
            ((*before, own), rest - count)
            for before, rest in found
            for count in held
            if count <= rest and left[rest - count]
            for own in map(tuple, patterns_of(shape, rank, [count]).tolist())
        ]
    of_chunk, splits = ranks_of(shape.p * shape.v, shape.p, in_a_v=shape.in_a_v), list[Split]()
    for ranks, _ in found:
        waiting = [iter(own) for own in ranks]
        splits.append(tuple(next(waiting[rank]) for rank in of_chunk))  # in model order
    return tuple(splits)
