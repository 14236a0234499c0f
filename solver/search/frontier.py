"""Best-first search: open rows by bound, solve, bound again, simulate; stop if none can rank higher.

A row's *score* is the least simulated step time of its candidate splits (``candidates``), of which one
minimises its closed-form objective. Rows wait under a lower bound of their score: first
``bounds.whole_layers_s``, then, once solved, the least ``bounds.split_s`` of their candidates. The row
with the least bound is always next, so when it cannot enter the best K nothing can. Rows that come in
kinds are opened kind by kind (``priced_space.Unopened``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields

import numpy as np

from meshwright.solver.clock import OutOfTime, look
from meshwright.solver.configuration import (
    PER_STAGE,
    VARIABLE_OF,
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    distinct,
)
from meshwright.solver.schedules.schedule import makes_order
from meshwright.solver.search.bounds import Bounds, split_s
from meshwright.solver.search.candidates import Ends, candidates_of, fastest
from meshwright.solver.search.feasible import bound_at_sight_s
from meshwright.solver.search.fill import can_beat
from meshwright.solver.search.fill_kinds import tightened_s
from meshwright.solver.search.listed import are_listed
from meshwright.solver.search.priced_space import CHUNK, Priced, Unopened
from meshwright.solver.search.splits import Split, are_offered, best_splits, least_offered_s
from meshwright.solver.space.factored import Crossing

# --------------------------------------------------------------------------------------------------
# How rows rank, and which of them are one layout.
#
# Scores are compared in whole nanoseconds; equal ones rank the simple way: fewer parallel axes, less
# recomputation, smaller tensor_parallel_size, smaller row number.
#
# Rows that differ in how one layout is run (recomputation, chunks a rank, schedule, shard sets, sequence
# parallelism, offload, way of context parallelism, order of ranks) are one *layout*; the best of them
# represents it, so that the best K are K layouts and not one layout with K numbers of chunks. Layouts that
# differ in ZeRO stage and micro-batches alone are one *mesh*, and diverse plans are the best of K meshes.


_NS = 1e9
INNER = tuple(name for name, variable in VARIABLE_OF.items() if variable.scope == "run")
LAYOUT = tuple(f.name for f in fields(Columns) if f.name not in INNER)
Layout = tuple[object, ...]
Rank = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True, order=True)
class Ranked:
    """One row in the ranking; ordered by its key."""

    key: Rank
    score_s: float
    row: int
    split: Split  # simulates to the score


def layouts_of(
    columns: Columns | Crossing, index: IntArray | list[int], apart: tuple[str, ...] = LAYOUT
) -> list[Layout]:
    """Return the values that distinguish rows' plans: all but ``INNER``, or the given columns.

    On one rank a ZeRO stage shards nothing: there it is a way to run the layout, and counts as stage 0.
    """
    rows = columns.take(np.asarray(index, dtype=np.int64))
    stage = np.where(rows.replicating_ranks > 1, rows.zero_stage, 0)
    values = [stage if name == "zero_stage" else getattr(rows, name) for name in apart]
    return list(zip(*(value.tolist() for value in values), strict=True))


def least_by(keys: Sequence[Layout], values: FloatArray) -> dict[Layout, float]:
    """Return the least value of each key."""
    found = dict[Layout, float]()
    for key, value in zip(keys, values.tolist(), strict=True):
        found[key] = min(found.get(key, np.inf), value)
    return found


def ranked(c: Columns, row: int, score_s: float, split: Split) -> Ranked:
    """Return a row with its score and its sort key; ``c`` are its own columns, of one row."""
    sizes = (
        c.tensor_parallel_size, c.pipeline_parallel_size, c.virtual_pipeline_size,
        c.context_parallel_size, c.expert_parallel_size, c.data_parallel_size,
    )  # fmt: skip
    axes = sum(int(size[0] > 1) for size in sizes) + int(c.zero_stage[0] > 0)
    replay, tensor = int(c.recompute_layers[0]), int(c.tensor_parallel_size[0])
    key = (round(score_s * _NS), axes, int(c.recompute[0]), replay, tensor, row)
    return Ranked(key, score_s, row, split)


# --------------------------------------------------------------------------------------------------
# Which rows to solve first: those with bounds that stay low when they are looked at closely.
#
# A first bound leaves memory and whole layers aside, so the rows with the least ones are seldom the best.
# With layers of one kind the first rows are solved, and the best row of each layout is ranked. With several
# kinds rows take long to solve: until K are ranked, bounds are raised as far as ``can_beat`` refutes them.
# The better the K-th score is early on, the fewer rows are ever solved.


_LOOKED_AT, _TRIED = 1024, 64  # rows that are looked at, and solved together
_MOST_LOOKS = 8
_LACKING = 2  # layers


_BATCH, _TOGETHER = 96, 4  # rows solved together, and of those that a first ranking is made of
_GLANCE = 2048  # rows that are tried together before any is solved; later half of those before
_SOON = 512  # rows until which a search may be over soon: from there on batches grow
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


@dataclass(frozen=True, slots=True)
class Rivals:
    """Scores of the plans of other searches that are ranked with this one's."""

    best_s: float
    last_s: float  # of the K-th best: what is slower is not ranked
    of_meshes: Mapping[Layout, float] = field(default_factory=dict)  # the best of each
    least_s: Callable[[Columns, BoolArray], FloatArray] | None = None  # of rows, as ``enumerate.Beyond``


NO_RIVALS = Rivals(np.inf, np.inf)


@dataclass(slots=True, kw_only=True)
class Frontier:
    """State of a best-first search over ``rows``."""

    rows: Priced
    top_k: int
    bound_s: Bounds  # best known lower bound of every row's score; +inf: no split fits
    fits: int = 0
    solved: dict[int, Solved] = field(default_factory=dict)
    ranked: list[Ranked] = field(default_factory=list)  # best first
    finished: bool = False
    any_plan: bool = False  # one is enough, the first that is found
    covers_all: bool = True  # every legal row is here, so that the least bound holds for all of them
    limit_s: float = np.inf  # a score that others have K times: rows that are worse are not sought
    beyond_s: float = np.inf  # the least bound of rows that were left out before they were enumerated
    apart: tuple[str, ...] = LAYOUT  # columns that distinguish ranked plans: LAYOUT or MESH
    rivals_s: Mapping[Layout, float] = field(default_factory=dict)  # scores of others, by that
    filled: bool = False  # meshes were too few: their best other layouts are ranked as well (``fill``)
    filled_s: float = np.inf  # then the score of the K-th best layout; +inf where they are too few, too
    scores_s: dict[int, float] = field(default_factory=dict)  # of rows that were simulated
    above_s: dict[int, float] = field(default_factory=dict)  # what the scores of refuted rows are more than
    _best: dict[Layout, Ranked] = field(default_factory=dict)  # of every layout simulated so far
    _ends: Ends = field(default_factory=Ends)
    _unopened: Unopened | None = None  # where rows are opened kind by kind
    _order: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _next: int = 0
    _glanced: int = 0  # rows so far
    _heap: list[tuple[float, int]] = field(default_factory=list)  # glanced at, some of them solved
    _primed_from_s: float = np.inf  # the least bound while rows are ranked out of their order

    @classmethod
    def of(
        cls,
        rows: Priced,
        top_k: int,
        limit_s: float = np.inf,
        apart: tuple[str, ...] = LAYOUT,
    ) -> Frontier:
        """Bound every row, or every kind of row; none is solved yet."""
        frontier = cls(rows=rows, top_k=top_k, bound_s=Bounds(len(rows)), limit_s=limit_s, apart=apart)
        if rows.by_kind is not None:
            unopened = frontier._unopened = Unopened.of(rows, rows.by_kind, limit_s)
            frontier.fits = unopened.rows_within(np.inf)
            if unopened.least_s <= limit_s:
                frontier._open_kinds(unopened)
            return frontier
        for start in range(0, len(rows), CHUNK):
            look()
            frontier.bound(np.arange(start, min(start + CHUNK, len(rows))))
        frontier.fits = len(frontier.bound_s.below(np.inf))
        frontier._sort_in(np.arange(len(rows)))
        return frontier

    def bound(self, index: IntArray) -> None:
        """Bound new rows."""
        self.bound_s[index] = bound_at_sight_s(self.rows.take(index), self.cutoff_s)

    def _open_kinds(self, unopened: Unopened) -> None:
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
        """Queue more rows to be glanced at; rows that do not fit, or are too late, are dropped."""
        waiting = np.concatenate([self._order[self._next :], np.asarray(index, dtype=np.int64)])
        bounds = self.bound_s[waiting]
        waiting = waiting[np.isfinite(bounds) & (bounds <= self.rows.latest(waiting))]
        self._order, self._next = waiting[np.lexsort((waiting, self.bound_s[waiting]))], 0

    def rivals_below(self, objective_s: float) -> IntArray:
        """Return rows with a closed form that may be less, by the bounds of kinds; opens them."""
        if self._unopened is not None:
            index = self._unopened.open_objectives(objective_s)
            for start in range(0, len(index), CHUNK):
                self.bound(index[start : start + CHUNK])
        return self.bound_s.below(np.inf)

    @property
    def simulated(self) -> int:
        """Return the number of simulated rows."""
        return len(self.scores_s) + len(self.above_s)

    @property
    def cutoff_s(self) -> float:
        """Return the K-th best score so far, or the limit; +inf while there are fewer rows."""
        own = self.ranked[-1].score_s if len(self.ranked) == self.top_k else np.inf
        return min(own, self.limit_s, self.filled_s)

    def best_apart(self, most: int) -> list[Ranked]:
        """Return the best row so far of each of the best layouts, however many are ranked."""
        return sorted(self._best.values())[:most]

    @property
    def _has_score(self) -> bool:
        """Return whether there is a score to be beaten by the best row."""
        return bool(self.ranked) or self.cutoff_s < np.inf

    @property
    def _solves_together(self) -> bool:
        """Return whether rows are solved together, sooner than their bounds are raised."""
        return self.rows.is_uniform or bool(self.rows.only_split)

    @property
    def waiting_s(self) -> float:
        """Return the least bound of a row that is not simulated yet."""
        return min(self._unseen_s, self._heap[0][0] if self._heap else np.inf, self._primed_from_s)

    @property
    def _unseen_s(self) -> float:
        """Return the least bound of a row that was not even glanced at."""
        return min(self._open_s, self._unopened.least_s if self._unopened else np.inf)

    @property
    def _open_s(self) -> float:
        """Return the least bound of such a row of an open kind."""
        return float(self.bound_s[self._order[self._next]]) if self._next < len(self._order) else np.inf

    @property
    def least_s(self) -> float:
        """Return the least bound of any row, in any state; +inf if nothing fits."""
        return min(self.bound_s.least(), self._unseen_s, self.beyond_s)

    @property
    def least_objective_s(self) -> float:
        """Return the least closed form of any row by the bounds of kinds; -inf if rows have none."""
        own = -np.inf if self._unopened is None else self._unopened.least_objective_s
        return min(own, self.beyond_s)

    @property
    def settled(self) -> int:
        """Return the rows that can no longer change the ranking: refuted, bounded away or simulated."""
        waiting = [bound for bound, _ in self._heap if bound <= self.cutoff_s]
        unopened = self.bound_s[self._order[self._next :]]
        closed = self._unopened.rows_within(self.cutoff_s) if self._unopened else 0
        return len(self.rows) - len(waiting) - int((unopened <= self.cutoff_s).sum()) - closed

    def are_open(self, index: IntArray) -> BoolArray:
        """Mark rows that have more splits than their candidates, (n,)."""
        if not self.rows.uneven_stages or self.rows.only_split:
            return np.zeros(len(index), dtype=np.bool_)
        free = self.rows.is_uniform | (self.rows.columns.take(index).virtual_pipeline_size == 1)
        return np.asarray(free & ~are_listed(self.rows.take(index)))

    def adopt(self, index: list[int]) -> None:
        """Rank rows that have a split that fits and are not beyond the cutoff.

        Rows of kinds that are not open yet have no bound, and would be refuted by that.
        """
        rows = np.array(index, dtype=np.int64)
        self.bound(rows[np.isinf(self.bound_s[rows])])
        for one in sorted(self.solve(index), key=lambda one: (one.bound_s, one.row)):
            if one.bound_s > self.cutoff_s:
                break
            self.simulate(one.row)

    def run(self, interrupted: Interrupt) -> None:
        """Search until the best K are proved, ``interrupted`` returns true or the clock is over.

        What was being looked at then still waits under its bound.
        """
        with suppress(OutOfTime):
            self._run(interrupted)

    def fill(self, interrupted: Interrupt) -> None:
        """Rank other layouts of the best meshes if fewer than K meshes have a plan."""
        meshes, order = self.ranked, self.bound_s.below(np.inf)
        self.apart, self.finished, self.ranked, self._glanced = LAYOUT, False, [], 0
        self._best, self._order, self._next, self._heap = {}, order, 0, []
        self.scores_s, self.above_s = {}, {}
        self.run(interrupted)
        known = set(self._layouts([one.row for one in meshes]))
        others = [one for one in self.ranked if self._layouts([one.row])[0] not in known]
        self.filled, self.filled_s = True, self.cutoff_s
        self.ranked = sorted([*meshes, *others[: self.top_k - len(meshes)]])

    def _run(self, interrupted: Interrupt) -> None:
        """Search; raise when the clock is over."""
        while self._unopened and self._open_s < np.inf and not interrupted(self):
            if self._unopened.least_s > min(self._open_s, self.cutoff_s):  # families beyond stay closed
                break
            self._open_kinds(self._unopened)  # as it comes to in any case
        self._primed_from_s = self.waiting_s
        if self._solves_together:
            self._prime(interrupted)
        self._primed_from_s = np.inf
        self._sort_in([])  # those that were primed and have no split are gone
        while not interrupted(self):
            unseen_s, glanced_s = self._unseen_s, self._heap[0][0] if self._heap else np.inf
            if min(unseen_s, glanced_s) > self.cutoff_s or unseen_s == glanced_s == np.inf:
                self.finished = True
                return
            if not self._heap or glanced_s > unseen_s:
                self._glance()
            elif self._heap[0][1] in self.solved:
                self.simulate(self._heap[0][1])
                heapq.heappop(self._heap)
            else:
                self._open()

    def _prime(self, interrupted: Interrupt) -> None:
        """Rank promising rows of different layouts first, so that bounds have a score to beat."""
        most = max(_PRIMES, min(self.top_k + _MORE, _MOST_PRIMES))
        promising = self._solved_first(most, interrupted)
        for start in range(0, len(promising), _TOGETHER):
            if promising[start][0] > self.cutoff_s:
                break
            solved = self.solve([row for _, row in promising[start : start + _TOGETHER]])
            for one in sorted(solved, key=lambda one: (one.bound_s, one.row)):
                if one.bound_s > self.cutoff_s or interrupted(self):
                    break
                self.simulate(one.row)

    def _solved_first(self, most: int, interrupted: Interrupt) -> list[tuple[float, int]]:
        """Return promising rows with their splits' bounds, which are quick for layers of one kind."""
        order, best = self._order[: _MOST_LOOKS * _LOOKED_AT], dict[Layout, tuple[float, int]]()
        order = self._simple(order)
        for start in range(0, min(len(order), _LOOKED_AT), _TRIED):
            index = order[start : start + _TRIED]
            least = float(self.bound_s[index[0]])
            enough = sum(bound <= least for bound, _ in best.values()) >= (1 if self.any_plan else most)
            if enough or least > self.cutoff_s or interrupted(self):
                break
            splits = best_splits(self.rows.take(index))
            index = index[[split is not None for split in splits]]
            rows = self.rows.take(index)
            bounds = split_s(rows, rows.stages([one for one in splits if one], with_memory=False))
            layouts = self._layouts(index)
            for layout, bound, row in zip(layouts, bounds.tolist(), index.tolist(), strict=True):
                best[layout] = min(best.get(layout, (np.inf, row)), (bound, row))
        return sorted(best.values())[:most]

    def _simple(self, order: IntArray) -> IntArray:
        """Return rows with chunks of one size, the first of those that differ in shard sets or counts.

        Where chunks of unlike size wait for one another a step takes some per cent more than its bound. The
        model's first and last chunk, which hold embedding and head, may lack a layer. Rows that recompute
        by stage or make their order are left out: they are solved or simulated one by one, which takes far
        longer.
        """
        columns = self.rows.columns.take(order)
        chunks = columns.pipeline_parallel_size * columns.virtual_pipeline_size
        alike = (columns.virtual_pipeline_size == 1) | (-self.rows.layout.num_layers % chunks <= _LACKING)
        kept = np.flatnonzero(alike & (columns.recompute_layers != PER_STAGE) & ~makes_order(columns))
        others = (f.name for f in fields(Columns) if f.name not in ("zero_shard_size", "recompute_layers"))
        first, _ = distinct([getattr(columns, name)[kept] for name in others])
        return order[kept[np.sort(first)]]

    def _open(self) -> None:
        batch, aside = list[int](), list[tuple[float, int]]()
        most = max(_BATCH, (len(self.solved) - _SOON) // 2) if self._has_score else _PRIMES
        latest_s = min(self._unseen_s, self.cutoff_s)
        while len(batch) < most and self._heap and self._heap[0][0] <= latest_s:
            entry = heapq.heappop(self._heap)
            if entry[1] in self.solved:
                aside.append(entry)
            else:
                batch.append(entry[1])
        for entry in aside:
            heapq.heappush(self._heap, entry)
        index = np.array(batch, dtype=np.int64)
        try:
            limit_s = self.limits_s(index)
            if self.rows.is_uniform:  # against a score found since, a look costs less than a split
                index = self._left_of(index, limit_s)
            else:
                self._bound_by_offered(index[np.isfinite(limit_s)])
            found = self.solve(index[self.bound_s[index] <= self.limits_s(index)].tolist())
        except OutOfTime:
            for row in batch:
                heapq.heappush(self._heap, (float(self.bound_s[row]), row))
            raise
        for solved in found:
            heapq.heappush(self._heap, (solved.bound_s, solved.row))
        self._dive(found)

    def _bound_by_offered(self, index: IntArray) -> None:
        """Raise the bounds of rows that are offered some splits: most take too long under all of them.

        Whether these fit costs more to know, and is asked of the rows that are left.
        """
        rows = self.rows.take(index)
        some = np.flatnonzero(are_offered(rows))
        self._raise(index[some], least_offered_s(rows.take(some)))

    def _dive(self, found: Sequence[Solved]) -> None:
        """Rank the most promising of solved rows of different layouts before their turn comes.

        The sooner the K-th score is near the last one, the fewer rows are opened.
        """
        layouts = self._layouts([one.row for one in found])
        first = dict[Layout, Solved]()
        for one, layout in sorted(zip(found, layouts, strict=True), key=lambda pair: pair[0].bound_s):
            first.setdefault(layout, one)
        for one in [*first.values()][: self.top_k]:
            if one.bound_s > self.cutoff_s:
                break
            self.simulate(one.row)

    def least_score_s(self, row: int) -> tuple[float, bool]:
        """Return a row's score, or a lower bound of it, and whether it is the score."""
        if row in self.scores_s:
            return self.scores_s[row], True
        solved = self.solved.get(row)
        known = (self.bound_s[row], self.above_s.get(row, 0.0), solved.bound_s if solved else 0.0)
        return float(max(known)), False

    def score(self, row: int) -> tuple[float, Split]:
        """Return a row's least simulated step with its split, whatever others score; +inf if none fits."""
        solved = self.solve([row])
        if not solved:
            return np.inf, ()
        found = fastest(self.rows.take([row]), list(solved[0].candidates), self._ends)
        self.scores_s[row] = found[0]
        return found

    def _layouts(self, index: IntArray | list[int]) -> list[Layout]:
        return layouts_of(self.rows.columns, index, self.apart)

    def limits_s(self, index: IntArray, layouts: Sequence[Layout] = ()) -> FloatArray:
        """Return the score that each row must not exceed to change the ranking, (n,)."""
        layouts = layouts or self._layouts(index)
        known = [self._best.get(layout) for layout in layouts]
        scores = np.array([np.inf if best is None else best.score_s for best in known])
        if self.rivals_s:
            scores = np.minimum(scores, [self.rivals_s.get(layout, np.inf) for layout in layouts])
        return np.asarray(np.minimum(scores, np.minimum(self.rows.latest(index), self.cutoff_s)))

    def _glance(self) -> None:
        """Refute the next rows together if no split fits in memory or can change the ranking."""
        if self._unopened is not None and self._unopened.least_s <= self._open_s:
            self._open_kinds(self._unopened)
            return
        size = (
            max(_GLANCE, self._glanced // 2)
            if self.cutoff_s < np.inf or not self.rows.is_uniform
            else _BATCH
        )
        index = self._order[self._next : self._next + size]
        self._glanced += len(index)
        limit = self.limits_s(index)
        left = self._left_of(index, limit)
        # against a known score the few that are left are solved sooner than their bounds are raised
        if self.cutoff_s == np.inf and not (self._solves_together or self.any_plan):
            self.bound_s[left] = tightened_s(self.rows.take(left), self.bound_s[left], self.limits_s(left))
        self._next += len(index)
        for bound, row in zip(self.bound_s[left].tolist(), left.tolist(), strict=True):
            heapq.heappush(self._heap, (bound, row))

    def _left_of(self, index: IntArray, limit_s: FloatArray) -> IntArray:
        """Return the rows that may have a score within their limits, (n,); others are refuted."""
        able = self._able(index, limit_s)
        self._raise(index[~able], np.nextafter(limit_s[~able], np.inf))
        return index[able]

    def _raise(self, index: IntArray, bounds_s: FloatArray) -> None:
        before = self.bound_s[index]
        after = np.maximum(before, bounds_s)
        self.fits -= int((np.isinf(after) & np.isfinite(before)).sum())
        self.bound_s[index] = after

    def _able(self, index: IntArray, limit_s: FloatArray) -> BoolArray:
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
        """Return the best split of each row that has one; rows without one get the bound +inf."""
        fresh = [row for row in indices if row not in self.solved]
        splits = best_splits(self.rows.take(fresh)) if fresh else []
        fitting = [(row, split) for row, split in zip(fresh, splits, strict=True) if split is not None]
        lost = [row for row, split in zip(fresh, splits, strict=True) if split is None]
        self._raise(np.array(lost, dtype=np.int64), np.full(len(lost), np.inf))
        if fitting:
            self._record(*zip(*fitting, strict=True))
        return [self.solved[row] for row in indices if row in self.solved]

    def _record(self, indices: tuple[int, ...], splits: tuple[Split, ...]) -> None:
        rows = self.rows.take(list(indices))
        objectives = rows.objective_s(list(splits))
        found = candidates_of(rows, splits)
        first = np.searchsorted(found.which, np.arange(len(indices) + 1)).tolist()
        known = self.bound_s[list(indices)].tolist()
        for at, (row, split) in enumerate(zip(indices, splits, strict=True)):
            self.solved[row] = Solved(
                row=row,
                split=split,
                objective_s=float(objectives[at]),
                candidates=tuple(found.splits[first[at] : first[at + 1]]),
                bound_s=max(float(found.bound_s[first[at] : first[at + 1]].min()), known[at]),
            )

    def simulate(self, row: int) -> None:
        """Score a solved row and rank it, unless it was or its layout is known to be faster otherwise."""
        if row in self.scores_s or row in self.above_s:
            return
        solved, one = self.solved[row], self.rows.take([row])
        layout = layouts_of(one.columns, [0], self.apart)
        known = self._best.get(layout[0])
        if known is not None and known.score_s < solved.bound_s:
            return
        limit = float(self.limits_s(np.array([row]), layout)[0]) + 1.0 / _NS  # compared in whole ones
        score, split = fastest(one, list(solved.candidates), self._ends, limit)
        if score > limit:
            self.above_s[row] = limit
            return
        self.scores_s[row] = score
        entry = ranked(one.columns, row, score, split)
        if known is None or entry < known:
            self._best[layout[0]] = entry
            others = [other for other in self.ranked if other is not known]
            self.ranked = sorted([*others, entry])[: self.top_k]
