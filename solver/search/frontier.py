"""Best first: open rows by bound, solve, bound again, simulate; stop when nothing can rank higher.

A row's *score* is the least simulated step time of its candidate splits (``arrange``), of which one
minimises its closed-form objective. Rows wait under a lower bound of their score: first
``bounds.whole_layers_s``, then, once solved, the least ``bounds.split_s`` of their candidates. The row
with the least bound is always next, so when it cannot enter the best K nothing can (``ranking``). Rows
that come in kinds are looked at kind by kind (``unopened``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from solver.columns import BoolArray, FloatArray, IntArray
from solver.cost.assemble import objective_s
from solver.search.arrange import Ends, candidates_of, fastest
from solver.search.bounds import Bounds
from solver.search.fitting import bound_at_sight_s
from solver.search.mixed import tightened_s
from solver.search.priced import CHUNK, Priced
from solver.search.ranking import Layout, Ranked, layouts_of, ranked
from solver.search.reach import can_beat
from solver.search.rows import Rows
from solver.search.scout import RAISES, Scout
from solver.search.stages import best_splits
from solver.search.unopened import Unopened
from solver.search.watch import OutOfTime
from solver.search.windows import Split

_BATCH, _TOGETHER = 32, 4  # rows solved together, and of those that a first ranking is made of
_GLANCE = 2048  # rows that are tried together before any is solved
_PRIMES, _MORE, _MOST_PRIMES = 16, 6, 40  # rows solved for a first ranking: at least, beyond K, at most
Interrupt = Callable[["Frontier"], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """One row with its best split."""

    row: int
    split: Split  # of the least closed form
    objective_s: float  # the least closed form
    candidates: tuple[Split, ...]  # splits to simulate; ``split`` is one of them
    bound_s: float  # no simulation of a candidate is shorter


@dataclass(slots=True, kw_only=True)
class Frontier:
    """The state of a best-first search over ``rows``."""

    rows: Priced | Rows
    top_k: int
    bound_s: Bounds  # best known lower bound of every row's score; +inf: no split fits
    fits: int = 0
    solved: dict[int, Solved] = field(default_factory=dict)
    ranked: list[Ranked] = field(default_factory=list)  # best first
    finished: bool = False
    raises: tuple[float, ...] = RAISES
    covers_all: bool = True  # every legal row is here, so that the least bound holds for all of them
    _scored: set[int] = field(default_factory=set)  # rows that were simulated
    _best: dict[Layout, Ranked] = field(default_factory=dict)  # of every layout simulated so far
    _ends: Ends = field(default_factory=Ends)
    _unopened: Unopened | None = None  # where rows are opened kind by kind
    _order: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _next: int = 0
    _heap: list[tuple[float, int]] = field(default_factory=list)  # glanced at, some of them solved
    _primed_from_s: float = np.inf  # the least bound while rows are ranked out of their order

    @classmethod
    def of(cls, rows: Priced | Rows, top_k: int, stopped: Callable[[], bool] = lambda: False) -> Frontier:
        """Bound every row, or every kind of row; none is solved yet.

        Holds no rows when ``stopped`` says to give up.
        """
        frontier = cls(rows=rows, top_k=top_k, bound_s=Bounds(len(rows)))
        if isinstance(rows, Priced) and rows.kinds is not None:
            unopened = frontier._unopened = Unopened.of(rows, stopped)
            if unopened is None:
                return cls(rows=rows.take([]), top_k=top_k, bound_s=Bounds(0))
            frontier.fits = unopened.rows_within(np.inf)
            frontier._open_kinds(unopened)
            return frontier
        for start in range(0, len(rows), CHUNK):
            if start and stopped():
                return cls(rows=rows.take([]), top_k=top_k, bound_s=Bounds(0))
            frontier.bound(np.arange(start, min(start + CHUNK, len(rows))))
        frontier.fits = len(frontier.bound_s.below(np.inf))
        frontier._sort_in(np.arange(len(rows)))
        return frontier

    def bound(self, index: IntArray) -> None:
        """Bound rows that nobody looked at yet."""
        self.bound_s[index] = bound_at_sight_s(self.rows.take(index))

    def _open_kinds(self, unopened: Unopened) -> None:
        """Bound the rows of the next kinds and sort them in."""
        before = unopened.at
        index = unopened.open()
        try:
            self.bound(index)
        except OutOfTime:
            unopened.at = before
            raise
        self.fits -= int(np.isinf(self.bound_s[index]).sum())
        self._sort_in(index)

    def _sort_in(self, index: IntArray | list[int]) -> None:
        """Let more rows wait to be glanced at; those without a split that fits, or too late, do not."""
        waiting = np.concatenate([self._order[self._next :], np.asarray(index, dtype=np.int64)])
        bounds = self.bound_s[waiting]
        waiting = waiting[np.isfinite(bounds) & (bounds <= self.rows.latest(waiting))]
        self._order, self._next = waiting[np.lexsort((waiting, self.bound_s[waiting]))], 0

    def rivals_below(self, objective_s: float) -> IntArray:
        """Rows whose closed form may be less than that as far as the bounds of kinds tell; opens them."""
        if self._unopened is not None:
            index = self._unopened.open_objectives(objective_s)
            for start in range(0, len(index), CHUNK):
                self.bound(index[start : start + CHUNK])
        return self.bound_s.below(np.inf)

    @property
    def simulated(self) -> int:
        """How many rows were simulated."""
        return len(self._scored)

    @property
    def cutoff_s(self) -> float:
        """The score of the K-th best row so far; +inf while there are fewer."""
        return self.ranked[-1].score_s if len(self.ranked) == self.top_k else np.inf

    @property
    def waiting_s(self) -> float:
        """Least bound of a row that is not simulated yet."""
        return min(self._unseen_s, self._heap[0][0] if self._heap else np.inf, self._primed_from_s)

    @property
    def _unseen_s(self) -> float:
        """Least bound of a row that was not even glanced at."""
        return min(self._open_s, self._unopened.least_s if self._unopened else np.inf)

    @property
    def _open_s(self) -> float:
        """The same of rows whose kind is open."""
        return float(self.bound_s[self._order[self._next]]) if self._next < len(self._order) else np.inf

    @property
    def least_s(self) -> float:
        """Least bound of any row, whatever became of it; +inf where nothing fits."""
        return min(self.bound_s.least(), self._unseen_s)

    @property
    def least_objective_s(self) -> float:
        """No row's closed form is less, by the bounds of kinds; -inf where rows have none."""
        return -np.inf if self._unopened is None else self._unopened.least_objective_s

    @property
    def settled(self) -> int:
        """Rows that can no longer change the ranking: refuted, bounded away or simulated."""
        waiting = [bound for bound, _ in self._heap if bound <= self.cutoff_s]
        unopened = self.bound_s[self._order[self._next :]]
        closed = self._unopened.rows_within(self.cutoff_s) if self._unopened else 0
        return len(self.rows) - len(waiting) - int((unopened <= self.cutoff_s).sum()) - closed

    def is_open(self, row: int) -> bool:
        """Whether a row has more splits than its candidates."""
        uneven = self.rows.uneven_stages and not self.rows.only_split
        return uneven and (self.rows.is_uniform or bool(self.rows.take([row]).v[0] == 1))

    def adopt(self, row: int) -> None:
        """Rank a row, if it has a split that fits."""
        if self.solve([row]):
            self.simulate(row)

    def run(self, interrupted: Interrupt) -> None:
        """Search until the best K are proved, ``interrupted`` says stop or the clock is over.

        What was being looked at then still waits under its bound.
        """
        try:
            self._run(interrupted)
        except OutOfTime:
            return

    def _run(self, interrupted: Interrupt) -> None:
        """The same; raises where the clock is over."""
        self._primed_from_s = self.waiting_s
        self._prime(interrupted)
        self._primed_from_s = np.inf
        self._sort_in([])  # those that were primed and have no split are gone
        while not interrupted(self):
            if min(self.waiting_s, np.finfo(np.float64).max) > self.cutoff_s or self.waiting_s == np.inf:
                self.finished = True
                return
            if not self._heap or self._heap[0][0] > self._unseen_s:
                self._glance()
            elif self._heap[0][1] in self.solved:
                self.simulate(self._heap[0][1])
                heapq.heappop(self._heap)
            else:
                self._open()

    def _prime(self, interrupted: Interrupt) -> None:
        """Rank promising rows of different layouts, so that bounds have something to be held against."""
        most = max(_PRIMES, min(self.top_k + _MORE, _MOST_PRIMES))
        scout = Scout(rows=self.rows, bound_s=self.bound_s, shares=self.raises, limit_s=self.cutoff_s)
        waiting = self._order
        before = int(np.isinf(self.bound_s[waiting]).sum())  # of a run that was cut
        try:
            promising = scout.promising(waiting, most, lambda: interrupted(self))
        finally:
            self.fits -= int(np.isinf(self.bound_s[waiting]).sum()) - before
        for start in range(0, len(promising), _TOGETHER):
            solved = self.solve(promising[start : start + _TOGETHER])
            for one in sorted(solved, key=lambda one: (one.bound_s, one.row)):
                if one.bound_s > self.cutoff_s or interrupted(self):
                    break
                self.simulate(one.row)

    def _open(self) -> None:
        """Solve the next rows by bound and let them wait under the bound of their candidates."""
        batch, aside = list[int](), list[tuple[float, int]]()
        while len(batch) < _BATCH and self._heap and self._heap[0][0] <= min(self._unseen_s, self.cutoff_s):
            entry = heapq.heappop(self._heap)
            if entry[1] in self.solved:
                aside.append(entry)
            else:
                batch.append(entry[1])
        for entry in aside:
            heapq.heappush(self._heap, entry)
        index = np.array(batch, dtype=np.int64)
        try:
            found = self.solve(index[self.bound_s[index] <= self._limit_s(index)].tolist())
        except OutOfTime:
            for row in batch:
                heapq.heappush(self._heap, (float(self.bound_s[row]), row))
            raise
        for solved in found:
            heapq.heappush(self._heap, (solved.bound_s, solved.row))

    def _limit_s(self, index: IntArray) -> FloatArray:
        """The score that each row must not exceed to change the ranking."""
        known = [self._best.get(layout) for layout in layouts_of(self.rows.columns, index)]
        scores = np.array([np.inf if best is None else best.score_s for best in known])
        return np.asarray(np.minimum(scores, np.minimum(self.rows.latest(index), self.cutoff_s)))

    def _glance(self) -> None:
        """Refute the next rows together where no split fits in memory or can change the ranking."""
        if self._unopened is not None and self._unopened.least_s <= self._open_s:
            self._open_kinds(self._unopened)
            return
        size = _GLANCE if self.cutoff_s < np.inf or not self.rows.is_uniform else _BATCH
        index = self._order[self._next : self._next + size]
        limit = self._limit_s(index)
        able = self._able(index, limit)
        lost = index[~able]
        self._raise(lost, np.nextafter(limit[~able], np.inf))
        left = index[able]
        if not (self.rows.is_uniform or self.rows.only_split):
            self.bound_s[left] = tightened_s(self.rows.take(left), self.bound_s[left], limit[able])
        self._next += len(index)
        for bound, row in zip(self.bound_s[left].tolist(), left.tolist(), strict=True):
            heapq.heappush(self._heap, (bound, row))

    def _raise(self, index: IntArray, bounds_s: FloatArray) -> None:
        """Raise the bounds of rows; those whose bound becomes +inf no longer count as fitting."""
        before = self.bound_s[index]
        after = np.maximum(before, bounds_s)
        self.fits -= int((np.isinf(after) & np.isfinite(before)).sum())
        self.bound_s[index] = after

    def _able(self, index: IntArray, limit_s: FloatArray) -> BoolArray:
        """Whether each row may have a split that fits and simulates to ``limit_s`` or less."""
        able = np.asarray(self.bound_s[index] <= limit_s)
        if self.rows.only_split:  # its bound is the last tier
            return able
        if self.rows.is_uniform:  # those that fit are known
            asked = np.flatnonzero(able & np.isfinite(limit_s))
        else:
            asked = np.flatnonzero(able)
        able[asked] = can_beat(self.rows.take(index[asked]), limit_s[asked])
        return able

    def solve(self, indices: list[int]) -> list[Solved]:
        """The best split of each row that has one; rows without one get the bound +inf."""
        fresh = [row for row in indices if row not in self.solved]
        splits = best_splits(self.rows.take(fresh)) if fresh else []
        fitting = [(row, split) for row, split in zip(fresh, splits, strict=True) if split is not None]
        lost = [row for row, split in zip(fresh, splits, strict=True) if split is None]
        self._raise(np.array(lost, dtype=np.int64), np.full(len(lost), np.inf))
        if fitting:
            self._record(*zip(*fitting, strict=True))
        return [self.solved[row] for row in indices if row in self.solved]

    def _record(self, indices: tuple[int, ...], splits: tuple[Split, ...]) -> None:
        """Remember solved rows with their least closed form and the bound of their candidates."""
        rows = self.rows.take(list(indices))
        objectives = objective_s(rows.prices, rows.columns, rows.stages(list(splits)))
        found = candidates_of(rows, splits)
        first = np.searchsorted(found.which, np.arange(len(indices) + 1)).tolist()
        for at, (row, split) in enumerate(zip(indices, splits, strict=True)):
            self.solved[row] = Solved(
                row=row,
                split=split,
                objective_s=float(objectives[at]),
                candidates=tuple(found.splits[first[at] : first[at + 1]]),
                bound_s=max(
                    float(found.bound_s[first[at] : first[at + 1]].min()), float(self.bound_s[row])
                ),
            )

    def simulate(self, row: int) -> None:
        """Score a solved row and rank it, unless it was or its layout is known to be faster otherwise."""
        if row in self._scored:
            return
        layout, bound = layouts_of(self.rows.columns, [row])[0], self.solved[row].bound_s
        known = self._best.get(layout)
        if known is not None and known.score_s < bound:
            return
        score, split = self.score(self.solved[row])
        self._scored.add(row)
        if score > self.rows.latest(row):
            return
        entry = ranked(self.rows.columns, row, score, split)
        if known is None or entry < known:
            self._best[layout] = entry
            others = [other for other in self.ranked if other is not known]
            self.ranked = sorted([*others, entry])[: self.top_k]

    def score(self, solved: Solved) -> tuple[float, Split]:
        """The simulated step time of a solved row, and the split that reaches it."""
        return fastest(self.rows.take([solved.row]), list(solved.candidates), self._ends)
