"""Rows as two factors: a row without its chunks, and its division into chunks.

Most rules look at the first factor alone. Asked there, before the two are crossed, they spare a million
rows that would break them; which rules those are is seen from what they read. The other rules are asked
once for all outer rows that are alike in what these rules read. Legal rows stay two factors: a row is
written down at its first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from meshwright.solver.clock import look
from meshwright.solver.configuration import (
    ALL_LAYERS,
    PER_STAGE,
    RECOMPUTE,
    SCHEDULES,
    BoolArray,
    Columns,
    Configuration,
    FloatArray,
    IntArray,
    distinct,
    hash_factors,
    rows_at,
)
from meshwright.solver.schedules.schedule import PRICED_AS, fill_share
from meshwright.solver.space.rule import OF_CHUNKS, Rule
from meshwright.solver.space.rules import violation_masks

Chunkings = tuple[int, IntArray]  # a pipeline size, and its rows of OF_CHUNKS
Block = tuple["OuterRows", list[Chunkings]]  # rows by pipeline size, and the chunkings of each size
_RECOMPUTE_LAYERS = OF_CHUNKS.index("recompute_layers")
_CHUNKED = frozenset(OF_CHUNKS)
_OUTER = tuple(f.name for f in fields(Columns) if f.name not in OF_CHUNKS)
_AT_ONCE = 2**18  # rows written at once
_FEW = 4  # times as many are many


@dataclass(frozen=True, slots=True)
class _Crossed:
    crossing: Crossing
    outer: IntArray
    inner: IntArray

    def gather(self, names: Iterable[str]) -> list[IntArray]:
        if len(self.outer) > _AT_ONCE:
            look()
        chunks = dict(zip(OF_CHUNKS, self.crossing.inner.T, strict=True))
        outer, inner = self.crossing.outer, rows_at(self.inner)
        if _FEW * len(self.outer) < len(outer):  # none of its columns is gathered whole for few rows
            outer = outer.take(self.outer)
            return [inner(chunks[name]) if name in chunks else getattr(outer, name) for name in names]
        rows = rows_at(self.outer)
        return [inner(chunks[name]) if name in chunks else rows(getattr(outer, name)) for name in names]

    def take(self, index: IntArray) -> _Crossed:
        return _Crossed(self.crossing, self.outer.take(index), self.inner.take(index))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Legal rows as two factors; an outer row's rows follow one another, in the order of its chunkings."""

    outer: Columns
    inner: IntArray  # (c, 4) lists of chunkings, one after the other; columns are OF_CHUNKS
    begin: IntArray  # (o,) where an outer row's list begins; equal: the same list
    first: IntArray  # (o + 1,) the number of each outer row's first row, and of all rows

    def __len__(self) -> int:
        return int(self.first[-1])

    def among(self, kept: IntArray | BoolArray) -> Crossing:
        """Return the rows of some outer rows, with the lists that those have."""
        sizes, begin = np.diff(self.first)[kept], self.begin[kept]
        begins, one, which = np.unique(begin, return_index=True, return_inverse=True)
        ends = np.cumsum(sizes[one])
        return Crossing(
            outer=self.outer.take(kept),
            inner=self.inner[_runs(begins, sizes[one])],
            begin=(ends - sizes[one])[which.ravel()],
            first=np.concatenate([[0], np.cumsum(sizes)]),
        )

    def take(self, index: IntArray) -> Columns:
        """Return the rows at ``index``, in that order."""
        if len(index) > _AT_ONCE:
            look()
        index = index.astype(np.int64, copy=False)
        row = np.searchsorted(self.first, index, side="right") - 1
        return Columns.gathered(_Crossed(self, row, self.begin[row] + index - self.first[row]), len(index))

    def recomputed(self, index: IntArray) -> IntArray:
        """Return ``recompute_layers`` of the rows at ``index``."""
        row = np.searchsorted(self.first, index, side="right") - 1
        return np.asarray(self.inner[self.begin[row] + index - self.first[row], _RECOMPUTE_LAYERS])

    @classmethod
    def nothing(cls) -> Crossing:
        """Return no rows."""
        none = np.zeros(0, dtype=np.int64)
        return cls(
            outer=Columns.nothing(),
            inner=none.reshape(0, len(OF_CHUNKS)),
            begin=none,
            first=np.zeros(1, dtype=np.int64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Crossing]) -> Crossing:
        """Return all rows, part after part."""
        if len(parts) == 1:
            return parts[0]
        inner = np.cumsum([0, *(len(part.inner) for part in parts)])
        sizes, lines = [np.diff(part.first) for part in parts], dict[str, IntArray]()
        unlike = list({id(part): part for part in parts}.values())
        for f in fields(Columns):
            look()
            lines[f.name] = np.concatenate([getattr(part.outer, f.name) for part in unlike])
        outer = Columns(**lines)
        if len(unlike) < len(parts):  # what nobody reads of rows that come again is never written
            end = np.cumsum([len(part.outer) for part in unlike])
            last = {id(part): int(at) for part, at in zip(unlike, end, strict=True)}
            outer = outer.take(
                np.concatenate(
                    [np.arange(last[id(part)] - len(part.outer), last[id(part)]) for part in parts]
                )
            )
        return cls(
            outer=outer,
            inner=np.concatenate([part.inner for part in parts]),
            begin=np.concatenate([part.begin + start for part, start in zip(parts, inner, strict=False)]),
            first=np.concatenate([[0], np.cumsum(np.concatenate(sizes))]),
        )


def _runs(begin: IntArray, sizes: IntArray) -> IntArray:
    """Return begin, begin + 1, … of each run, one run after the other."""
    return np.arange(sizes.sum()) + np.repeat(begin - np.cumsum(sizes) + sizes, sizes)


def crossed(outer: Columns, inner: IntArray) -> Columns:
    """Return every row of one factor with every row of the other; a column is written once."""
    shape = (len(outer), len(inner))
    chunked = dict(zip(OF_CHUNKS, inner.T, strict=True))
    lines = {}
    look()
    for f in fields(Columns):
        line = np.empty(shape, dtype=np.int64)
        line[:] = chunked[f.name] if f.name in chunked else getattr(outer, f.name)[:, None]
        lines[f.name] = line.ravel()
    return Columns(**lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterRows:
    """Rows with one chunk, in the order of their pipeline sizes, that break no rule on themselves alone."""

    legal: Columns
    sizes: IntArray  # of pipelines, ascending, (s,)
    counts: IntArray  # rows of each size, with those that break a rule, (s,)

    @classmethod
    def of(cls, rules: tuple[Rule, ...], outer: Columns) -> OuterRows:
        """Return those of some rows, which are in that order."""
        sizes, counts = np.unique(outer.pipeline_parallel_size, return_counts=True)
        return cls(legal=outer.take(np.flatnonzero(outer_legal(rules, outer))), sizes=sizes, counts=counts)


def parts_of(outer: Columns, every: Sequence[Chunkings]) -> Iterator[tuple[Columns, IntArray]]:
    """Yield the rows of each pipeline size of a block, and their chunkings."""
    if len(every) == 1:
        yield outer, every[0][1]
        return
    sizes = [pp for pp, _ in every]
    begin, end = (np.searchsorted(outer.pipeline_parallel_size, sizes, side) for side in ("left", "right"))
    for at, (_, inner) in enumerate(every):
        yield outer.take(slice(begin[at], end[at])), inner


def legal_rows(
    rules: tuple[Rule, ...], blocks: Iterable[Block], tick: Callable[[], object] = lambda: None
) -> tuple[Crossing, int]:
    """Return rows of all cross products that break no rule, in order, and the number of others.

    ``tick`` is called meanwhile.
    """
    seeing = [rule for rule in rules if not _CHUNKED.isdisjoint(rule.reads)]
    together = [rule for rule in seeing if rule.concerns is None]
    # Rules that any row may break are asked together, each of the others by itself.
    left = [some for some in (together, *([one] for one in seeing if one.concerns is not None)) if some]
    parts, size = [Crossing.nothing()], 0
    for outer, every in blocks:
        chunkings = {pp: len(inner) for pp, inner in every}
        counts = zip(outer.sizes.tolist(), outer.counts.tolist(), strict=True)
        size += sum(count * chunkings[pp] for pp, count in counts)
        some = parts_of(outer.legal, every)
        parts += [_legal_of(left, outer, inner, tick) for outer, inner in some if len(outer)]
    rows = Crossing.concatenate(parts)
    return rows, size - len(rows)


def _legal_of(
    left: Sequence[Sequence[Rule]], outer: Columns, inner: IntArray, tick: Callable[[], object]
) -> Crossing:
    """Return a cross product's legal rows; outer rows that have the same ones share a list.

    ``outer`` breaks no rule on its own account; ``left`` are the rules that see chunks too.
    """
    lists, which = np.ones((1, len(inner)), dtype=np.bool_), np.zeros(len(outer), dtype=np.int64)
    for together in left:
        own, of_row = _lists_of(together, outer, inner, tick)
        codes, which = np.unique(which * len(own) + of_row, return_inverse=True)
        before, here = np.divmod(codes, len(own))
        lists, which = lists[before] & own[here], which.ravel()
    counts = lists.sum(axis=1)
    there = np.flatnonzero(counts[which] > 0)  # an empty list would begin where the next one does
    outer, which = outer.take(there), which[there]
    return Crossing(
        outer=outer,
        inner=inner[np.nonzero(lists)[1]],
        begin=(np.cumsum(counts) - counts)[which],
        first=np.concatenate([[0], np.cumsum(counts[which])]).astype(np.int64),
    )


def _lists_of(
    rules: Sequence[Rule], outer: Columns, inner: IntArray, tick: Callable[[], object]
) -> tuple[BoolArray, IntArray]:
    """Return the sets of chunkings that some rules leave, (k, c), and each outer row's number, (o,).

    Outer rows that agree in all that the rules read are asked once; those that cannot break them, never.
    """
    lists, of_row = [np.ones((1, len(inner)), dtype=np.bool_)], np.zeros(len(outer), dtype=np.int64)
    concerns = rules[0].concerns
    asked = np.arange(len(outer)) if concerns is None else np.flatnonzero(concerns(outer))
    names = sorted({name for rule in rules for name in rule.reads} - _CHUNKED)
    values = [getattr(outer, name)[asked] for name in names]
    first, alike = distinct(values or [np.zeros(len(asked), dtype=np.int64)])
    of_first, size = np.zeros(len(first), dtype=np.int64), 1
    for start in range(0, len(first), step := max(_AT_ONCE // len(inner), 1)):
        look()
        tick()
        some = outer.take(asked[first[start : start + step]])
        if len(rules) == 1 and rules[0].of_chunkings is not None:
            legal = ~rules[0].of_chunkings(some, inner)
        else:
            legal = (violation_masks(tuple(rules), crossed(some, inner)) == 0).reshape(-1, len(inner))
        packed, number = np.unique(np.packbits(legal, axis=1), axis=0, return_inverse=True)
        lists.append(np.unpackbits(packed, axis=1, count=len(inner)).astype(np.bool_))
        of_first[start : start + step] = size + number.ravel()
        size += len(packed)
    of_row[asked] = of_first[alike]
    return np.concatenate(lists), of_row


def outer_legal(rules: tuple[Rule, ...], outer: Columns) -> BoolArray:
    """Mark rows that break no rule on themselves alone, without their chunks, shape (n,).

    Rules that read few columns are quick and go first; where they leave less than half of the rows, the
    next ones are asked about these alone.
    """
    alone = [rule for rule in rules if _CHUNKED.isdisjoint(rule.reads)]
    place, few, good, seen = np.arange(len(outer)), outer, np.ones(len(outer), dtype=np.bool_), 0
    for rule in sorted(alone, key=lambda rule: len(rule.reads)):
        seen += len(good)
        if seen > _AT_ONCE:
            look()
            seen = 0
        good &= ~rule.violated(few)
        left = np.count_nonzero(good)
        if left == 0:
            break
        if 2 * left < len(good):
            place, few, good = place[good], few.take(good), np.ones(left, dtype=np.bool_)
    keeps = np.zeros(len(outer), dtype=np.bool_)
    keeps[place[good]] = True
    return keeps


# --------------------------------------------------------------------------------------------------
# Rows of one kind: what a million rows have in common, so that most of them are never looked at.
#
# Rows of one outer row that recompute alike and have one chunk a rank, or several, share their prices;
# they differ in the number of chunks and of recomputed layers. A *kind* represents them: its
# representative has the fewest chunks and the fewest recomputed layers of its rows, so that what grows
# with either is least.


Values = TypeVar("Values", IntArray, FloatArray)
_FULL = RECOMPUTE.index("full")
_APART = ("zero_shard_size", *OF_CHUNKS)  # what rows of one outer family differ in


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """Kinds that differ only in the size of their shard sets, family by family, smallest size first."""

    members: IntArray  # kinds
    begin: IntArray  # (f + 1,) where the members of each family begin, and their number

    def __len__(self) -> int:
        return len(self.begin) - 1

    @property
    def sizes(self) -> IntArray:
        """Return the members of each family, (f,)."""
        return np.diff(self.begin)

    def members_of(self, index: IntArray) -> IntArray:
        """Return the members of some families, family by family."""
        return np.asarray(self.members[_runs(self.begin[index], self.sizes[index])])

    def take(self, index: IntArray) -> Families:
        """Return some families, in that order."""
        return Families(
            members=self.members_of(index), begin=np.concatenate([[0], np.cumsum(self.sizes[index])])
        )

    def without(self, dropped: IntArray) -> Families:
        """Drop so many first members of each family, (f,), and families with none left."""
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
    parts: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    # where the outer rows of each part of the space begin, which is priced by itself
    same: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    # the first part that has the same rows as each part

    @cached_property
    def _code(self) -> IntArray:
        """Return the kind of each inner row, 0 … K - 1, shape (c,)."""
        chunks, recompute, layers, schedule = self.crossing.inner.T
        several = chunks if self.by_chunks else np.minimum(chunks, 2)
        order = schedule if self.by_chunks else PRICED_AS[schedule]
        code = (recompute * (int(several.max(initial=1)) + 1) + several) * len(SCHEDULES) + order
        code = code * 2 + (layers == PER_STAGE)
        return np.unique(code, return_inverse=True)[1].ravel()

    @cached_property
    def _sorted(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Return inner rows by list and kind; where each pair begins, and its size, (lists * K,).

        Last, the list of each outer row.
        """
        begins, lists = np.unique(self.crossing.begin, return_inverse=True)
        width = int(self._code.max(initial=-1)) + 1
        look()
        key = (np.searchsorted(begins, np.arange(len(self._code)), side="right") - 1) * width + self._code
        sizes = np.bincount(key, minlength=len(begins) * width)
        return np.argsort(key, kind="stable"), np.cumsum(sizes) - sizes, sizes, lists.ravel()

    @cached_property
    def _of_lists(self) -> tuple[IntArray, IntArray]:
        """Return the pairs that have rows, list by list, and where each list begins, (lists + 1,)."""
        sizes, width = self._sorted[2], int(self._code.max(initial=-1)) + 1
        there = np.flatnonzero(sizes)
        return there, np.searchsorted(there, np.arange(0, len(sizes) + 1, max(width, 1)))

    @cached_property
    def _first(self) -> IntArray:
        """Return the first kind of each outer row, and the number of all, (o + 1,)."""
        _, begin = self._of_lists
        return np.concatenate([[0], np.cumsum(np.diff(begin)[self._sorted[3]])])

    @cached_property
    def _pairs(self) -> tuple[IntArray, IntArray]:
        """Return the outer row of every kind, and its pair of list and inner kind, (k,) each."""
        there, begin = self._of_lists
        look()
        number = np.diff(self._first)
        outer = np.repeat(np.arange(len(number)), number)
        look()
        return outer, there[_runs(begin[self._sorted[3]], number)]

    def __len__(self) -> int:
        return len(self._pairs[0])

    @cached_property
    def families(self) -> Families:
        """Return all kinds by family, those of one part after those of another."""
        of_part = {first: self._families_of(first) for first in np.unique(self.same).tolist()}
        each = [of_part[first] for first in self.same.tolist()]
        before = np.cumsum([0, *(len(one.members) for one in each)])
        look()
        shifted = zip(each, self.first_of_part.tolist(), before.tolist(), strict=False)
        members, begin = zip(
            *((one.members + first, one.begin[:-1] + start) for one, first, start in shifted), strict=True
        )
        return Families(members=np.concatenate(members), begin=np.append(np.concatenate(begin), before[-1]))

    def _families_of(self, part: int) -> Families:
        """Return the kinds of one part by family, counted from its first."""
        outer, begin = self._runs_of[part]
        ends = np.append(self.first_of_part[1:], len(self))
        own = self._pairs[0][self.first_of_part[part] : ends[part]] - self.parts[part]
        number = np.bincount(own, minlength=len(outer))  # kinds of each outer row
        look()
        first = np.cumsum(number) - number
        each, many = number[outer[begin]], np.diff(begin, append=len(outer))  # families and members of runs
        run = np.repeat(np.arange(len(each)), each)
        kind, sizes = _runs(np.zeros_like(each), each), many[run]
        look()
        place = _runs(begin[run], sizes)
        look()
        members = first[outer[place]]
        look()
        members += np.repeat(kind, sizes)
        return Families(members=members, begin=np.concatenate([[0], np.cumsum(sizes)]))

    def least_of_family(self, values: FloatArray) -> FloatArray:
        """Return the least value of the outer rows of each one's family, (o,)."""
        outer, begin = self._outer_families
        least = np.empty_like(values)
        least[outer] = np.repeat(np.minimum.reduceat(values[outer], begin[:-1]), np.diff(begin))
        return least

    @cached_property
    def _outer_families(self) -> tuple[IntArray, IntArray]:
        """Return outer rows in runs that differ in ``zero_shard_size`` alone, and each run's begin.

        Rows with equal random linear hashes come together; rows that still differ form no run.
        """
        order, begin, before = list[IntArray](), list[IntArray](), 0
        for first, start in zip(self.same.tolist(), self.parts.tolist(), strict=True):
            rows, runs = self._runs_of[first]
            order.append(rows + start)
            begin.append(runs + before)
            before += len(rows)
        return np.concatenate(order), np.append(np.concatenate(begin), before)

    @cached_property
    def _runs_of(self) -> dict[int, tuple[IntArray, IntArray]]:
        """Return such runs of each part that is the first of its rows, counted from its start."""
        ends = np.append(self.parts[1:], len(self.crossing.outer)).tolist()
        firsts = np.unique(self.same).tolist()
        return {first: self._runs_between(int(self.parts[first]), ends[first]) for first in firsts}

    def _runs_between(self, start: int, end: int) -> tuple[IntArray, IntArray]:
        """Return the outer rows of one part in such runs, counted from its start, and each run's begin."""
        columns = self.crossing.outer.take(slice(start, end))
        values = [getattr(columns, f.name) for f in fields(columns) if f.name not in _APART]
        values.insert(0, self.crossing.begin[start:end])
        values = [value for value in values if (value != value[:1]).any()]
        hashed = np.zeros(len(columns), dtype=np.int64)
        with np.errstate(over="ignore"):
            for value, factor in zip(values, hash_factors(len(values)), strict=True):
                look()
                hashed += value * factor
        look()
        order = np.lexsort((columns.zero_shard_size, hashed))
        new = np.arange(len(order)) == 0
        for value in values:
            look()
            new[1:] |= np.diff(value[order]) != 0
        return order, np.flatnonzero(new)

    @cached_property
    def sizes(self) -> IntArray:
        """Return the rows of each kind, shape (k,)."""
        return np.asarray(self._sorted[2][self._pairs[1]])

    @cached_property
    def first_of_part(self) -> IntArray:
        """Return the first kind of each part."""
        return np.searchsorted(self._pairs[0], self.parts)

    def part_of(self, outer: IntArray) -> IntArray:
        """Return the part of the space that each of some outer rows is in."""
        return np.asarray(np.searchsorted(self.parts, outer, side="right") - 1)

    def outer_of(self, kinds: IntArray) -> IntArray:
        """Return the outer rows of some kinds."""
        return np.asarray(self._pairs[0][kinds])

    def of(self, index: IntArray) -> IntArray:
        """Return the kinds of rows."""
        crossing, (there, begin), width = self.crossing, self._of_lists, int(self._code.max(initial=-1)) + 1
        outer = np.searchsorted(crossing.first, index, side="right") - 1
        one = self._sorted[3][outer]
        pair = one * width + self._code[crossing.begin[outer] + index - crossing.first[outer]]
        return np.asarray(self._first[outer] + np.searchsorted(there, pair) - begin[one])

    def rows(self, kinds: IntArray) -> IntArray:
        """Return the numbers of all rows of some kinds, kind by kind."""
        outer, pair = (values[kinds] for values in self._pairs)
        order, begins, _, _ = self._sorted
        sizes, crossing = self.sizes[kinds], self.crossing
        inner = order[_runs(begins[pair], sizes)]
        return np.asarray(inner + np.repeat(crossing.first[outer] - crossing.begin[outer], sizes))

    def _least(self, values: Values) -> Values:
        order, begins, sizes, _ = self._sorted
        there = np.flatnonzero(sizes)
        least = np.zeros_like(values, shape=len(sizes))
        if len(there):
            least[there] = np.minimum.reduceat(values[order], begins[there])
        return least

    @cached_property
    def least_fill(self) -> FloatArray:
        """Return the least share of a pass that filling costs a row of each kind, shape (k,)."""
        inner = dict(zip(OF_CHUNKS, self.crossing.inner.T, strict=True))
        some = self.crossing.outer.take(np.zeros(len(self.crossing.inner), dtype=np.int64))
        return self._least(fill_share(replace(some, **inner)))[self._pairs[1]]

    def quickest(self, kinds: IntArray) -> Columns:
        """Return a row for each kind with its fewest chunks and at most one recomputed layer a chunk.

        It recomputes every layer where all rows of the kind do; it need not be one of them.
        """
        outer, pair = (values[kinds] for values in self._pairs)
        order, begins, _, _ = self._sorted
        first = self.crossing.inner[order[begins[pair]]].T
        inner = dict(zip(OF_CHUNKS, first, strict=True))
        chunks, _, layers, _ = self.crossing.inner.T
        inner["virtual_pipeline_size"] = self._least(chunks)[pair]
        inner["recompute_layers"] = self._least(
            np.where(layers == ALL_LAYERS, layers, (layers > 0) & (layers < ALL_LAYERS))
        )[pair]
        return replace(self.crossing.outer.take(outer), **inner)

    def lightest(self, kinds: IntArray) -> Columns:
        """Return such rows that recompute every layer if the kind recomputes any."""
        columns = self.quickest(kinds)
        again = np.where(columns.recompute == _FULL, ALL_LAYERS, columns.recompute_layers)
        return replace(columns, recompute_layers=again)


# --------------------------------------------------------------------------------------------------
# Configurations known beforehand as rows of a search: what an earlier one, broken off, had found.


def rows_of(rows: Crossing | Columns, configurations: Sequence[Configuration]) -> list[int]:
    """Return the numbers of the rows of configurations; one that is not a legal row has none.

    Statements about them are not trusted: a search that adopts such a row solves and scores it
    itself, so that its ranking is the same, and only found with fewer rows opened.
    """
    plain = [one for one in configurations if one.stage_layers]
    if not plain or not len(rows):
        return []
    wanted, found = Columns.of(plain), list[int]()
    for at in range(len(plain)):
        if isinstance(rows, Columns):
            found += _alike_by_value(rows, wanted, at, (*_OUTER, *OF_CHUNKS)).tolist()
            continue
        for outer in _alike_by_value(rows.outer, wanted, at, _OUTER):
            numbers = np.arange(rows.first[outer], rows.first[outer + 1])
            chunked = _alike_by_value(rows.take(numbers), wanted, at, OF_CHUNKS)
            found += numbers[chunked].tolist()
    return list(dict.fromkeys(found))


def _alike_by_value(columns: Columns, wanted: Columns, at: int, names: Sequence[str]) -> IntArray:
    """Return the rows that equal row ``at`` of ``wanted``."""
    index, few = np.arange(len(columns)), columns
    for name in names:
        kept = np.flatnonzero(getattr(few, name) == getattr(wanted, name)[at])
        if len(kept) < len(index):
            index, few = index[kept], few.take(kept)
    return index
