"""Best first over the rows of a mixed cluster: bounds, a first plan, CP-SAT, and what is proved.

A row waits under the bound of ``bounds``. A first plan comes from whole groups, split exactly. Then the
row of least bound is given to CP-SAT (``model``), for at most what the best plan leaves and with ever
more effort; its stages are put in lines, split exactly, priced and checked. A row is settled when its
bound is within GAP of the best plan, so that a finished search proves: no plan's closed form is less by
more than GAP. Plans are ranked by their simulated step among all that were priced.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.check import group_faults, violations_of_all
from meshwright.solver.clock import OutOfTime, look, running
from meshwright.solver.configuration import Configuration, StageGroup
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.pipelines import NodeGroups
from meshwright.solver.cost.stages import objective_s
from meshwright.solver.problem import Problem
from meshwright.solver.search.mixed.bounds import RowBounds, bounds_of
from meshwright.solver.search.mixed.limits import count_layers, keep_alone, limited
from meshwright.solver.search.mixed.lines import (
    Line,
    LineSplit,
    Split,
    chosen_groups,
    lines_of,
    whole_groups,
)
from meshwright.solver.search.mixed.model import Solved, solve
from meshwright.solver.search.mixed.neighbours import neighbours_of
from meshwright.solver.search.mixed.patterns import Patterns, patterns_of, patterns_of_any
from meshwright.solver.search.mixed.rows import (
    RANGES,
    MixedRows,
    StageOption,
    are_legal,
    columns_of,
    on_all,
    with_tensor_parallel,
)
from meshwright.solver.space.request_rules import group_constraints

_LATER = 1.03  # rows of many patterns wait for quickly solved ones of about their bound
GAP = 0.01  # relative, of the closed form: what the search proves
_FIRST_ROWS = 48  # rows whose whole groups are tried for a first plan
_ENOUGH_FIRST = 6  # of them with a plan
_BANDS = (1.04, 1.1, 1.2, 1.4, 2.0)  # of the slowest stage, over its least, until there is a plan
_EFFORT, _MORE = 0.3, 3.0  # CP-SAT's deterministic time for a row, and how it grows
_MOST_EFFORT = 3.0
_SHARED = 4  # the first sizes of a row (cp, dp, ep, micro-batch), equal in rows solved together
_NEAR = 1.003  # plans' closed forms are as near to the model's, unless groups alternate there
_WHOLE_OF_PLAN = 3  # rows whose whole groups are tried for each plan behind the first
_NEAREST = 2  # layouts of shortest steps that neighbours are sought of
_MOST_NEIGHBOURS = 256  # of plans, priced in one search
_MOST_SPLITS = 8  # of one line
_TOGETHER = 32  # configurations priced between two looks at the clock
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
    """A row to be given to CP-SAT, under the bound that is known of it."""

    rank_s: float  # the bound, and more where stages choose how many layers they recompute
    bound_s: float
    row: int
    effort: float = _EFFORT
    tried: int = 0  # bands of the slowest stage
    range_at: int = 0
    in_order: bool = False
    by_levels: bool = False  # numbers of recomputed layers, at first
    alike: tuple[_Waiting, ...] = field(default=(), compare=False)  # several rows, asked about together

    @property
    def rows(self) -> list[int]:
        """Return every row that is asked about."""
        return [one.row for one in self.alike] or [self.row]

    def bounded(self, bound_s: float) -> _Waiting:
        """Return the row under a new bound."""
        return replace(self, rank_s=self.rank_s * bound_s / self.bound_s, bound_s=bound_s)


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
            _Waiting(
                rank_s=float(bound) * (_LATER if rows.by_stage[row] else 1.0), bound_s=float(bound),
                row=row, by_levels=bool(rows.by_stage[row]),
            )
            for row, bound in enumerate(bounds.objective_s)
            if np.isfinite(bound)
        ]  # fmt: skip
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
        return min(self.open_s, self.alone_s, self._waiting_s, self.known_s * (1.0 - GAP))

    @property
    def _waiting_s(self) -> float:
        return min((one.bound_s for one in self._heap), default=np.inf)

    @property
    def settled(self) -> int:
        """Return the rows that cannot change what is proved."""
        most_s = self.known_s * (1.0 - GAP)
        waiting = {row for one in self._heap if one.bound_s < most_s for row in one.rows}
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
        having = 0
        for one in heapq.nsmallest(_FIRST_ROWS, self._heap):
            if interrupted(self) or having >= _ENOUGH_FIRST:
                return
            having += self._try_lines(one.row, dict.fromkeys(whole_groups(self.rows, one.row)))

    def run(self, interrupted: Callable[[MixedFrontier], bool]) -> None:
        """Solve rows until the bound is within GAP of the best plan, or ``interrupted`` says stop."""
        if not self.calls:
            self._join_alike()
        try:
            while not interrupted(self):
                if self._waiting_s >= self.known_s * (1.0 - GAP):
                    left_s = min(self.open_s, self.alone_s)
                    proved = left_s >= self.known_s * (1.0 - GAP)
                    self.finished = self.rows.whole and self.knows_alone and proved
                    return
                one = heapq.heappop(self._heap)
                if one.bound_s >= self.known_s * (1.0 - GAP):
                    continue
                try:
                    (self._solve_alike if one.alike else self._solve)(one)
                except OutOfTime:
                    heapq.heappush(self._heap, one)
                    raise
        except OutOfTime:
            return

    def fill(self, number: int, interrupted: Callable[[MixedFrontier], bool]) -> None:
        """Find the best of some layouts, from rows in the order of their bounds; they are not proved."""
        order = np.argsort(self.bounds.objective_s, kind="stable")
        order = order[np.isfinite(self.bounds.objective_s[order])]
        for lines, most in ((whole_groups, _WHOLE_OF_PLAN * number), (chosen_groups, len(order))):
            for row in order[:most].tolist():
                ranked = self.ranked()[:number]
                full = len(ranked) >= number
                beyond = full and self.bounds.objective_s[row] > ranked[-1].objective_s
                if beyond or (full and lines is chosen_groups) or interrupted(self):
                    break
                self._try_lines(row, dict.fromkeys(lines(self.rows, row)))

    def improve(self, interrupted: Callable[[MixedFrontier], bool]) -> None:
        """Price neighbours of the plans with the shortest steps, and theirs, up to a counted limit."""
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

    def _solve(self, one: _Waiting) -> None:
        """Give a row to CP-SAT, and put back what it leaves open."""
        look()
        rows, known_s = self.rows, self.known_s
        slowest_s, m = float(self.bounds.slowest_s[one.row]), int(rows.num_microbatches[one.row])
        most_s = known_s * (1.0 - GAP)
        narrow = not np.isfinite(known_s) and one.tried < len(_BANDS)
        most_us = (most_s - float(self.bounds.others_s[one.row])) * 1e6
        if narrow:
            most_us = min(most_us, slowest_s * _BANDS[one.tried] * max(m - 1, 1) * 1e6 + 1e5)
        patterns = patterns_of(rows, one.row, most_us, one.range_at, by_levels=one.by_levels)
        found = solve(
            rows, one.row, patterns, most_s=most_s, slowest_s=slowest_s, effort=one.effort,
            seed=self.problem.options.seed, range_at=one.range_at,
            in_order=one.in_order, is_over=self.is_over,
        )  # fmt: skip
        self.calls += 1
        least_s = np.inf
        if found.stages:
            least_s = self._least_of(one.row, self._lines_of(patterns, found))
        if narrow:
            heapq.heappush(self._heap, replace(one, tried=one.tried + 1))
        else:
            self._put_back(one, found, least_s)

    def _join_alike(self) -> None:
        """Let rows that differ only in ZeRO stage and recomputation wait together."""
        rows, most_s = self.rows, self.known_s * (1.0 - GAP)
        if not np.isfinite(most_s) or rows.always_recomputes or group_constraints(self.problem):
            return
        alike = dict[tuple[bytes, ...], list[_Waiting]]()
        waiting = [one for joined in self._heap for one in joined.alike or (joined,)]
        for one in sorted(waiting):
            if one.bound_s < most_s:
                sizes, room = rows.sizes[one.row, :_SHARED], rows.room[:, one.row]
                key = (sizes.tobytes(), room.tobytes(), rows.allowed[one.row].tobytes())
                alike.setdefault(key, []).append(one)
        self._heap = [
            replace(own[0], bound_s=min(one.bound_s for one in own), alike=tuple(own) if own[1:] else ())
            for own in alike.values()
        ] + [one for one in waiting if one.bound_s >= most_s]
        heapq.heapify(self._heap)

    def _solve_alike(self, together: _Waiting) -> None:
        """Give rows to CP-SAT as if each stage chose among them; rows that stay open wait alone."""
        look()
        rows, most_s = self.rows, self.known_s * (1.0 - GAP)
        own = [one for one in together.alike if one.bound_s < most_s]
        numbers = [one.row for one in own]
        patterns = patterns_of_any(
            [
                patterns_of(
                    rows, one.row, (most_s - float(self.bounds.others_s[one.row])) * 1e6,
                    by_levels=one.by_levels,
                )
                for one in own
            ]
        )  # fmt: skip
        found = solve(
            rows, numbers[0], patterns, most_s=most_s,
            slowest_s=float(self.bounds.slowest_s[numbers].min()),
            effort=_EFFORT * _MORE, seed=self.problem.options.seed, alike=numbers, is_over=self.is_over,
        )  # fmt: skip
        self.calls += 1
        if found.stages:
            lines = self._lines_of(patterns, found)
            for row in numbers:
                self._try_lines(row, lines)
        if found.status == "infeasible":
            return
        for one in own:
            left = one.bounded(max(one.bound_s, found.bound_s))
            if left.bound_s < self.known_s * (1.0 - GAP):
                heapq.heappush(self._heap, left)

    def _put_back(self, one: _Waiting, found: Solved, least_s: float) -> None:
        """Let what is left of a row wait again under its new bound, or count it as open.

        ``least_s``: the closed form of the best plan that its stages make.
        """
        bound_s = max(one.bound_s, found.bound_s)
        if found.status == "infeasible" or bound_s >= self.known_s * (1.0 - GAP):
            return
        left = one.bounded(bound_s)
        alternate = bool(found.stages) and least_s > found.objective_s * _NEAR  # groups, for their memory
        if one.by_levels and found.status != "unknown":
            heapq.heappush(self._heap, replace(left, by_levels=False, effort=_EFFORT * _MORE))
        elif alternate and not one.in_order:
            heapq.heappush(self._heap, replace(left, in_order=True))
        elif found.status in ("feasible", "unknown") and one.effort * _MORE <= _MOST_EFFORT:
            heapq.heappush(self._heap, replace(left, effort=one.effort * _MORE))
        elif found.status == "optimal" and not one.range_at:  # prices by the number of stages are nearer
            for at in range(1, len(RANGES) + 1):
                heapq.heappush(self._heap, replace(left, range_at=at, effort=_EFFORT))
        else:
            self.open_s = min(self.open_s, bound_s)
            self._open.add(one.row)

    def _lines_of(self, patterns: Patterns, found: Solved) -> Mapping[Line, Split | None]:
        """Return lines of the stages that CP-SAT chose, with its layers where a request counts them."""
        lines = lines_of(self.rows, patterns, found.stages, found.order)
        return lines if count_layers(self.problem) else dict.fromkeys(lines)

    def _least_of(self, row: int, lines: Mapping[Line, Split | None]) -> float:
        """Try lines of a row; return the least closed form of their plans, +inf where there is none.

        ``lines``: with a split that is tried next to the best one.
        """
        self._try_lines(row, lines)
        return min((self._tried.get((row, *one), np.inf) for one in lines.items()), default=np.inf)

    def _try_lines(self, row: int, lines: Mapping[Line, Split | None]) -> bool:
        """Split, price and check lines of a row that were not tried yet; return whether one is a plan."""
        configs = dict[Configuration, tuple[Line, Split | None]]()
        for line, own in lines.items():
            look()
            if (row, line, own) in self._tried or not self.rows.allowed[row, len(line)]:
                continue
            if not self.rows.are_alike(line):
                continue
            self._tried[row, line, own] = np.inf
            table = LineSplit(self.rows, row, line)
            found = self._configurations(row, line, table, (table.best(), own))
            configs |= dict.fromkeys(found, (line, own))
        for config, value in self.price(list(configs)).items():
            one = (row, *configs[config])
            self._tried[one] = min(self._tried[one], value)
        return any(config in self.found for config in configs)

    def _neighbours(self, plan: MixedPlan) -> Iterator[Configuration]:
        """Yield neighbours of a plan that may be faster than it."""
        (row, line), split = self._places[plan.config], plan.config.stage_layers
        for changed, splits in neighbours_of(self.rows, row, line, split).items():
            look()
            if not self.rows.allowed[row, len(changed)] or not self.rows.are_alike(changed):
                continue
            table = LineSplit(self.rows, row, changed)
            limit_s = plan.step_s - float(self.rows.fixed_s[list(changed), row].max())
            best = None if changed == line else table.best()
            near = table.quicker([*splits, *([] if best is None else [best])], limit_s)
            yield from self._configurations(row, changed, table, near[:_MOST_SPLITS])

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
        evaluations = evaluate(self.problem, self.profile, fresh)
        able, kept = dict[Configuration, float](), list[MixedPlan]()
        for one in evaluations:
            if max(one.short_bytes()) > 0.0:
                self.refused.add(one.config)
                continue
            able[one.config] = one.objective_s
            layout, step_s = layout_of(one.config, meshes=self.meshes), one.classes[0].step_s()
            kept.append(
                MixedPlan(config=one.config, objective_s=one.objective_s, step_s=step_s, layout=layout)
            )
        faults = violations_of_all(self.problem, self.profile, [one.config for one in kept])
        for plan, own in zip(kept, faults, strict=True):
            if own:
                self.refused.add(plan.config)
                del able[plan.config]
                continue
            self.found[plan.config] = plan
            if self.best is None or plan.objective_s < self.best.objective_s:
                self.best = plan
        return able

    @property
    def _listed(self) -> int:
        return max(self.problem.options.top_k, _ALONE)

    def _alone(self) -> list[Configuration]:
        """Return the configurations of one stage that take least, of every option."""
        rows, found = self.rows, list[tuple[float, Configuration]]()
        legal = np.flatnonzero(rows.allowed[:, 1])
        if not len(legal):
            return []
        columns = columns_of(self.problem, rows.sizes[legal], 1)
        [priced] = on_all(rows.fleet, [columns], rows.options)
        for option, own in zip(rows.options, priced, strict=True):
            look()
            gpus = rows.fleet.groups[option.group].num_gpus // option.tensor_parallel_size
            needed = columns.context_parallel_size * columns.data_parallel_size
            split = np.full((len(legal), 1), rows.layout.num_layers)
            stages = own.stages(split)
            fits = (stages.peak_memory_bytes[:, 0] <= own.budget_bytes) & (needed <= gpus)
            fits &= are_legal(rows.fleet, columns, option) & keep_alone(rows.fleet, columns, option)
            steps = np.where(fits, objective_s(own.prices, own.columns, stages), np.inf)
            self.alone_s = min(self.alone_s, float(steps.min()))
            for at in np.argsort(steps, kind="stable")[: self._listed].tolist():
                if np.isfinite(steps[at]):
                    row, line = int(legal[at]), (rows.options.index(option),)
                    config = configuration_of(rows, row, line, (rows.layout.num_layers,))
                    found.append((float(steps[at]), config))
        return [config for _, config in sorted(found, key=lambda one: one[0])[: self._listed * 2]]


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
