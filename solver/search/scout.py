"""Which rows to solve first: those whose bounds stay low when they are looked at closely.

A first bound leaves memory and whole layers aside, so the rows with the least ones are seldom the best. The
bounds of the first rows are raised step by step, as far as ``reach.can_beat`` refutes them, and the best
row of each layout is taken. The better the K-th score is early on, the fewer rows are ever solved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from solver.columns import FloatArray, IntArray
from solver.search.bounds import Bounds
from solver.search.mixed import can_beat_mixed, tightened_s
from solver.search.priced import Priced
from solver.search.ranking import Layout, layouts_of
from solver.search.reach import can_beat
from solver.search.rows import Rows

RAISES = (1.02, 1.08, 1.25)  # of a first bound, tried one after the other
_LONGEST = 1e6  # times a bound: longer than any split takes
FITS_AT_ALL = (_LONGEST,)  # the same for whoever wants any plan
_COARSE = (1.02, 1.1, 1.3, 1.7, 2.5)  # for layers of one kind, most of whose first bounds are close
_LOOKED_AT = {True: 256, False: 1024}  # rows together, of layers of one kind and of several
_MOST_LOOKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scout:
    """Rows and the bounds that it raises."""

    rows: Priced | Rows
    bound_s: Bounds | FloatArray  # (n,), changed in place; every change is proved
    shares: tuple[float, ...] = RAISES
    limit_s: float = np.inf  # a score that is known: rows that cannot beat it promise nothing

    def promising(self, order: IntArray, most: int, interrupted: Callable[[], bool]) -> list[int]:
        """Up to ``most`` rows of different layouts, best bound first; ``order`` is by first bounds.

        With layers of several kinds only rows without interleaving are tried: those are solved exactly.
        """
        size, best = _LOOKED_AT[self.rows.is_uniform], dict[Layout, int]()
        if np.isfinite(self.limit_s):
            size = max(_LOOKED_AT.values())
        order = order[: _MOST_LOOKS * max(_LOOKED_AT.values())]
        if not self.rows.is_uniform:
            order = order[self.rows.columns.take(order).virtual_pipeline_size == 1]
        for start in range(0, min(len(order), _MOST_LOOKS * size), size):
            index = order[start : start + size]
            known = sum(bool(self.bound_s[row] <= self.bound_s[index[0]]) for row in best.values())
            if known >= most or self.bound_s[index[0]] > self.limit_s or interrupted():
                break
            self._raise(index)
            bounds = self.bound_s[index]
            rows = [*best.values(), *index[np.isfinite(bounds) & (bounds <= self.limit_s)].tolist()]
            rows.sort(key=lambda row: (self.bound_s[row], row), reverse=True)  # the last of a layout stays
            best = dict(zip(layouts_of(self.rows.columns, rows), rows, strict=True))
        return sorted(best.values(), key=lambda row: (self.bound_s[row], row))[:most]

    def _raise(self, index: IntArray) -> None:
        """Raise the bounds of rows step by step, as far as no split of theirs can beat them."""
        if not (self.rows.is_uniform or self.rows.only_split) and self.shares == RAISES:
            self._raise_mixed(index)
            return
        index = index[: 0 if self.rows.only_split else len(index)]
        if np.isfinite(self.limit_s):
            able = can_beat(self.rows.take(index), np.full(len(index), self.limit_s))
            self.bound_s[index[~able]] = np.maximum(
                self.bound_s[index[~able]], np.nextafter(self.limit_s, np.inf)
            )
            index = index[able]
        least, left = self.bound_s[index], np.arange(len(index))
        coarse = self.rows.is_uniform and self.shares == RAISES
        for share in _COARSE if coarse else self.shares:
            step = least[left] * share
            lost = ~can_beat(self.rows.take(index[left]), step)
            left = left[lost]
            self.bound_s[index[left]] = np.nextafter(step[lost], np.inf)

    def _raise_mixed(self, index: IntArray) -> None:
        """The same closely, and +inf for rows of which memory refutes every split.

        At first sight memory is taken for all ranks together, which most of them pass and fail here.
        """
        rows = self.rows.take(index)
        fits = can_beat_mixed(rows, self.bound_s[index] * _LONGEST, closely=False)
        self.bound_s[index[~fits]] = np.inf
        left = index[fits]
        unlimited = np.full(len(left), np.inf)
        self.bound_s[left] = tightened_s(rows.take(np.flatnonzero(fits)), self.bound_s[left], unlimited)
