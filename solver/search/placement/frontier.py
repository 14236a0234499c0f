"""Best first over rows and berths: pop by bound, choose berths, refute, solve, simulate.

A *row* waits under a bound over all its berths; popped, it makes way for its *fields* (a choice of one
berth of each of some groups), each under a bound of its own. A popped field is first asked whether any
placement may step within the K-th best score (``bounds.Reach``, exact for whole layers, memory and
groups); one that may is solved (``program.Program``), and its placement of least closed form and those that
keep the bounds within shorter times are simulated.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.solver.clock import OutOfTime, look
from meshwright.solver.configuration import BoolArray, Columns, FloatArray, IntArray
from meshwright.solver.search.placement.bounds import Floors, Reach, field_bound_s, floors_of, step_bound_s
from meshwright.solver.search.placement.program import Field, Placement, Program
from meshwright.solver.search.placement.rows import MOST_USED, Outer, choices_of
from meshwright.solver.space.request_rules import names_of

_NS = 1e9
_RUNG = 1.00025  # bounds are tried at its powers, in seconds
_TRIES = 9  # times between the least that the bounds leave and what is known
_TIGHTENED = 256  # fields whose own bounds are found together
_OPENED = 64  # rows whose fields are bounded together
_SAMPLED = 512  # choices of a row that has too many
_MOST_CHOICES = 2**15  # of berths for a row, or rows opened together; of more a sample is searched
_MOST_WAITING = 2**20  # fields, some 200 bytes each: while more wait, no further rows are opened
Layout = tuple[int, ...]
Waiting = tuple[float, int, tuple[int, ...]]  # a field under its bound: row, berths
Loose = tuple[float, bool, int, tuple[int, ...]]  # the same with whether ``field_bound_s`` may be larger
Bound = Callable[[Floors, IntArray | None, Columns, int], FloatArray]


@dataclass(frozen=True, slots=True, order=True)
class Placed:
    """One placement in the ranking; ordered by its key: the score, then simplicity."""

    key: tuple[int, ...]
    score_s: float
    objective_s: float
    row: int
    berths: tuple[int, ...]
    placement: Placement


@dataclass(slots=True, kw_only=True)
class PlacedFrontier:
    """The state of a search over the fields of an outer space."""

    outer: Outer
    floors: Floors
    top_k: int
    bound_s: FloatArray  # (n,) of every row
    ranked: list[Placed] = field(default_factory=list)  # best first
    rivals_s: tuple[float, ...] = ()  # scores of plans that were found elsewhere
    objectives: dict[tuple[int, tuple[int, ...]], float] = field(default_factory=dict)  # of solved fields
    proved_s: float = np.inf  # no placement of a solved field is faster
    solved: int = 0
    fields: int = 0
    finished: bool = False
    meshes: bool = False  # plans that differ in ZeRO stage and micro-batch alone are told apart as one
    floors_s: dict[Layout, float] = field(default_factory=dict)  # no placement of a layout is faster
    _best: dict[Layout, Placed] = field(default_factory=dict)
    _order: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _next: int = 0
    _heap: list[Loose] = field(default_factory=list)

    @classmethod
    def of(cls, outer: Outer, top_k: int, *, meshes: bool = False) -> PlacedFrontier:
        """Bound every row; none is opened yet."""
        floors = floors_of(outer)
        look()
        bound = step_bound_s(floors, outer.group_of, outer.columns, outer.layout.num_layers)
        if (choices_of(outer, np.flatnonzero(np.isfinite(bound))) > _MOST_CHOICES).any():
            outer = replace(outer, whole=False)
        order = np.argsort(bound, kind="stable")
        order = order[: int(np.isfinite(bound).sum())]
        return cls(outer=outer, floors=floors, top_k=top_k, bound_s=bound, meshes=meshes, _order=order)

    @property
    def cutoff_s(self) -> float:
        """The score of the K-th best layout so far, rivals counted; +inf while there are fewer."""
        scores = sorted([*(one.score_s for one in self.ranked), *self.rivals_s])
        return scores[self.top_k - 1] if len(scores) >= self.top_k else np.inf

    @property
    def waiting_s(self) -> float:
        """Least bound of what is not settled yet."""
        unseen = float(self.bound_s[self._order[self._next]]) if self._next < len(self._order) else np.inf
        return min(unseen, self._heap[0][0] if self._heap else np.inf)

    @property
    def settled(self) -> int:
        """Rows that were opened, or that no longer can change the ranking."""
        unseen = self.bound_s[self._order[self._next :]]
        return len(self.outer) - int((unseen <= self.cutoff_s).sum())

    def run(self, interrupted: Callable[[PlacedFrontier], bool], *, until_s: float = np.inf) -> None:
        """Search until the best K are proved, what waits takes longer, or ``interrupted`` says stop.

        Where the clock is over, what was being looked at still waits under its bound.
        """
        try:
            self._run(interrupted, until_s)
        except OutOfTime:
            return

    def _run(self, interrupted: Callable[[PlacedFrontier], bool], until_s: float) -> None:
        """The same; raises where the clock is over."""
        while not interrupted(self):
            waiting = self.waiting_s
            if waiting > self.cutoff_s or waiting == np.inf:
                self.finished = self.outer.whole
                return
            if waiting > until_s:
                return
            if not self._heap or (self._heap[0][0] > waiting and not self._settles_first):
                rows = self._pieces(self._order[self._next : self._next + _OPENED])[0]
                self._open(rows)
                self._next += len(rows)
            elif self._heap[0][1]:
                self._tighten()
            else:
                _, _, row, berths = entry = heapq.heappop(self._heap)
                if (row, berths) in self.objectives:  # adopted
                    continue
                try:
                    self.settle(Field(outer=self.outer, row=row, berths=berths))
                except OutOfTime:
                    heapq.heappush(self._heap, entry)
                    raise

    def fill(self, interrupted: Callable[[PlacedFrontier], bool]) -> None:
        """Where fewer than K meshes have a plan: rank their best other layouts beside those plans."""
        every, meshes = PlacedFrontier.of(self.outer, self.top_k), self.ranked
        every.rivals_s = self.rivals_s
        for one in meshes:
            every.settle(Field(outer=self.outer, row=one.row, berths=one.berths))
        every.run(interrupted)
        known, room = {(one.row, one.berths) for one in meshes}, self.top_k - len(self.rivals_s)
        others = [one for one in every.ranked if (one.row, one.berths) not in known]
        self.ranked = sorted([*meshes, *others[: room - len(meshes)]])
        self.meshes, self.floors_s, self.finished = False, every.floors_s, every.finished
        self.objectives |= every.objectives
        self.proved_s, self.solved = min(self.proved_s, every.proved_s), self.solved + every.solved

    def adopt(self, other: PlacedFrontier) -> None:
        """Solve the field of another search's best plan, where it is among these rows."""
        for placed in other.ranked[:1]:
            mine, theirs = self.outer.columns, other.outer.columns
            same = [getattr(mine, name) == getattr(theirs, name)[placed.row] for name in mine.__slots__]
            for row in np.flatnonzero(np.logical_and.reduce(same)).tolist():
                self.settle(Field(outer=self.outer, row=row, berths=placed.berths))

    @property
    def _settles_first(self) -> bool:
        """Whether fields that wait are settled before rows of less bound are opened.

        Where they are too many, and in a sample, which proves nothing, until it has its plans.
        """
        sampled = not self.outer.whole and len(self.ranked) < self.top_k
        return sampled or len(self._heap) > _MOST_WAITING

    def _open(self, rows: IntArray) -> None:
        """Let the fields of rows wait under their bounds."""
        cutoff_s = self.cutoff_s
        for bound, row, berths in list(self.fields_of(rows, step_bound_s, cutoff_s)):
            if (least := max(bound, float(self.bound_s[row]))) <= cutoff_s:
                heapq.heappush(self._heap, (least, True, row, berths))

    def _tighten(self) -> None:
        """Let the first few fields wait under their own bounds."""
        some = list[Loose]()
        while self._heap and self._heap[0][1] and len(some) < _TIGHTENED:
            some.append(heapq.heappop(self._heap))
        choices = np.full((MOST_USED, len(some)), -1)
        for at, (_, _, _, berths) in enumerate(some):
            choices[: len(berths), at] = berths
        rows = np.array([row for _, _, row, _ in some])
        bounds = field_bound_s(
            self.floors.at(choices, rows), self.outer.columns.take(rows), self.outer.layout.num_layers
        )
        for bound, (loose, _, row, berths) in zip(bounds.tolist(), some, strict=True):
            if (least := max(bound, loose)) <= self.cutoff_s:
                heapq.heappush(self._heap, (least, False, row, berths))

    def fields_of(self, rows: IntArray, bound: Bound, limit_s: float) -> Iterator[Waiting]:
        """The fields of some rows whose bound is within a limit."""
        layers = self.outer.layout.num_layers
        for some in self._pieces(rows):
            look()
            choices, of_row = self._choices(some)
            bounds = bound(self.floors.at(choices, of_row), None, self.outer.columns.take(of_row), layers)
            self.fields += len(of_row) if bound is step_bound_s else 0
            for at in np.flatnonzero(bounds <= limit_s).tolist():
                berths = tuple(int(berth) for berth in choices[:, at] if berth >= 0)
                yield float(bounds[at]), int(of_row[at]), berths

    def _pieces(self, rows: IntArray) -> list[IntArray]:
        """The rows in pieces of ``_OPENED`` of them at most that have few enough choices together."""
        sizes = choices_of(self.outer, rows)
        sizes = np.where(sizes > _MOST_CHOICES, _SAMPLED, sizes)
        piece = np.maximum(np.cumsum(sizes) // _MOST_CHOICES, np.arange(len(rows)) // _OPENED)
        return np.split(rows, np.flatnonzero(np.diff(piece)) + 1) if len(rows) else []

    def _choices(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """One berth of each group (-1: none), whose stages can be those of a row, (G, C); and the row.

        Of a row with more than ``_MOST_CHOICES`` a sample.
        """
        many = choices_of(self.outer, rows) > _MOST_CHOICES
        parts = [self._every_choice(rows[~many]), *map(self._some_choices, rows[many])]
        choices = np.concatenate([chosen for chosen, _ in parts], axis=1)
        of_row = np.concatenate([own for _, own in parts])
        p, used = self.outer.columns.pipeline_parallel_size[of_row], (choices >= 0).sum(axis=0)
        room = np.where(choices < 0, 0, self.outer.room[choices, of_row])
        able = (room.sum(axis=0) >= p) & (used <= np.minimum(p, MOST_USED)) & (used > 0)
        able &= ((room > 0) | (choices < 0)).all(axis=0)
        if self._counts_gpus:
            able &= self._are_alike(choices)
        return choices[:, able], of_row[able]

    def _every_choice(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Every choice of berths that some rows have room on, group by group."""
        outer, groups = self.outer, self.outer.group_of
        p = np.minimum(outer.columns.pipeline_parallel_size, MOST_USED)
        chosen, of_row = np.zeros((0, len(rows)), dtype=np.int64), rows
        for group in range(len(outer.fleet.groups)):
            look()
            offered = np.append(-1, np.flatnonzero(groups == group))
            there = (offered[:, None] < 0) | (outer.room[offered][:, of_row] > 0)
            there &= (offered[:, None] < 0) | ((chosen >= 0).sum(axis=0) < p[of_row])
            which, at = np.nonzero(there)
            chosen = np.concatenate([chosen[:, at], offered[which][None]])
            of_row = of_row[at]
        return chosen, of_row

    def _some_choices(self, row: int) -> tuple[IntArray, IntArray]:
        """Choices drawn at random, the same ones whenever the row is asked for."""
        outer, groups, draw = self.outer, self.outer.group_of, np.random.default_rng(int(row))
        here = [np.flatnonzero((groups == at) & (outer.room[:, row] > 0)) for at in np.unique(groups)]
        most = min(int(outer.columns.pipeline_parallel_size[row]), MOST_USED, len(here))
        rank = draw.random((len(here), _SAMPLED)).argsort(axis=0)
        used = rank < draw.integers(1, most + 1, _SAMPLED)
        drawn = [draw.choice(some if len(some) else np.array([-1]), _SAMPLED) for some in here]
        chosen = np.unique(np.where(used, np.stack(drawn), -1), axis=1)
        return chosen, np.full(chosen.shape[1], row)

    @property
    def _counts_gpus(self) -> bool:
        """Whether a constraint names the number of GPUs.

        Rules are asked stage by stage, as if all stages had its tensor parallelism; what a constraint says
        of all GPUs is said of the placement where they have.
        """
        return "num_gpus" in names_of(self.outer.fleet.problem.options.constraints)

    def _are_alike(self, choices: IntArray) -> BoolArray:
        """Whether the berths of each choice (-1: none) have one tensor-parallel size, (C,)."""
        sizes = np.array([berth.tensor_parallel_size for berth in self.outer.berths])[choices]
        least = np.where(choices < 0, sizes.max(initial=0), sizes).min(axis=0)
        return np.asarray(((choices < 0) | (sizes == least)).all(axis=0))

    def settle(self, one: Field, *, unconditionally: bool = False) -> None:
        """Refute a field, or solve it and rank its best candidate."""
        reach, layout = Reach(one), self._layout_of(one)
        known = self._best.get(layout)
        limit = min(self.cutoff_s, np.inf if known is None else known.score_s)
        if not unconditionally and limit < np.inf and not reach.can_beat(limit):
            return
        best = Program(one).solve()
        if best is None:
            return
        self.solved += 1
        self.objectives[one.row, one.berths] = best.objective_s
        rung = self._least_rung(one, reach)
        self.proved_s = min(self.proved_s, _rung_s(rung - 1))
        self.floors_s[layout] = min(self.floors_s.get(layout, np.inf), _rung_s(rung - 1))
        placement = min(self._candidates(one, reach, best.placement, rung), key=one.simulated_s)
        self._rank(one, one.simulated_s(placement), placement)

    def _candidates(self, one: Field, reach: Reach, known: Placement, rung: int) -> list[Placement]:
        """The placement of least closed form, and those that keep the bounds within some shorter times."""
        least_s, most_s = _rung_s(rung), one.simulated_s(known)
        times_s = np.linspace(least_s, most_s, _TRIES).tolist() if least_s < most_s else []
        found = [reach.placement(step_s) for step_s in times_s]
        return list(dict.fromkeys([known, *(placement for placement in found if placement is not None)]))

    def _least_rung(self, one: Field, reach: Reach) -> int:
        """The first rung at which the bounds leave a placement: the same whatever else was searched."""
        low = _rung_above(float(self.bound_s[one.row])) - 1
        step = 1
        while not reach.can_beat(_rung_s(low + step)):
            low, step = low + step, 2 * step
        high = low + step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reach.can_beat(_rung_s(middle)) else (middle, high)
        return high

    def _rank(self, one: Field, score: float, placement: Placement) -> None:
        """Let a candidate stand for its layout where it is the best so far."""
        objective = one.objective_s(placement)
        placed = Placed(self._key(one, score), score, objective, one.row, one.berths, placement)
        layout = self._layout_of(one)
        known = self._best.get(layout)
        if known is None or placed < known:
            self._best[layout] = placed
            others = [other for other in self.ranked if other is not known]
            self.ranked = sorted([*others, placed])[: self.top_k]

    def _layout_of(self, one: Field) -> Layout:
        """What tells plans apart: everything but recomputation and the split, or the mesh alone."""
        c, row = self.outer.columns, one.row
        sizes = [c.context_parallel_size, c.expert_parallel_size, c.data_parallel_size,
                 c.pipeline_parallel_size]  # fmt: skip
        sizes += [] if self.meshes else [c.zero_stage, c.micro_batch_size]
        return (*(int(size[row]) for size in sizes), *one.berths)

    def _key(self, one: Field, score_s: float) -> tuple[int, ...]:
        """What orders placements: the score, then fewer groups, stages and sizes."""
        c, row = self.outer.columns, one.row
        tensor = max(self.outer.berths[at].tensor_parallel_size for at in one.berths)
        simple = (len(one.berths), int(c.pipeline_parallel_size[row]), int(c.recompute[row]), tensor)
        return (round(score_s * _NS), *simple, row, *one.berths)

    def least_bound_s(self, best_s: float) -> float:
        """No placement of any row simulates faster; at most ``best_s``.

        A refuted field has no placement within the cutoff of its time, which was no less; what waits keeps
        its bound; a solved one has none below its first rung.
        """
        return min(best_s, self.waiting_s, self.proved_s)


def _rung_s(rung: int) -> float:
    """Times that bounds are tried at."""
    return float(_RUNG**rung)


def _rung_above(step_s: float) -> int:
    """The first rung that is not below a time."""
    return math.ceil(math.log(step_s) / math.log(_RUNG))
