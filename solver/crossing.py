"""Rows from their two factors: what a row is without its chunks, and how it is cut into chunks.

Most rules look at the first factor alone. Asked there, before the two are crossed, they spare a million
rows that would break them; which rules those are is seen from what they read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import cast

import numpy as np

from solver.columns import SCHEDULES, BoolArray, Columns, IntArray
from solver.rule import Rule
from solver.rules import violation_masks

Block = tuple[Columns, IntArray]  # rows with one chunk, and (vpp, recompute, recompute_layers) rows
_PLAIN, _INTERLEAVED = SCHEDULES.index("1f1b"), SCHEDULES.index("interleaved_1f1b")
_OF_CHUNKS = ("virtual_pipeline_size", "recompute", "recompute_layers", "pipeline_schedule")
_OUTER = frozenset({f.name for f in fields(Columns)} - {*_OF_CHUNKS}) | {"num_gpus", "global_batch_size"}
_AT_ONCE = 2**18  # rows written at once
_KINDS = 6  # rows of one factor have three kinds of recomputation, with one chunk a rank or several


@dataclass(frozen=True, slots=True)
class Legal:
    """Rows that break no rule."""

    columns: Columns
    kind: IntArray  # (n,) rows of one kind differ at most in the number of chunks and of recomputed layers
    refuted: int  # rows that break one


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
    vpp, recompute, layers = inner.T
    plain = outer.pipeline_schedule[:, None]
    chunked = {
        "virtual_pipeline_size": vpp,
        "recompute": recompute,
        "recompute_layers": layers,
        "pipeline_schedule": np.where((vpp > 1) & (plain == _PLAIN), _INTERLEAVED, plain),
    }
    lines = {}
    for f in fields(Columns):
        line = np.empty(shape, dtype=np.int64)
        line[:] = chunked[f.name] if f.name in chunked else getattr(outer, f.name)[:, None]
        lines[f.name] = line.ravel()
    return Columns(**lines)


def legal_rows(
    rules: tuple[Rule, ...], blocks: Iterable[Block], tick: Callable[[], object] = lambda: None
) -> Legal:
    """The rows of all cross products that break no rule, in their order; ``tick`` is called meanwhile."""
    parts, kinds, seen, size = list[Columns](), list[IntArray](), 0, 0
    for outer, inner in blocks:
        size += len(outer) * len(inner)
        keeps, left = _outer_legal(rules, outer)
        kept = np.flatnonzero(keeps)
        for start in range(0, max(len(kept), 1), step := max(_AT_ONCE // len(inner), 1)):
            tick()
            index = kept[start : start + step]
            rows = crossed(outer.take(index), inner)
            legal = np.flatnonzero(violation_masks(left, rows) == 0)
            parts.append(rows.take(legal))
            several = (parts[-1].virtual_pipeline_size > 1).astype(np.int64)
            number = seen + index[legal // len(inner)]
            kinds.append(number * _KINDS + parts[-1].recompute * 2 + several)
        seen += len(outer)
    lines = {}
    for f in fields(Columns):
        tick()
        lines[f.name] = np.concatenate([getattr(part, f.name) for part in parts])
    columns = Columns(**lines)
    return Legal(columns=columns, kind=np.concatenate(kinds), refuted=size - len(columns))


def _outer_legal(rules: tuple[Rule, ...], outer: Columns) -> tuple[BoolArray, tuple[Rule, ...]]:
    """Rows that break no rule on themselves alone, and the rules that look at chunks too."""
    keeps, left = np.ones(len(outer), dtype=np.bool_), list[Rule]()
    for rule in rules:
        watched = _Watched(outer)
        broken = rule.violated(cast("Columns", watched))
        if watched.names <= _OUTER:
            keeps &= ~broken
        else:
            left.append(rule)
    return keeps, tuple(left)
