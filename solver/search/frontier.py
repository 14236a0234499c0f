"""Best first: open rows by bound, solve, bound again, simulate; stop when nothing can rank higher.

A row's *score* is the simulated step time of the split that minimises its closed-form objective. Rows
wait under a lower bound of their score: first ``bounds.whole_layers_s``, then, once solved,
``bounds.split_s``. The row with the least bound is always next, so when it cannot enter the best K
nothing can. Scores are compared in whole nanoseconds; equal ones rank the simple way: fewer parallel
axes, less recomputation, smaller tensor_parallel_size, smaller row number.

Rows that differ in recomputation alone are one *layout*; the best of them stands for it, so that the best
K are K layouts and not one layout with K counts of recomputed layers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, fields

import numpy as np

from solver.columns import SCHEDULES, Columns, FloatArray, IntArray
from solver.cost.assemble import Stages, objective_s
from solver.search.bounds import split_s, whole_layers_s
from solver.search.caps import layer_caps
from solver.search.mixed import may_fit
from solver.search.reach import can_beat
from solver.search.rows import Rows
from solver.search.simulate import rank_finish_s
from solver.search.stages import Split, best_splits

_BATCH = 64
_BATCH_OF_MIXED = 8  # rows with layers of several kinds take up to 30 ms each
_BOUNDED = 32768  # rows bounded between two looks at the clock
_GLANCE = 2048  # rows with layers of several kinds that are tried together before any is solved
_NS = 1e9
_LAYOUT = tuple(f.name for f in fields(Columns) if not f.name.startswith("recompute"))
Rank = tuple[int, int, int, int, int, int]
Interrupt = Callable[["Frontier"], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """One row with its best split."""

    row: int
    split: Split
    objective_s: float  # closed form, minimal over the row's splits
    bound_s: float  # no simulation of this split is shorter
    finish: tuple[tuple[float, ...], tuple[float, ...]]  # forward, backward seconds of each chunk
    tail_s: tuple[float, ...]  # of each rank


@dataclass(slots=True, kw_only=True)
class Frontier:
    """The state of a best-first search over ``rows``."""

    rows: Rows
    top_k: int
    bound_s: FloatArray  # (n,) best known lower bound of every row's score; +inf: no split fits
    fits: int = 0
    solved: dict[int, Solved] = field(default_factory=dict)
    ranked: list[tuple[Rank, float, int]] = field(default_factory=list)  # (key, score, row), best first
    simulated: int = 0
    finished: bool = False
    _order: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _next: int = 0
    _glanced: int = 0
    _heap: list[tuple[float, int]] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Rows, top_k: int, stopped: Callable[[], bool] = lambda: False) -> Frontier:
        """Bound every row; none is solved yet. Holds no rows when ``stopped`` says to give up."""
        bound = np.full(len(rows), np.inf)
        for start in range(0, len(rows), _BOUNDED):
            if start and stopped():
                rows, bound = rows.take([]), bound[:0]
                break
            index = np.arange(start, min(start + _BOUNDED, len(rows)))
            bound[index] = _first_bound_s(rows.take(index))
        order = np.argsort(bound, kind="stable")
        fits = int(np.isfinite(bound).sum())
        return cls(rows=rows, top_k=top_k, bound_s=bound, fits=fits, _order=order[:fits])

    @property
    def cutoff_s(self) -> float:
        """The score of the K-th best row so far; +inf while there are fewer."""
        return self.ranked[-1][1] if len(self.ranked) == self.top_k else np.inf

    @property
    def waiting_s(self) -> float:
        """Least bound of a row that is not simulated yet."""
        unopened = self.bound_s[self._order[self._next]] if self._next < len(self._order) else np.inf
        return float(min(unopened, self._heap[0][0] if self._heap else np.inf))

    @property
    def settled(self) -> int:
        """Rows that can no longer change the ranking: refuted, bounded away or simulated."""
        waiting = [bound for bound, _ in self._heap if bound <= self.cutoff_s]
        unopened = self.bound_s[self._order[self._next :]]
        return len(self.rows) - len(waiting) - int((unopened <= self.cutoff_s).sum())

    def run(self, interrupted: Interrupt) -> None:
        """Search until the best K are proved, or until ``interrupted`` says stop."""
        while not interrupted(self):
            if min(self.waiting_s, np.finfo(np.float64).max) > self.cutoff_s or self.waiting_s == np.inf:
                self.finished = True
                return
            if self._heap and self._heap[0][0] <= self.waiting_s:
                self._simulate(heapq.heappop(self._heap)[1])
            else:
                self._open()

    def _open(self) -> None:
        """Solve the next rows by bound and let them wait under the bound of their split."""
        while not self.rows.is_uniform and self._glanced <= self._next < len(self._order):
            self._glance()
        size = _BATCH if self.rows.is_uniform else _BATCH_OF_MIXED
        batch = self._order[self._next : self._next + size]
        self._next += len(batch)
        for solved in self.solve([int(row) for row in batch if self.bound_s[row] <= self.cutoff_s]):
            heapq.heappush(self._heap, (solved.bound_s, solved.row))

    def _glance(self) -> None:
        """Refute the next rows together where no split fits in memory or can enter the best K."""
        behind = self._order[self._next + _GLANCE :]
        index = self._order[self._next : self._next + _GLANCE]
        able = can_beat(self.rows.take(index), np.full(len(index), self.cutoff_s))
        self.bound_s[index[~able]] = np.nextafter(self.cutoff_s, np.inf)
        self.fits -= int((~able).sum()) if self.cutoff_s == np.inf else 0
        self._order = np.concatenate([self._order[: self._next], index[able], behind])
        self._glanced = self._next + int(able.sum())

    def solve(self, indices: list[int]) -> list[Solved]:
        """The best split of each row that has one; rows without one get the bound +inf."""
        fresh = [row for row in indices if row not in self.solved]
        splits = best_splits(self.rows.take(fresh)) if fresh else []
        fitting = [(row, split) for row, split in zip(fresh, splits, strict=True) if split is not None]
        lost = [row for row, split in zip(fresh, splits, strict=True) if split is None]
        self.bound_s[lost] = np.inf
        self.fits -= len(lost)
        if fitting:
            self._record(*zip(*fitting, strict=True))
        return [self.solved[row] for row in indices if row in self.solved]

    def _record(self, indices: tuple[int, ...], splits: tuple[Split, ...]) -> None:
        """Remember solved rows with their closed-form objective and the bound of their split."""
        rows = self.rows.take(list(indices))
        stages = rows.stages(list(splits))
        objectives = objective_s(rows.prices, rows.columns, stages)
        bounds = np.maximum(split_s(rows, stages), self.bound_s[list(indices)])
        for at, (row, split) in enumerate(zip(indices, splits, strict=True)):
            self.solved[row] = Solved(
                row=row,
                split=split,
                objective_s=float(objectives[at]),
                bound_s=float(bounds[at]),
                finish=_passes(stages, at, len(split)),
                tail_s=tuple(stages.rank_tail_s[at, : int(rows.p[at])].tolist()),
            )

    def _simulate(self, row: int) -> None:
        """Score a solved row and rank it, unless its layout is known to be faster otherwise."""
        layout, bound = self._layout_of(row), self.solved[row].bound_s
        known = next((entry for entry in self.ranked if self._layout_of(entry[2]) == layout), None)
        if known is not None and known[1] < bound:
            return
        score = self.score_s(self.solved[row])
        self.simulated += 1
        entry = (self._rank(row, score), score, row)
        if known is None or entry < known:
            others = [other for other in self.ranked if other is not known]
            self.ranked = sorted([*others, entry])[: self.top_k]

    def _layout_of(self, row: int) -> tuple[int, ...]:
        """Everything of a row but its recomputation."""
        columns = self.rows.columns
        return tuple(int(getattr(columns, name)[row]) for name in _LAYOUT)

    def score_s(self, solved: Solved) -> float:
        """The simulated step time of a solved row."""
        columns, prices, row = self.rows.columns, self.rows.prices, solved.row
        finish = rank_finish_s(
            *solved.finish,
            pp=int(columns.pipeline_parallel_size[row]),
            num_microbatches=int(columns.num_microbatches[row]),
            schedule=SCHEDULES[int(columns.pipeline_schedule[row])],
        )
        last = max(end + tail for end, tail in zip(finish, solved.tail_s, strict=True))
        return float(prices.straggler[row] * last + prices.fixed_s[row])

    def _rank(self, row: int, score_s: float) -> Rank:
        """What orders rows: the score, then simplicity."""
        c = self.rows.columns
        sizes = (
            c.tensor_parallel_size, c.pipeline_parallel_size, c.virtual_pipeline_size,
            c.context_parallel_size, c.expert_parallel_size, c.data_parallel_size,
        )  # fmt: skip
        axes = sum(int(size[row] > 1) for size in sizes) + int(c.zero_stage[row] > 0)
        replay = int(c.recompute_layers[row])
        tensor = int(c.tensor_parallel_size[row])
        return round(score_s * _NS), axes, int(c.recompute[row]), replay, tensor, row


def _first_bound_s(rows: Rows) -> FloatArray:
    """The bound that rows wait under at first, shape (n,); +inf where memory refutes them at sight."""
    bound = np.full(len(rows), np.inf)
    index = np.flatnonzero(may_fit(rows))
    if rows.is_uniform:
        index = index[layer_caps(rows.take(index)).feasible(rows.layout.num_layers)]
    bound[index] = whole_layers_s(rows.take(index))
    return bound


def _passes(stages: Stages, row: int, chunks: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Forward and backward seconds of each chunk of one row."""
    forward, backward = stages.chunk_forward_s[row, :chunks], stages.chunk_backward_s[row, :chunks]
    return tuple(forward.tolist()), tuple(backward.tolist())
