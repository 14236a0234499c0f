"""Rows from their two factors: what a row is without its chunks, and how it is cut into chunks.

Most rules look at the first factor alone. Asked there, before the two are crossed, they spare a million
rows that would break them; which rules those are is seen from what they read. The other rules are asked
once for all outer rows that are alike in what these rules read. Legal rows stay two factors: a row is
written down when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from solver.columns import BoolArray, Columns, IntArray
from solver.rule import Rule
from solver.rules import violation_masks
from solver.search.watch import look

Block = tuple[Columns, IntArray]  # rows with one chunk, and rows of OF_CHUNKS
OF_CHUNKS = ("virtual_pipeline_size", "recompute", "recompute_layers", "pipeline_schedule")
_RECOMPUTE_LAYERS = OF_CHUNKS.index("recompute_layers")
_DERIVED = ("num_gpus", "global_batch_size")
_OUTER = tuple(f.name for f in fields(Columns) if f.name not in OF_CHUNKS)
_READABLE = frozenset({f.name for f in fields(Columns)} | {*_DERIVED})
_AT_ONCE = 2**18  # rows written at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Legal rows as two factors; an outer row's rows follow one another, in the order of its chunkings."""

    outer: Columns
    inner: IntArray  # (c, 4) lists of chunkings, one after the other; columns are OF_CHUNKS
    begin: IntArray  # (o,) where an outer row's list begins; equal: the same list
    first: IntArray  # (o + 1,) the number of each outer row's first row, and of all rows

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.first[-1])

    def among(self, kept: IntArray | BoolArray) -> Crossing:
        """The rows of some outer rows, with the lists that those have."""
        sizes, begin = np.diff(self.first)[kept], self.begin[kept]
        begins, one, which = np.unique(begin, return_index=True, return_inverse=True)
        ends = np.cumsum(sizes[one])
        inner = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(
            begins - ends + sizes[one], sizes[one]
        )
        return Crossing(
            outer=self.outer.take(kept),
            inner=self.inner[inner],
            begin=(ends - sizes[one])[which.ravel()],
            first=np.concatenate([[0], np.cumsum(sizes)]),
        )

    def take(self, index: IntArray) -> Columns:
        """The rows at ``index``, in that order."""
        row = np.searchsorted(self.first, index, side="right") - 1
        lines, place = dict[str, IntArray](), self.begin[row] + index - self.first[row]
        for name in _OUTER:
            look()
            lines[name] = getattr(self.outer, name)[row]
        for at, name in enumerate(OF_CHUNKS):
            look()
            lines[name] = self.inner[place, at]
        return Columns(**lines)

    def recomputed(self, index: IntArray) -> IntArray:
        """``recompute_layers`` of the rows at ``index``."""
        row = np.searchsorted(self.first, index, side="right") - 1
        return np.asarray(self.inner[self.begin[row] + index - self.first[row], _RECOMPUTE_LAYERS])

    @classmethod
    def concatenate(cls, parts: Sequence[Crossing]) -> Crossing:
        """All rows, part after part."""
        inner = np.cumsum([0, *(len(part.inner) for part in parts)])
        sizes = [np.diff(part.first) for part in parts]
        return cls(
            outer=Columns.concatenate([part.outer for part in parts]),
            inner=np.concatenate([part.inner for part in parts]),
            begin=np.concatenate([part.begin + start for part, start in zip(parts, inner, strict=False)]),
            first=np.concatenate([[0], np.cumsum(np.concatenate(sizes))]),
        )


class _Watched:
    """Columns that remember what was read of them."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.names = set[str]()

    def __len__(self) -> int:
        return len(self._columns)

    def __getattr__(self, name: str) -> object:
        self.names.add(name)
        return getattr(self._columns, name)


def crossed(outer: Columns, inner: IntArray) -> Columns:
    """Every row of one factor with every row of the other; a column is written once."""
    shape = (len(outer), len(inner))
    chunked = dict(zip(OF_CHUNKS, inner.T, strict=True))
    lines = {}
    for f in fields(Columns):
        look()
        line = np.empty(shape, dtype=np.int64)
        line[:] = chunked[f.name] if f.name in chunked else getattr(outer, f.name)[:, None]
        lines[f.name] = line.ravel()
    return Columns(**lines)


def legal_rows(
    rules: tuple[Rule, ...], blocks: Iterable[Block], tick: Callable[[], object] = lambda: None
) -> tuple[Crossing, int]:
    """The rows of all cross products that break no rule, in their order, and how many others there are.

    ``tick`` is called meanwhile.
    """
    parts, size = list[Crossing](), 0
    for outer, inner in blocks:
        size += len(outer) * len(inner)
        parts.append(_legal_of(rules, outer, inner, tick))
    rows = Crossing.concatenate(parts)
    return rows, size - len(rows)


def _legal_of(
    rules: tuple[Rule, ...], outer: Columns, inner: IntArray, tick: Callable[[], object]
) -> Crossing:
    """The legal rows of one cross product; those outer rows that have the same ones share a list."""
    keeps, left = _outer_legal(rules, outer)
    outer = outer.take(np.flatnonzero(keeps))
    lists, which = np.ones((1, len(inner)), dtype=np.bool_), np.zeros(len(outer), dtype=np.int64)
    for together, names in left:
        own, of_row = _lists_of(together, names, outer, inner, tick)
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
    rules: Sequence[Rule],
    names: frozenset[str],
    outer: Columns,
    inner: IntArray,
    tick: Callable[[], object],
) -> tuple[BoolArray, IntArray]:
    """The sets of chunkings that some rules leave, (k, c), and the number of each outer row's, (o,).

    Outer rows that agree in all that the rules read are asked once; those that cannot break them, never.
    """
    lists, of_row = [np.ones((1, len(inner)), dtype=np.bool_)], np.zeros(len(outer), dtype=np.int64)
    concerns = rules[0].concerns
    asked = np.arange(len(outer)) if concerns is None else np.flatnonzero(concerns(outer))
    first, alike = _alike(outer.take(asked), names)
    of_first, size = np.zeros(len(first), dtype=np.int64), 1
    for start in range(0, len(first), step := max(_AT_ONCE // len(inner), 1)):
        look()
        tick()
        some = crossed(outer.take(asked[first[start : start + step]]), inner)
        legal = (violation_masks(tuple(rules), some) == 0).reshape(-1, len(inner))
        packed, number = np.unique(np.packbits(legal, axis=1), axis=0, return_inverse=True)
        lists.append(np.unpackbits(packed, axis=1, count=len(inner)).astype(np.bool_))
        of_first[start : start + step] = size + number.ravel()
        size += len(packed)
    of_row[asked] = of_first[alike]
    return np.concatenate(lists), of_row


def _alike(outer: Columns, names: frozenset[str]) -> tuple[IntArray, IntArray]:
    """The first of the outer rows that agree in ``names``, and for every row which of those it is like."""
    code = np.zeros(len(outer), dtype=np.int64)
    for name in sorted(names):
        look()
        _, value = np.unique(getattr(outer, name), return_inverse=True)
        _, code = np.unique(code * (int(value.max(initial=0)) + 1) + value.ravel(), return_inverse=True)
    _, first, alike = np.unique(code, return_index=True, return_inverse=True)
    return first, alike.ravel()


def outer_legal(rules: tuple[Rule, ...], outer: Columns) -> BoolArray:
    """Rows that break no rule that looks at them alone, without their chunks, shape (n,)."""
    return _outer_legal(rules, outer)[0]


def _outer_legal(
    rules: tuple[Rule, ...], outer: Columns
) -> tuple[BoolArray, list[tuple[list[Rule], frozenset[str]]]]:
    """Rows that break no rule on themselves alone; the rules that see chunks too, with what they read.

    Those that any row may break are asked together, each of the others by itself.
    """
    keeps, read = np.ones(len(outer), dtype=np.bool_), set[str]()
    together, alone = list[Rule](), list[tuple[list[Rule], frozenset[str]]]()
    for rule in rules:
        look()
        watched = _Watched(outer)
        broken = rule.violated(cast("Columns", watched))
        if watched.names <= {*_OUTER, *_DERIVED}:
            keeps &= ~broken
        else:
            names = _READABLE if watched.names - _READABLE else frozenset(watched.names)
            if rule.concerns is None:
                together.append(rule)
                read |= names
            else:
                alone.append(([rule], names - {*OF_CHUNKS}))
    return keeps, [*([(together, frozenset(read - {*OF_CHUNKS}))] if together else []), *alone]
