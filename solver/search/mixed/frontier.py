"""Best first over the rows of a mixed cluster: bounds, a first plan, CP-SAT, and what is proved.

A row waits under the bound of ``bounds``. A first plan comes from whole groups, split exactly. Then what
has the least bound is taken: a row gets the bound of its linear relaxation (``relaxation``), and times of
its slowest stage are bisected under that, down to bands of 2 %. A band is given to CP-SAT (``model``)
without the patterns that the relaxation proves to take too long, at first for closed forms of little more
than its bound; the stages are put in lines, split exactly, priced and checked. A row is settled when the
bounds of all its bands are within GAP of the best plan, so that a finished search proves: no plan's closed
form is less by more than GAP. Plans are ranked by their simulated step among all that were priced.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.check import group_faults, rule_faults
from meshwright.solver.clock import OutOfTime, look, running
from meshwright.solver.configuration import Configuration, IntArray, StageGroup
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.problem import Problem
from meshwright.solver.search.mixed.bounds import RowBounds, bounds_of, with_nearer_steps
from meshwright.solver.search.mixed.limits import count_layers, keep_alone, limited
from meshwright.solver.search.mixed.lines import (
    Line,
    LineSplit,
    LineTables,
    Split,
    chosen_groups,
    lines_of,
    whole_groups,
)
from meshwright.solver.search.mixed.model import RowOutcome, fixed_s_of, solve
from meshwright.solver.search.mixed.neighbours import neighbours_of
from meshwright.solver.search.mixed.patterns import US, Patterns, take
from meshwright.solver.search.mixed.relaxation import Relaxation, Relaxed
from meshwright.solver.search.mixed.rows import (
    RANGES,
    MixedRows,
    StageOption,
    columns_of,
    rows_of_options,
    with_tensor_parallel,
)
from meshwright.solver.search.mixed.steps import StepBound
from meshwright.solver.space.request_rules import group_constraints

GAP = 0.01  # relative, of the closed form: what the search proves
_FIRST_ROWS = 48  # rows whose whole groups are tried for a first plan
_ENOUGH_FIRST, _OF_ONE_PLAN = 6, 2  # of them with a plan, where several are asked for, or one
_BAND, _PART = 0.1, 0.02  # of a closed form: slowest stages are so near in CP-SAT's models, and in parts
_FEW, _MANY = 150, 500  # patterns of a probe; patterns with which a band is halved once more
_FAR = 0.9  # of the best plan: rows of smaller bounds are probed for a better one
_EFFORT, _MORE = 0.3, 3.0  # CP-SAT's deterministic time for a row, and how it grows
_MOST_EFFORT = 3.0
_SHARED = 4  # the first sizes of a row (cp, dp, ep, micro-batch), equal in rows solved together
_NEAR = 1.003  # plans' closed forms are as near to the model's, unless groups alternate there
_WORSE = 1.03  # over the best plan: closed forms that are not priced
_BEHIND = 1.06  # over the last step that is listed: closed forms that are not priced for the list
_FILLED = 6  # rows whose lines are priced together
_WHOLE_OF_PLAN = 3  # rows whose whole groups are tried for each plan behind the first
_NEAREST = 2  # layouts of shortest steps that neighbours are sought of
_STARTS = 12  # further rows: neighbours of their whole groups are tried too
_MOST_NEIGHBOURS = 256  # of plans, priced in one search
_MOST_SPLITS = 8  # of one line
_SAFETY = 1.0 - 1e-9
_TOGETHER = 128  # configurations priced between two looks at the clock
_ALONE = 4  # configurations of one stage that are priced of every option, at least
Layout = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """One configuration with its closed form and its simulated step."""

    config: Configuration
    objective_s: float
    step_s: float
    layout: Layout

    @property
    def key(self) -> tuple[object, ...]:
        """Return what orders plans: the step in nanoseconds, then fewer groups, stages and sizes."""
        c = self.config
        groups = {one.group for one in c.stage_groups}
        return (round(self.step_s * 1e9), len(groups), c.pipeline_parallel_size,
                c.tensor_parallel_size, repr(self.layout))  # fmt: skip


@dataclass(slots=True, order=True)
class _Waiting:
    """Times of the slowest stage of a row, or of several alike rows, queued under their bound."""

    bound_s: float
    rows: tuple[int, ...]
    range_at: int = 0
    in_order: bool = False
    by_sender: bool = False  # an entry pattern for each size that may be sent to it
    low_us: int = 0  # of the slowest stage, with all its micro-batches
    high_us: float = np.inf
    effort: float = _EFFORT
    probed: bool = False  # a plan was sought among few patterns
    relaxed: Relaxed | None = field(default=None, compare=False)  # for times up to ``high_us``

    @property
    def spread(self) -> float:
        """Return the width of the range of times, as a share of the closed form."""
        return (self.high_us - self.low_us) / (self.bound_s * US)


@dataclass(slots=True, kw_only=True)
class MixedFrontier:
    """The state of a search over the rows of a mixed cluster."""

    rows: MixedRows
    problem: Problem
    profile: Profile
    bounds: RowBounds
    meshes: bool  # plans that differ in ZeRO stage, micro-batch and recomputation alone are one layout
    best: MixedPlan | None = None  # of least closed form
    found: dict[Configuration, MixedPlan] = field(default_factory=dict)
    refused: set[Configuration] = field(default_factory=set)
    rival_s: float = np.inf  # the closed form of a plan that was found elsewhere
    calls: int = 0  # of CP-SAT
    alone_s: float = np.inf  # the least step of one stage
    knows_alone: bool = False  # every row of one stage was priced
    open_s: float = np.inf  # least bound of what CP-SAT left open
    finished: bool = False
    is_over: Callable[[], bool] = field(default_factory=running)  # stops CP-SAT while it works on a row
    _joined: bool = False  # rows that are alike wait together
    _relaxations: dict[tuple[tuple[int, ...], int, bool], Relaxation] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)  # rows that CP-SAT left open
    _heap: list[_Waiting] = field(default_factory=list)
    _tried: dict[tuple[int, Line, Split | None], float] = field(default_factory=dict)  # the closed form
    _places: dict[Configuration, tuple[int, Line]] = field(default_factory=dict)  # the row and its line

    @classmethod
    def of(cls, rows: MixedRows, problem: Problem, profile: Profile) -> MixedFrontier:
        """Bound every row that the constraints on node groups leave; none is solved yet."""
        rows = limited(rows)
        bounds = bounds_of(rows)
        heap = [
            _Waiting(float(bound), (row,))
            for row, bound in enumerate(bounds.objective_s)
            if np.isfinite(bound)
        ]
        heapq.heapify(heap)
        meshes = problem.options.diverse
        return cls(rows=rows, problem=problem, profile=profile, bounds=bounds, meshes=meshes, _heap=heap)

    @property
    def known_s(self) -> float:
        """Return the least closed form of a known plan."""
        return min(self.rival_s, np.inf if self.best is None else self.best.objective_s)

    @property
    def bound_s(self) -> float:
        """Return what no plan's closed form is below; +inf where no row has a plan."""
        return min(self.open_s, self.alone_s, self._waiting_s, self._most_s)

    @property
    def _most_s(self) -> float:
        """Return the closed form below which plans are sought."""
        return self.known_s * (1.0 - GAP)

    @property
    def _waiting_s(self) -> float:
        return self._heap[0].bound_s if self._heap else np.inf

    @property
    def settled(self) -> int:
        """Return the rows that cannot change what is proved."""
        waiting = {row for one in self._heap if one.bound_s < self._most_s for row in one.rows}
        return len(self.rows) - len(waiting | self._open)

    def adopt(self, plans: Mapping[Configuration, MixedPlan]) -> None:
        """Begin with plans that were found among fewer rows."""
        self.found |= plans
        self.best = min(self.found.values(), key=lambda one: one.objective_s, default=None)

    def begin(self, interrupted: Callable[[MixedFrontier], bool]) -> None:
        """Find a first plan: single stages, then whole groups of the rows of least bound."""
        alone = self._alone()
        self.knows_alone = True
        self.price(alone)
        order = [one.rows[0] for one in heapq.nsmallest(_FIRST_ROWS, self._heap)]
        enough = _ENOUGH_FIRST if self.problem.options.top_k > 1 else _OF_ONE_PLAN
        having = done = 0
        while done < len(order) and having < enough and not interrupted(self):
            some = order[done : done + (enough if self.found else 1)]
            lines = {row: dict.fromkeys(whole_groups(self.rows, row)) for row in some}
            having, done = having + self._try_lines(lines, most_s=np.inf), done + len(some)

    def run(self, interrupted: Callable[[MixedFrontier], bool]) -> None:
        """Solve rows until the bound is within GAP of the best plan, or ``interrupted`` says stop."""
        with suppress(OutOfTime):
            while not interrupted(self):
                self._join_alike()
                if self._waiting_s >= self._most_s:
                    proved = min(self.open_s, self.alone_s) >= self._most_s
                    self.finished = self.rows.whole and self.knows_alone and proved
                    return
                one = heapq.heappop(self._heap)
                try:
                    self._advance(one)
                except OutOfTime:
                    heapq.heappush(self._heap, one)
                    raise

    def fill(self, number: int, interrupted: Callable[[MixedFrontier], bool]) -> None:
        """Find the best of some layouts, from rows in the order of their bounds; they are not proved."""
        order = np.argsort(self.bounds.objective_s, kind="stable")
        order = order[np.isfinite(self.bounds.objective_s[order])]
        whole = min(_WHOLE_OF_PLAN * number, len(order))
        for lines, most in ((whole_groups, whole), (chosen_groups, len(order))):
            for start in range(0, most, _FILLED):
                some = order[:most][start : start + _FILLED].tolist()
                ranked = self.ranked()[:number]
                full = len(ranked) >= number
                beyond = full and self.bounds.objective_s[some[0]] > ranked[-1].objective_s
                if beyond or (full and lines is chosen_groups) or interrupted(self):
                    break
                work = {row: dict.fromkeys(lines(self.rows, row)) for row in some}
                self._try_lines(work, most_s=ranked[-1].step_s * _BEHIND if full else np.inf)

    def improve(self, interrupted: Callable[[MixedFrontier], bool]) -> None:
        """Price neighbours of the plans with the shortest steps, and theirs, up to a counted limit.

        It begins with the plans found so far, and with whole groups of rows that may have a shorter step.
        """
        if self.found and not interrupted(self):
            self.price(list(self._whole_of_rows(self.ranked()[0].step_s)))
        seen, left = set[Configuration](), _MOST_NEIGHBOURS
        while left > 0 and not interrupted(self):
            near = (one for one in self.ranked()[:_NEAREST] if one.config in self._places)
            plan = next((one for one in near if one.config not in seen), None)
            if plan is None:
                return
            seen.add(plan.config)
            found = list(islice(self._neighbours(plan), left))
            self.price(found)
            left -= len(found)

    def ranked(self) -> list[MixedPlan]:
        """Return the best plan of every layout, by their simulated steps."""
        best = dict[Layout, MixedPlan]()
        for one in self.found.values():
            known = best.get(one.layout)
            if known is None or one.key < known.key:
                best[one.layout] = one
        return sorted(best.values(), key=lambda one: one.key)

    # ----------------------------------------------------------------------------------------------
    # One row at a time.

    def _advance(self, one: _Waiting) -> None:
        """Tighten the bound of an entry, or give it to CP-SAT."""
        if one.relaxed is None:
            numbers = tuple(row for row in one.rows if self.bounds.objective_s[row] < self._most_s)
            self._wait(replace(one, rows=numbers))
        elif one.bound_s < self._most_s * _FAR and not one.probed:
            self._probe(one, one.relaxed)
        elif one.spread <= _BAND:
            self._solve(one)
        else:
            self._halve(one)

    def _halve(self, one: _Waiting) -> None:
        """Split the times into two halves, and queue both."""
        values = self._relaxation_of(one).slowest_us  # a plan has a pattern's time, or the least that waits
        at = int(np.searchsorted(values, np.sqrt(float(one.low_us) * one.high_us), side="right"))
        middle = max(int(values[at - 1]) if at else 0, one.low_us)
        self._wait(replace(one, low_us=int(values[at])))
        self._wait(replace(one, high_us=float(middle), relaxed=None, probed=False))

    def _probe(self, one: _Waiting, relaxed: Relaxed) -> None:
        """Look for a plan among the patterns that the relaxation uses and a few others."""
        few = np.argsort(relaxed.more_us, kind="stable")[:_FEW]
        patterns = take(self._relaxation_of(one).patterns, np.sort(few[np.isfinite(relaxed.more_us[few])]))
        self._asked(replace(one, in_order=True), patterns, any_plan=True)
        self._wait(replace(one, probed=True))

    def _wait(self, one: _Waiting) -> None:
        """Queue an entry under the bound of its relaxation, unless that proves it too slow."""
        relaxation, numbers, rows = self._relaxation_of(one), list(one.rows), self.rows
        fixed_s = fixed_s_of(rows, one.rows)
        budget_us = (self._most_s - fixed_s) * US
        least_s = float((self.bounds.slowest_s[numbers] * (rows.num_microbatches[numbers] - 1)).min())
        low_us, high_us = max(one.low_us, int(least_s * US * _SAFETY)), min(one.high_us, budget_us)
        relaxed = one.relaxed or relaxation.within(high_us)
        high_us = min(high_us, budget_us - relaxed.sum_us)
        if low_us > high_us:
            return
        at = int(np.searchsorted(relaxation.slowest_us, high_us, side="right"))
        high_us = float(max(int(relaxation.slowest_us[at - 1]) if at else 0, low_us))
        bound_s = max(one.bound_s, (low_us + relaxed.sum_us) / US + fixed_s)
        if bound_s < self._most_s:
            waiting = replace(one, bound_s=bound_s, low_us=low_us, high_us=high_us, relaxed=relaxed)
            heapq.heappush(self._heap, waiting)

    def _relaxation_of(self, one: _Waiting) -> Relaxation:
        """Return the relaxation of rows with all patterns that a better plan may have."""
        known = self._relaxations.get((one.rows, one.range_at, one.by_sender))
        if known is None:
            most_us = [(self._most_s - float(self.bounds.others_s[row])) * US for row in one.rows]
            known = Relaxation.of(self.rows, one.rows, most_us, one.range_at, by_sender=one.by_sender)
            self._relaxations[one.rows, one.range_at, one.by_sender] = known
        return known

    def _solve(self, one: _Waiting) -> None:
        """Give a narrow range of times to CP-SAT, and queue again what it leaves open."""
        patterns, low_us = self._able(one)
        if len(patterns) > _MANY and one.spread > _PART:
            self._halve(one)
        elif len(patterns):
            one = replace(one, low_us=max(one.low_us, low_us))
            found = self._asked(one, patterns)
            self._put_back(one, found)

    def _able(self, one: _Waiting) -> tuple[Patterns, int]:
        """Return the patterns that a better plan may have, and the least time of its slowest stage."""
        relaxation = self._relaxation_of(one)
        every = relaxation.patterns
        budget_us = (self._most_s - fixed_s_of(self.rows, one.rows)) * US
        able, low_us = np.zeros(len(every), dtype=np.bool_), 1 << 62
        part_us = one.low_us
        while part_us <= one.high_us:
            end_us = min(part_us + one.bound_s * US * _PART, one.high_us)
            relaxed = relaxation.within(end_us)
            spare_us = budget_us - part_us - relaxed.sum_us
            if spare_us >= 0.0:
                able |= relaxed.more_us <= spare_us
                low_us = min(low_us, part_us)
            part_us = int(end_us) + 1
        return take(every, np.flatnonzero(able)), low_us

    def _asked(self, one: _Waiting, patterns: Patterns, *, any_plan: bool = False) -> RowOutcome:
        """Ask CP-SAT for stages of some patterns, and try them in lines."""
        look()
        found = solve(
            self.rows, one.rows, patterns, most_s=self._most_s, least_us=one.low_us, effort=one.effort,
            seed=self.problem.options.seed, range_at=one.range_at, in_order=one.in_order,
            any_plan=any_plan, is_over=self.is_over,
        )  # fmt: skip
        self.calls += 1
        if found.stages:
            lines: Mapping[Line, Split | None] = lines_of(self.rows, patterns, found.stages, found.order)
            if not count_layers(self.problem):  # else with CP-SAT's layers
                lines = dict.fromkeys(lines)
            self._try_lines(dict.fromkeys(one.rows, lines))
            tried = (self._tried.get((row, *line), np.inf) for row in one.rows for line in lines.items())
            found = replace(found, plan_s=min(tried, default=np.inf))
        return found

    def _join_alike(self) -> None:
        """Queue rows that differ only in ZeRO stage and recomputation together, once there is a plan."""
        most_s = self._most_s
        if self._joined or not np.isfinite(most_s):
            return
        self._joined = True
        if not self._may_join:
            return
        alike, others = dict[tuple[bytes, ...], list[_Waiting]](), list[_Waiting]()
        for one in sorted(self._heap):
            if one.relaxed or one.range_at or one.bound_s >= most_s:
                others.append(one)
                continue
            [row] = one.rows
            alike.setdefault(self._places_of(row), []).append(one)
        self._heap = others + [
            replace(own[0], rows=tuple(row for one in own for row in one.rows)) for own in alike.values()
        ]
        heapq.heapify(self._heap)

    @property
    def _may_join(self) -> bool:
        """Return whether rows that differ only in ZeRO stage and recomputation are bounded together."""
        return not (self.rows.always_recomputes or group_constraints(self.problem))

    def _places_of(self, row: int) -> tuple[bytes, ...]:
        """Return what is equal in rows with the same places for stages."""
        rows = self.rows
        sizes, room = rows.sizes[row, :_SHARED], rows.room[:, row]
        return (sizes.tobytes(), room.tobytes(), rows.allowed[row].tobytes())

    def step_bound_s(self, known_s: float, interrupted: Callable[[], bool]) -> float:
        """Return a lower bound of the simulated step of two or more stages, at most the known step."""
        alike, able = dict[object, list[int]](), np.flatnonzero(self.bounds.step_s < known_s)
        if not interrupted():
            self.bounds = with_nearer_steps(self.bounds, self.rows, able)
        for row in able.tolist():
            look()
            alike.setdefault(self._places_of(row) if self._may_join else row, []).append(row)
        bound = StepBound.of(self.rows, self.bounds, known_s, [tuple(own) for own in alike.values()])
        bound.raise_it(interrupted)
        return bound.bound_s

    def _put_back(self, one: _Waiting, found: RowOutcome) -> None:
        """Queue what CP-SAT leaves under its new bound, or count it as open."""
        left = replace(one, bound_s=max(one.bound_s, found.bound_s))
        if left.bound_s >= self._most_s:
            return
        alternate = bool(found.stages) and found.plan_s > found.objective_s * _NEAR  # groups, for memory
        again: list[_Waiting] = []
        if found.status in ("feasible", "unknown") and one.spread > _PART:
            self._halve(left)
        elif len(one.rows) > 1:
            bounds_s = np.maximum(self.bounds.objective_s[list(one.rows)], left.bound_s).tolist()
            again = [
                replace(left, bound_s=bound_s, rows=(row,), relaxed=None)
                for row, bound_s in zip(one.rows, bounds_s, strict=True)
            ]
        elif alternate and not one.in_order:
            again = [replace(left, in_order=True)]
        elif found.status in ("feasible", "unknown") and one.effort * _MORE <= _MOST_EFFORT:
            again = [replace(left, effort=one.effort * _MORE)]
        elif found.status == "optimal" and not (one.range_at and one.by_sender):  # nearer prices are longer
            fresh = replace(left, relaxed=None, effort=_EFFORT, high_us=np.inf)
            if one.range_at:
                again = [replace(fresh, in_order=True, by_sender=True)]
            else:
                again = [replace(fresh, range_at=at) for at in range(1, len(RANGES) + 1)]
        else:
            self.open_s = min(self.open_s, left.bound_s)
            self._open.update(one.rows)
        for waiting in again:
            heapq.heappush(self._heap, waiting)

    def _try_lines(
        self, lines: Mapping[int, Mapping[Line, Split | None]], most_s: float | None = None
    ) -> int:
        """Split, price and check lines of rows that were not tried yet; return how many rows have a plan.

        ``most_s``: those of larger closed forms are not priced; without it, those far behind the best plan.
        """
        most_s = self.known_s * _WORSE if most_s is None else most_s
        configs = dict[Configuration, tuple[int, Line, Split | None]]()
        for row, some in lines.items():
            tables = LineTables(self.rows, row)
            for line, own in some.items():
                look()
                if (row, line, own) in self._tried or not self._stands(row, line):
                    continue
                table = LineSplit(tables, line)
                splits = [one for one in (table.best(), own) if one is not None]
                able = [one for one in splits if table.closed_form_s(one) <= most_s]
                self._tried[row, line, own] = np.inf
                configs |= dict.fromkeys(self._configurations(row, line, table, able), (row, line, own))
        for config, value in self.price(list(configs)).items():
            self._tried[configs[config]] = min(self._tried[configs[config]], value)
        return len({row for config, (row, *_) in configs.items() if config in self.found})

    def _stands(self, row: int, line: Line) -> bool:
        """Return whether so many stages are legal, with one tensor size where that is asked."""
        legal = len(line) <= self.rows.layout.num_layers and self.rows.allowed[row, len(line)]
        return bool(legal) and self.rows.are_alike(line)

    def _neighbours(self, plan: MixedPlan) -> Iterator[Configuration]:
        """Yield neighbours of a plan that may be faster than it."""
        (row, line), split = self._places[plan.config], plan.config.stage_layers
        tables = LineTables(self.rows, row)
        for changed, splits in neighbours_of(self.rows, row, line, split).items():
            look()
            yield from self._faster(tables, changed, splits, plan.step_s)

    def _whole_of_rows(self, step_s: float) -> Iterator[Configuration]:
        """Yield whole groups that may be faster, of the rows with the least bounds of the step."""
        order, rows = np.argsort(self.bounds.step_s, kind="stable"), dict[bytes, int]()
        for row in order[self.bounds.step_s[order] < step_s].tolist():
            rows.setdefault(self.rows.sizes[row, :_SHARED].tobytes(), row)
        for row in list(rows.values())[:_STARTS]:
            look()
            tables = LineTables(self.rows, row)
            for line in whole_groups(self.rows, row):
                yield from self._faster(tables, line, [], step_s)

    def _faster(
        self, tables: LineTables, line: Line, splits: Sequence[Split], step_s: float
    ) -> Iterator[Configuration]:
        """Yield some splits, and that of least closed form, if they may simulate below a step."""
        row = tables.row
        if not self._stands(row, line):
            return
        table, limit_s = LineSplit(tables, line), step_s - float(self.rows.fixed_s[list(line), row].max())
        best = table.best(limit_s)
        near = table.quicker([*splits, *([] if best is None else [best])], limit_s)
        yield from self._configurations(row, line, table, near[:_MOST_SPLITS])

    def _configurations(
        self, row: int, line: Line, table: LineSplit, splits: Iterable[Split | None]
    ) -> list[Configuration]:
        """Return the splits of a line that fit and keep the constraints on node groups."""
        found = list[Configuration]()
        for split in dict.fromkeys(splits):
            if split is not None and table.holds(split):
                config = configuration_of(self.rows, row, line, split, table.replays_of(split))
                if not any(group_faults(self.problem, config)):
                    self._places[config] = row, line
                    found.append(config)
        return found

    def price(self, configs: Sequence[Configuration]) -> dict[Configuration, float]:
        """Price configurations, and keep those that fit and keep every rule; return their closed forms."""
        fresh = [one for one in dict.fromkeys(configs) if one not in self.found and one not in self.refused]
        able = {one: self.found[one].objective_s for one in configs if one in self.found}
        for start in range(0, len(fresh), _TOGETHER):
            look()
            able |= self._priced(fresh[start : start + _TOGETHER])
        return able

    def _priced(self, fresh: Sequence[Configuration]) -> dict[Configuration, float]:
        faults, able = rule_faults(self.problem, fresh), dict[Configuration, float]()
        right = [config for config, own in zip(fresh, faults, strict=True) if not own]
        for one in evaluate(self.problem, self.profile, right):
            if max(one.short_bytes()) > 0.0:
                continue
            layout, step_s = layout_of(one.config, meshes=self.meshes), one.classes[0].step_s()
            plan = MixedPlan(config=one.config, objective_s=one.objective_s, step_s=step_s, layout=layout)
            able[one.config], self.found[one.config] = one.objective_s, plan
            if self.best is None or plan.objective_s < self.best.objective_s:
                self.best = plan
        self.refused.update(config for config in fresh if config not in able)
        return able

    def _alone(self) -> list[Configuration]:
        """Return the configurations of one stage that take least, of every option."""
        rows, found = self.rows, list[tuple[float, Configuration]]()
        columns, taken = columns_of(self.problem, rows.sizes, 1), rows.gpus_of_stage
        gpus = np.array([group.num_gpus for group in rows.fleet.groups])[rows.group_of, None]
        able = rows.alone & (taken <= gpus)
        legal, listed = list[IntArray](), max(self.problem.options.top_k, _ALONE)
        for at, option in enumerate(rows.options):
            look()
            here = np.flatnonzero(able[at])
            legal.append(here[keep_alone(rows.fleet, columns.take(here), option)])
        priced = rows_of_options(rows.fleet, rows.options, [columns.take(here) for here in legal])
        for at, (here, own) in enumerate(zip(legal, priced, strict=True)):
            look()
            stages = own.stages(np.full((len(here), 1), rows.layout.num_layers))
            fits = stages.peak_memory_bytes[:, 0] <= own.budget_bytes
            steps = np.where(fits, objective_s(own.prices, own.columns, stages), np.inf)
            self.alone_s = min(self.alone_s, float(steps.min(initial=np.inf)))
            for place in np.argsort(steps, kind="stable")[:listed].tolist():
                if np.isfinite(steps[place]):
                    split = (rows.layout.num_layers,)
                    config = configuration_of(rows, int(here[place]), (at,), split)
                    found.append((float(steps[place]), config))
        return [config for _, config in sorted(found, key=lambda one: one[0])[: listed * 2]]


def configuration_of(
    rows: MixedRows, row: int, line: Line, split: Split, replayed: Sequence[int] = ()
) -> Configuration:
    """Return a row's stages on the options of a line as a configuration.

    ``replayed``: recomputed layers of each stage; (): all alike.
    """
    options = [rows.options[at] for at in line]
    largest = max(one.tensor_parallel_size for one in options)
    columns = with_tensor_parallel(rows.columns(row, len(line), by_stage=bool(replayed)), largest)
    replicas = int(rows.sizes[row, 0] * rows.sizes[row, 1])
    stages = tuple(stage_group_of(rows.fleet, one, replicas) for one in options)
    return replace(columns.configuration(0, split, replayed), stage_groups=stages)


def stage_group_of(fleet: NodeGroups, option: StageOption, replicas: int) -> StageGroup:
    """Return where a stage stands with all its replicas, those of the sequence's slices counted."""
    gpus = option.tensor_parallel_size * replicas
    return StageGroup(
        group=fleet.names[option.group],
        num_gpus=gpus,
        num_nodes=gpus / fleet.groups[option.group].gpus_per_node,
        tensor_parallel_size=option.tensor_parallel_size,
    )


def layout_of(config: Configuration, *, meshes: bool) -> Layout:
    """Return what tells plans apart: everything but recomputation and the split, or the mesh alone."""
    sizes = (config.context_parallel_size, config.expert_parallel_size, config.data_parallel_size)
    stages = sorted((one.group, one.tensor_parallel_size) for one in config.stage_groups)
    own = () if meshes else (config.zero_stage, config.micro_batch_size)
    return (*sizes, *own, *stages)
