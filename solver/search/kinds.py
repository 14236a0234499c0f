"""Rows of one kind: what a million rows have in common, so that most of them are never looked at.

Rows of one outer row that recompute alike and have one chunk a rank, or several, share their prices; they
differ in the number of chunks and of recomputed layers. A *kind* stands for them: its representative has
the fewest chunks and the fewest recomputed layers of its rows, so that what grows with either is least.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from solver.columns import ALL_LAYERS, PER_STAGE, RECOMPUTE, SCHEDULES, Columns, FloatArray, IntArray
from solver.cost.schedule import SPLIT_BACKWARD, fill_share
from solver.crossing import OF_CHUNKS, Crossing

Values = TypeVar("Values", IntArray, FloatArray)
_FULL = RECOMPUTE.index("full")
_SPLIT = np.array([name in SPLIT_BACKWARD for name in SCHEDULES])
_APART = ("zero_shard_size", *OF_CHUNKS)  # what rows of one outer family differ in
_HASH_SEED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """Kinds that differ in the size of their shard sets alone, family by family, smallest size first."""

    members: IntArray  # kinds
    begin: IntArray  # (f + 1,) where the members of each family begin, and their number

    def __len__(self) -> int:
        """Number of families."""
        return len(self.begin) - 1

    @property
    def sizes(self) -> IntArray:
        """Members of each family, (f,)."""
        return np.diff(self.begin)

    def members_of(self, index: IntArray) -> IntArray:
        """The members of some families, family by family."""
        sizes = self.sizes[index]
        ends = np.cumsum(sizes)
        return np.asarray(
            self.members[np.arange(sizes.sum()) + np.repeat(self.begin[index] - ends + sizes, sizes)]
        )

    def take(self, index: IntArray) -> Families:
        """Some families, in that order."""
        return Families(
            members=self.members_of(index), begin=np.concatenate([[0], np.cumsum(self.sizes[index])])
        )

    def without(self, dropped: IntArray) -> Families:
        """The families without so many of their first members each, (f,); those with none left are gone."""
        sizes = self.sizes
        place = np.arange(len(self.members)) - np.repeat(self.begin[:-1], sizes)
        left = sizes - dropped
        return Families(
            members=self.members[place >= np.repeat(dropped, sizes)],
            begin=np.concatenate([[0], np.cumsum(left[left > 0])]),
        )


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """The kinds of a crossing's rows, numbered outer row by outer row."""

    crossing: Crossing
    by_chunks: bool = False  # each number of chunks and schedule is a kind: prices depend on them

    @cached_property
    def _code(self) -> IntArray:
        """The kind of each inner row, 0 … K - 1, shape (c,)."""
        chunks, recompute, layers, schedule = self.crossing.inner.T
        several = chunks if self.by_chunks else np.minimum(chunks, 2)
        order = schedule if self.by_chunks else _SPLIT[schedule]
        code = (recompute * (int(several.max(initial=1)) + 1) + several) * len(SCHEDULES) + order
        code = code * 2 + (layers == PER_STAGE)
        return np.unique(code, return_inverse=True)[1].ravel()

    @cached_property
    def _lists(self) -> tuple[IntArray, IntArray]:
        """Where each list of chunkings begins in ``inner``, and the list of each outer row."""
        return np.unique(self.crossing.begin, return_inverse=True)

    @cached_property
    def _sorted(self) -> tuple[IntArray, IntArray, IntArray]:
        """Inner rows by list and kind; where each pair of them begins, and its size, (lists * K,)."""
        begins, width = self._lists[0], int(self._code.max(initial=-1)) + 1
        key = (np.searchsorted(begins, np.arange(len(self._code)), side="right") - 1) * width + self._code
        sizes = np.bincount(key, minlength=len(begins) * width)
        return np.argsort(key, kind="stable"), np.cumsum(sizes) - sizes, sizes

    @cached_property
    def _pairs(self) -> tuple[IntArray, IntArray]:
        """The outer row of every kind, and its pair of list and inner kind, (k,) each."""
        width = int(self._code.max(initial=-1)) + 1
        pair = self._lists[1].ravel()[:, None] * width + np.arange(width)[None, :]
        outer, which = np.nonzero(self._sorted[2][pair] > 0)
        return outer, pair[outer, which]

    def __len__(self) -> int:
        """Number of kinds."""
        return len(self._pairs[0])

    @cached_property
    def families(self) -> Families:
        """All kinds by family."""
        outer, begin = self._outer_families
        number = np.bincount(self._pairs[0], minlength=len(outer))  # kinds of each outer row
        first = np.cumsum(number) - number
        each, many = number[outer[begin[:-1]]], np.diff(begin)  # families of each run, and members of each
        run = np.repeat(np.arange(len(each)), each)
        kind = np.arange(len(run)) - np.repeat(np.cumsum(each) - each, each)
        sizes = many[run]
        ends = np.cumsum(sizes)
        place = np.arange(sizes.sum()) + np.repeat(begin[run] - ends + sizes, sizes)
        return Families(
            members=first[outer[place]] + np.repeat(kind, sizes), begin=np.concatenate([[0], ends])
        )

    def least_of_family(self, values: FloatArray) -> FloatArray:
        """The least of the values of the outer rows of each one's family, (o,)."""
        outer, begin = self._outer_families
        least = np.empty_like(values)
        least[outer] = np.repeat(np.minimum.reduceat(values[outer], begin[:-1]), np.diff(begin))
        return least

    @cached_property
    def _outer_families(self) -> tuple[IntArray, IntArray]:
        """Outer rows in runs that differ in ``zero_shard_size`` alone, and where each run begins.

        Rows with equal random linear hashes come together; what differs all the same is no run.
        """
        columns = self.crossing.outer
        values = [getattr(columns, f.name) for f in fields(columns) if f.name not in _APART]
        values = [value for value in [self.crossing.begin, *values] if (value != value[:1]).any()]
        odd = np.random.default_rng(_HASH_SEED).integers(0, 2**62, len(values)) * 2 + 1
        hashed = np.zeros(len(columns), dtype=np.int64)
        with np.errstate(over="ignore"):
            for value, factor in zip(values, odd, strict=True):
                hashed += value * factor
        order = np.lexsort((columns.zero_shard_size, hashed))
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = False
        for value in values:
            new[1:] |= np.diff(value[order]) != 0
        return order, np.append(np.flatnonzero(new), len(order))

    @cached_property
    def sizes(self) -> IntArray:
        """Rows of each kind, shape (k,)."""
        return np.asarray(self._sorted[2][self._pairs[1]])

    def outer_of(self, kinds: IntArray) -> IntArray:
        """The outer rows of some kinds."""
        return np.asarray(self._pairs[0][kinds])

    @cached_property
    def _number(self) -> IntArray:
        """The kind of each outer row and inner kind, (o, K); -1 where there is none."""
        width = int(self._code.max(initial=-1)) + 1
        outer, pair = self._pairs
        number = np.full((len(self.crossing.outer), width), -1, dtype=np.int64)
        number[outer, pair % width] = np.arange(len(outer))
        return number

    def of(self, index: IntArray) -> IntArray:
        """The kinds of rows."""
        crossing = self.crossing
        outer = np.searchsorted(crossing.first, index, side="right") - 1
        return np.asarray(
            self._number[outer, self._code[crossing.begin[outer] + index - crossing.first[outer]]]
        )

    def rows(self, kinds: IntArray) -> IntArray:
        """The numbers of all rows of some kinds, kind by kind."""
        outer, pair = (values[kinds] for values in self._pairs)
        order, begins, _ = self._sorted
        sizes, crossing = self.sizes[kinds], self.crossing
        steps = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        inner = order[np.repeat(begins[pair], sizes) + steps]
        return np.asarray(inner + np.repeat(crossing.first[outer] - crossing.begin[outer], sizes))

    def _least(self, values: Values) -> Values:
        """The least of the inner rows' values in each pair."""
        order, begins, sizes = self._sorted
        there = np.flatnonzero(sizes)
        least = np.zeros_like(values, shape=len(sizes))
        if len(there):
            least[there] = np.minimum.reduceat(values[order], begins[there])
        return least

    @cached_property
    def least_fill(self) -> FloatArray:
        """The least share of a pass that filling costs a row of each kind, shape (k,)."""
        inner = dict(zip(OF_CHUNKS, self.crossing.inner.T, strict=True))
        some = self.crossing.outer.take(np.zeros(len(self.crossing.inner), dtype=np.int64))
        return self._least(fill_share(replace(some, **inner)))[self._pairs[1]]

    def quickest(self, kinds: IntArray) -> Columns:
        """A row for each kind with its fewest chunks and at most one recomputed layer a chunk.

        It recomputes every layer where all rows of the kind do; it need not be one of them.
        """
        outer, pair = (values[kinds] for values in self._pairs)
        order, begins, _ = self._sorted
        first = self.crossing.inner[order[begins[pair]]].T
        inner = dict(zip(OF_CHUNKS, first, strict=True))
        chunks, _, layers, _ = self.crossing.inner.T
        inner["virtual_pipeline_size"] = self._least(chunks)[pair]
        inner["recompute_layers"] = self._least(
            np.where(layers == ALL_LAYERS, layers, (layers > 0) & (layers < ALL_LAYERS))
        )[pair]
        return replace(self.crossing.outer.take(outer), **inner)

    def lightest(self, kinds: IntArray) -> Columns:
        """The same that recompute every layer where the kind recomputes any."""
        columns = self.quickest(kinds)
        again = np.where(columns.recompute == _FULL, ALL_LAYERS, columns.recompute_layers)
        return replace(columns, recompute_layers=again)
