"""A lower bound of the simulated step over all rows of a mixed cluster, by linear relaxations.

Let the slowest stage take t in [a, b] for a micro-batch, at place k from the end. Of 1F1B (bounds (A) and
(B) of docs/how-the-search-works.md)

    S >= m t + tail + fixed
    S >= sum_s t_s + (m - 1) t - (min(m, k) - 1) f + tail + fixed

where f is the forward pass of that stage, at most a share of t and a small rest (``RowBounds``). The
relaxation of CP-SAT's model holds the layers by patterns of at most b, and its variable c counts the
forward passes that the stages behind the slowest hide: c <= stages - 1 and c <= m - 1. The range with
the least bound comes next: it is cut in two, down to half a per cent.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.solver.clock import OutOfTime
from meshwright.solver.search.mixed.bounds import RowBounds
from meshwright.solver.search.mixed.model import fixed_s_of
from meshwright.solver.search.mixed.patterns import US
from meshwright.solver.search.mixed.relaxation import Relaxation
from meshwright.solver.search.mixed.rows import MixedRows

_SAFETY = 1.0 - 1e-9
_NARROW = 1.005  # b over a
_MOST_RELAXED, _MOST_SOLVED = 48, 480  # rows, or several that are alike; solutions of linear programs


@dataclass(frozen=True, slots=True, order=True)
class _Range:
    """Times of the slowest stage of some rows, for a micro-batch, queued under their bound."""

    bound_s: float
    rows: tuple[int, ...]
    low_s: float
    high_s: float
    sum_us: float | None = field(default=None, compare=False)  # for ``high_s``, once that is solved


@dataclass(slots=True, kw_only=True)
class StepBound:
    """The bound of all rows, raised one range of times after another."""

    rows: MixedRows
    bounds: RowBounds
    known_s: float  # steps that are longer are of no interest
    solved: int = 0
    _relaxations: dict[tuple[int, ...], Relaxation] = field(default_factory=dict)
    _heap: list[_Range] = field(default_factory=list)

    @classmethod
    def of(
        cls, rows: MixedRows, bounds: RowBounds, known_s: float, alike: list[tuple[int, ...]]
    ) -> StepBound:
        """Begin with the bounds of all rows; ``alike`` are rows that are bounded together."""
        begun = cls(rows=rows, bounds=bounds, known_s=known_s)
        for some in alike:
            numbers = tuple(row for row in some if bounds.step_s[row] < known_s)
            if numbers:
                begun._heap.append(begun._of_rows(numbers))
        heapq.heapify(begun._heap)
        return begun

    @property
    def bound_s(self) -> float:
        """Return the lower bound of the simulated step, at most the known step."""
        return min([self.known_s, *(one.bound_s for one in self._heap[:1])])

    def raise_it(self, interrupted: Callable[[], bool]) -> None:
        """Raise the bound until its least range is narrow or the work that a search may do is done."""
        with suppress(OutOfTime):
            while self._heap and not interrupted():
                one = self._heap[0]
                whole = one.high_s <= one.low_s * _NARROW and one.sum_us is not None
                too_many = one.rows not in self._relaxations and len(self._relaxations) >= _MOST_RELAXED
                if one.bound_s >= self.known_s or (whole and len(one.rows) == 1):
                    return
                if too_many or self.solved >= _MOST_SOLVED:
                    return
                fresh = [self._of_rows((row,)) for row in one.rows] if whole else self._cut(one)
                raised = [replace(each, bound_s=max(each.bound_s, one.bound_s)) for each in fresh]
                heapq.heappop(self._heap)
                for each in raised:
                    if each.bound_s < self.known_s:
                        heapq.heappush(self._heap, each)

    def _of_rows(self, numbers: tuple[int, ...]) -> _Range:
        some, m = list(numbers), int(self.rows.num_microbatches[numbers[0]])
        low_s = float(self.bounds.slowest_s[some].min())
        return _Range(float(self.bounds.step_s[some].min()), numbers, low_s, max(self.known_s / m, low_s))

    def _cut(self, one: _Range) -> list[_Range]:
        """Bound a range as a whole, or its two halves; the upper one has the relaxation of the whole."""
        if one.sum_us is None:
            return [self._solved(one)]
        middle_s = float(np.sqrt(one.low_s * one.high_s))
        lower = replace(one, high_s=middle_s, sum_us=None)
        return [self._solved(lower), self._solved(replace(one, low_s=middle_s))]

    def _solved(self, one: _Range) -> _Range:
        """Return a range under the bound of its relaxation."""
        some, m = list(one.rows), int(self.rows.num_microbatches[one.rows[0]])
        beside_s = float(self.bounds.tail_s[some].min()) + fixed_s_of(self.rows, one.rows)
        share, more_s = (float(each[some].max()) for each in (self.bounds.share, self.bounds.more_s))
        sum_us = one.sum_us
        if sum_us is None:
            self.solved += 1
            relaxation = self._relaxation_of(one.rows)
            sum_us = relaxation.least_us(one.high_s * US, (share * one.high_s + more_s) * US)
        bound_s = max(sum_us / US + (m - 1) * one.low_s, m * one.low_s) * _SAFETY + beside_s
        return replace(one, bound_s=max(one.bound_s, bound_s), sum_us=sum_us)

    def _relaxation_of(self, numbers: tuple[int, ...]) -> Relaxation:
        known = self._relaxations.get(numbers)
        if known is None:
            most_us = [(self.known_s - fixed_s_of(self.rows, numbers)) * US] * len(numbers)
            known = Relaxation.of(self.rows, numbers, most_us, hides=True)
            self._relaxations[numbers] = known
        return known
