"""CP-SAT's model of one row of a mixed cluster: how many stages of which pattern.

Variables
  n[p]       stages of pattern p = (option o, layers of each kind, recomputed layers, role)
             roles: first, last, the first stage on a further group ("entry"), both at once ("last
             entry"), any other ("middle")
  level[j]   the slowest stage takes more than v_j;  M = v_0 + sum_j (v_j - v_{j-1}) level[j]
Constraints
  (1) every layer of each kind is held once          sum_p layers_p n[p] = L, kind by kind
  (2) no group gives more GPUs than it has           sum_p tp_p cp dp n[p] <= GPUs, for each group
  (3) a pipeline has two ends                        one first stage, one last; p stages, p being legal
  (4) a group's stages are neighbours                one of them begins it: first, entry or last entry;
                                                     others stand there only if one begins it
  (5) memory                                         a stage at place k from the end keeps min(m, k) micro-
      batches in flight, so pattern p fits at places up to deepest(p). By Hall's theorem an order exists if
      and only if for each k at most k stages have deepest <= k; the last is at place 1, the first at p
  (6) the slowest stage                              n[p] > 0 needs level[j] where slowest(p) > v_j
  (7) (on request) groups stand one after another    (5) within each group's run, behind the stages of the
      groups that stand nearer to the end, with its entry in front
  (8) a prescribed split                             as many stages of l layers as the request names
  (9) a constraint on all GPUs                       all stages have one tensor-parallel size;
      ends share a matrix, and are split alike       the first and the last have one
  (10) a request for full recomputation              some stage recomputes a layer
  (11) constraints on node groups                    in terms of n[p], as ``limits`` writes them
  (12) (with (7), entry patterns by size) what a stage receives   the run before an entry ends with a
      stage that sends no more than the entry is priced for, at the run's last place
Objective
  minimise sum_p time_p n[p] + M  <=  sum_s t_s + max_s ((m - 1) t_s + tail_s): a bound on every plan's
Equal stages, equal nodes and the order of the groups are no symmetry: there are neither places nor nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

from meshwright.profiles.errors import InternalError
from meshwright.solver.clock import look
from meshwright.solver.configuration import IntArray
from meshwright.solver.search.cp_sat import solved_until, solver_within, without_pandas
from meshwright.solver.search.mixed.limits import GroupCounts, GroupLimits, sizes_in
from meshwright.solver.search.mixed.patterns import (
    ANY_SIZE,
    ANYWHERE,
    ENDS,
    ENTERS,
    ROLES,
    US,
    Patterns,
    behind_others,
    most_of,
)
from meshwright.solver.search.mixed.rows import MixedRows
from meshwright.solver.space.request_rules import group_constraints

_MOST_LEVELS = 400
Expression: TypeAlias = Any  # a linear expression of OR-Tools, which this module loads when it is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOutcome:
    """What CP-SAT found for one row: its objective and bound, seconds, the fixed time counted."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    stages: tuple[int, ...] = ()  # a pattern of each
    order: tuple[int, ...] = ()  # of the groups, from the first stage to the last, where (7) was asked for
    objective_s: float = np.inf
    bound_s: float = 0.0  # no plan within the asked time is below
    plan_s: float = np.inf  # the least closed form of the plans that were made of the stages


def fixed_s_of(rows: MixedRows, numbers: Sequence[int]) -> float:
    """Return the least fixed time that a plan of some rows has."""
    some = list(numbers)
    return float(np.where(rows.room[:, some] > 0, rows.fixed_s[:, some], np.inf).min())


def solve(
    rows: MixedRows,
    numbers: Sequence[int],
    patterns: Patterns,
    *,
    most_s: float,
    least_us: int,
    effort: float,
    seed: int,
    range_at: int = 0,
    in_order: bool = False,
    any_plan: bool = False,
    is_over: Callable[[], bool] = lambda: False,
) -> RowOutcome:
    """Find the stages of least closed form of one row, or of rows that have the same places for stages.

    Args:
        rows: the priced rows.
        numbers: the one that is asked about, or several with the same sizes, room and numbers of stages.
        patterns: those of any of them.
        most_s: plans whose closed form is larger are not sought; +inf: any.
        least_us: no plan that is sought has a quicker slowest stage, with all its micro-batches.
        effort: CP-SAT's deterministic time.
        seed: of its random choices.
        range_at: 0, or one of ``RANGES`` counted from 1, for which the patterns are priced.
        in_order: with (7).
        any_plan: the first one will do, and its slowest stage counts as ``least_us``.
        is_over: whether to stop; asked several times a second.

    Raises:
        InternalError: CP-SAT refuses the model (a bug).
    """
    if not len(patterns):
        return RowOutcome(status="infeasible", bound_s=np.inf)
    api, fixed_s = without_pandas(), fixed_s_of(rows, numbers)
    model = _Model(api, rows, numbers[0], patterns)
    goal = model.constrain(range_at, in_order=in_order, least_us=least_us, any_plan=any_plan)
    if np.isfinite(most_s):
        model.of.add(goal <= int((most_s - fixed_s) * US))
    model.of.minimize(goal)
    solver = _solver(api, effort, seed, any_plan=any_plan)
    verdict = solved_until(solver, model.of, is_over)
    if verdict == api.MODEL_INVALID:
        fault, *_ = model.of.validate().splitlines()
        raise InternalError(f"CP-SAT refuses the model of a row: {fault}")
    status = {
        api.OPTIMAL: "optimal", api.FEASIBLE: "feasible", api.INFEASIBLE: "infeasible",
    }.get(verdict, "unknown")  # fmt: skip
    if status == "infeasible":
        return RowOutcome(status="infeasible", bound_s=most_s)
    bound_s = max(float(solver.best_objective_bound), 0.0) / US + fixed_s
    if status == "unknown":
        return RowOutcome(status="unknown", bound_s=min(bound_s, most_s))
    return RowOutcome(
        status=status,  # type: ignore[arg-type]
        stages=tuple(at for at, count in enumerate(model.count) for _ in range(solver.value(count))),
        order=model.order(solver),
        objective_s=float(solver.objective_value) / US + fixed_s,
        bound_s=bound_s,
    )


def _solver(api: ModuleType, effort: float, seed: int, *, any_plan: bool) -> Expression:
    solver = solver_within(api, effort, seed)
    parameters = solver.parameters
    parameters.cp_model_probing_level, parameters.linearization_level = 0, 2
    parameters.stop_after_first_solution = any_plan
    parameters.cut_level = 0  # rows are refuted without cuts, in two thirds of the time
    return solver


class _Model:
    """The model under construction; each method adds the constraints that its name says."""

    def __init__(self, api: ModuleType, rows: MixedRows, row: int, patterns: Patterns) -> None:
        self.of = api.CpModel()
        self.api, self.rows, self.row, self.patterns = api, rows, row, patterns
        self.group = rows.group_of[patterns.option]
        self.layers = patterns.counts.sum(axis=1)
        self.sent = rows.sent[patterns.option, row]
        self.most = most_of(rows, row, patterns)
        self.count = [self.of.new_int_var(0, int(each), "") for each in self.most]
        self.used = [int(at) for at in np.unique(self.group)]
        self.place = dict[int, Expression]()  # of each group by (7), the last nearest to the end

    def _sum(self, index: IntArray, weights: IntArray | None = None) -> Expression:
        look()
        counts = [self.count[at] for at in index.tolist()]
        linear = self.api.LinearExpr
        return (
            linear.sum(counts) if weights is None else linear.weighted_sum(counts, weights[index].tolist())
        )

    def _every(self) -> IntArray:
        return np.arange(len(self.patterns))

    def constrain(self, range_at: int, *, in_order: bool, least_us: int, any_plan: bool) -> Expression:
        """Add all constraints, arguments as ``solve``, and return the objective.

        Their order is CP-SAT's order of variables, on which the plan among equal ones depends.
        """
        self.hold_the_layers()
        self.stand_on_groups()
        self.have_ends(range_at)
        self.fit_in_memory()
        goal = self.sum_of_times() + (least_us if any_plan else self.slowest(least_us))
        if in_order:
            self.stand_in_order()
        self.keep_the_split()
        self.have_one_size()
        self.recompute_some()
        self.keep_group_constraints()
        return goal

    def hold_the_layers(self) -> None:
        """(1)."""
        for kind, total in enumerate(self.rows.layout.cumulative[-1].tolist()):
            self.of.add(self._sum(self._every(), self.patterns.counts[:, kind]) == total)

    def stand_on_groups(self) -> None:
        """(2) and (4)."""
        gpus = self.rows.gpus_of_stage[self.patterns.option, self.row]
        role, begins = self.patterns.role, self.patterns.has_role("entry", "first")
        alone = self.patterns.has_role("last entry")
        for group in self.used:
            here = np.flatnonzero(self.group == group)
            self.of.add(self._sum(here, gpus) <= self.rows.fleet.groups[group].num_gpus)
            opened = self._sum(np.intersect1d(here, begins))
            self.of.add(opened + self._sum(np.intersect1d(here, alone)) <= 1)
            others = here[np.isin(role[here], [ROLES.index("middle"), ROLES.index("last")])]
            for at in others.tolist():
                look()
                self.of.add(self.count[at] <= int(self.most[at]) * opened)

    def have_ends(self, range_at: int) -> None:
        """(3)."""
        self.of.add(self._sum(self.patterns.has_role("first")) == 1)
        self.of.add(self._sum(self.patterns.has_role(*ENDS)) == 1)
        legal = self.rows.legal_stages(self.row, range_at)
        domain = self.api.Domain.from_values(legal.tolist())
        self.of.add_linear_expression_in_domain(sum(self.count), domain)

    def fit_in_memory(self) -> None:
        """(5)."""
        deepest, between = self.patterns.deepest, self.patterns.has_role("middle", "entry")
        for place in np.unique(deepest[deepest < ANYWHERE]).tolist():
            tight = between[deepest[between] <= place]
            if len(tight):  # the last stage is one of the places up to this one
                self.of.add(self._sum(tight) <= place - 1)
        for at in self.patterns.has_role("first").tolist():
            look()
            if deepest[at] < ANYWHERE:
                self.of.add(sum(self.count) <= int(deepest[at])).only_enforce_if(self.count[at])

    def sum_of_times(self) -> Expression:
        """Return the sum of all stages' times."""
        return self._sum(self._every(), self.patterns.time_us)

    def slowest(self, least_us: int) -> Expression:
        """Return M, by (6)."""
        own = np.maximum(self.patterns.slowest_us, least_us)
        values = np.unique(own)
        values = values[:: max(1, len(values) // _MOST_LEVELS)]
        levels = [self.of.new_bool_var("") for _ in values[1:]]
        for above, below in zip(levels[1:], levels, strict=False):
            self.of.add_implication(above, below)
        for at, reached in enumerate((np.searchsorted(values, own, side="right") - 1).tolist()):
            look()
            if reached and self.most[at] == 1:
                self.of.add_implication(self.count[at], levels[reached - 1])
            elif reached:
                self.of.add(self.count[at] <= int(self.most[at]) * levels[reached - 1])
        steps = np.diff(values).tolist()
        return int(values[0]) + sum(step * level for step, level in zip(steps, levels, strict=True))

    def keep_the_split(self) -> None:
        """(8)."""
        asked = self.rows.fleet.problem.options.stage_layers
        for layers, number in Counter(count for count in asked if count).items():
            self.of.add(self._sum(np.flatnonzero(self.layers == layers)) >= number)

    def have_one_size(self) -> None:
        """(9)."""
        if self.rows.is_of_one_size:
            alike = np.arange(len(self.patterns.option))
        elif self.rows.fleet.problem.places_ends_alike:
            alike = self.patterns.has_role("first", *ENDS)
        else:
            return
        tensor = np.array([one.tensor_parallel_size for one in self.rows.options])[self.patterns.option]
        chosen = {size: self.of.new_bool_var("") for size in np.unique(tensor[alike]).tolist()}
        self.of.add(sum(chosen.values()) == 1)
        for at in alike.tolist():
            self.of.add(self.count[at] <= int(self.most[at]) * chosen[int(tensor[at])])

    def recompute_some(self) -> None:
        """(10)."""
        if self.rows.by_stage[self.row] and self.rows.always_recomputes:
            self.of.add(self._sum(np.flatnonzero(self.patterns.replayed > 0)) >= 1)

    def keep_group_constraints(self) -> None:
        """(11)."""
        if not group_constraints(self.rows.fleet.problem):
            return
        gpus = self.rows.gpus_of_stage[self.patterns.option, self.row]
        counts = dict[int, GroupCounts]()
        for group in self.used:
            here = np.flatnonzero(self.group == group)
            counts[group] = GroupCounts(
                gpus=self._sum(here, gpus),
                stages=self._sum(here),
                layers=self._sum(here, self.layers),
                first=self._sum(np.intersect1d(here, self.patterns.has_role("first"))),
                last=self._sum(np.intersect1d(here, self.patterns.has_role(*ENDS))),
            )
        by_option = {
            at: [self.count[one] for one in np.flatnonzero(self.patterns.option == at).tolist()]
            for at in np.unique(self.patterns.option).tolist()
        }
        has_size = sizes_in(self.of, self.rows, by_option)
        GroupLimits(self.api, self.of, self.rows, self.row).add(counts, sum(self.count), has_size)

    def stand_in_order(self) -> None:
        """(7)."""
        stages, place = int(self.rows.most_stages[self.row]), self.place
        here = {group: np.flatnonzero(self.group == group) for group in self.used}
        stands = {group: self.of.new_bool_var("") for group in self.used}
        for group in self.used:
            place[group] = self.of.new_int_var(0, len(self.used) - 1, "")
            self.of.add(self._sum(here[group]) == 0).only_enforce_if(~stands[group])
        self.of.add_all_different(list(place.values()))
        nearer, behind = dict[tuple[int, int], Any](), {group: list[Any]() for group in self.used}
        for at, one in enumerate(self.used):
            for other in self.used[at + 1 :]:
                literal = self.of.new_bool_var("")
                self.of.add(place[other] > place[one]).only_enforce_if(literal)
                self.of.add(place[one] > place[other]).only_enforce_if(~literal)
                nearer[one, other], nearer[other, one] = literal, ~literal
        for (one, other), other_is_nearer in nearer.items():
            number = self.of.new_int_var(0, stages, "")
            self.of.add(number >= self._sum(here[other])).only_enforce_if(other_is_nearer)
            behind[one].append(number)
            for at in np.intersect1d(here[one], self.patterns.has_role(*ENDS)).tolist():
                self.of.add_bool_or(~self.count[at], ~stands[other], ~other_is_nearer)
            for at in np.intersect1d(here[one], self.patterns.has_role("first")).tolist():
                self.of.add_bool_or(~self.count[at], ~stands[other], other_is_nearer)
        sends = self._follow(here, nearer) if (self.patterns.behind < ANY_SIZE).any() else {}
        for group in self.used:
            self._fit_behind(here[group], sum(behind[group]), sends.get(group, {}))

    def _follow(
        self, here: dict[int, IntArray], nearer: dict[tuple[int, int], Expression]
    ) -> dict[int, dict[int, Expression]]:
        """(12): choose the group before each; return which ends have to send how much at most."""
        begins = self.patterns.has_role("first", "entry", "last entry")
        entries, ends = self.patterns.has_role(*ENTERS), self.patterns.has_role(*ENDS)
        follows = {pair: self.of.new_bool_var("") for pair in nearer}  # the second group directly
        for (one, other), literal in follows.items():
            self.of.add_implication(literal, nearer[one, other])
        for group in self.used:
            before = [literal for (_, other), literal in follows.items() if other == group]
            after = [literal for (one, _), literal in follows.items() if one == group]
            own = here[group]
            self.of.add(sum(before) == self._sum(np.intersect1d(own, entries)))
            begun = self._sum(np.intersect1d(own, begins)) - self._sum(np.intersect1d(own, ends))
            self.of.add(sum(after) == begun)
        sends = dict[int, dict[int, Any]]()
        for entered, senders in behind_others(self.rows, self.row, self.patterns):
            group, size = int(self.group[entered[0]]), int(self.patterns.behind[entered].max())
            for (one, other), literal in follows.items():
                if other == group:
                    by_size = sends.setdefault(one, {})
                    if size not in by_size:
                        by_size[size] = self.of.new_bool_var("")
                        from_one = self._sum(senders[self.group[senders] == one])
                        self.of.add(from_one >= 1).only_enforce_if(by_size[size])
                    self.of.add(self._sum(entered) <= by_size[size]).only_enforce_if(literal)
        return sends

    def order(self, solver: Expression) -> tuple[int, ...]:
        """Return the groups in the places that a solution gives them; empty without (7)."""
        return tuple(sorted(self.place, key=lambda group: int(solver.value(self.place[group]))))

    def _fit_behind(self, here: IntArray, behind: Expression, sends: dict[int, Expression]) -> None:
        """(5) of one group's run, with so many stages nearer to the end.

        ``sends``: whether its last stage has to send no more than a size.
        """
        between = np.intersect1d(here, self.patterns.has_role("middle", "entry"))
        ends = self._sum(np.intersect1d(here, self.patterns.has_role(*ENDS)))
        deepest = self.patterns.deepest
        for limit in np.unique(deepest[between][deepest[between] < ANYWHERE]).tolist():
            inside = between[deepest[between] <= limit]
            tight = self.of.new_bool_var("")
            self.of.add(self._sum(inside) == 0).only_enforce_if(~tight)
            self.of.add(behind + self._sum(inside) + ends <= int(limit)).only_enforce_if(tight)
            for size, literal in sends.items():
                more = inside[self.sent[inside] > size]
                if len(more):
                    other = self.of.new_bool_var("")
                    self.of.add(self._sum(more) == 0).only_enforce_if(~other)
                    self.of.add(behind + self._sum(more) + 1 <= int(limit)).only_enforce_if(other, literal)
        for at in np.intersect1d(here, self.patterns.has_role("entry")).tolist():
            if deepest[at] < ANYWHERE:  # it is in front of the others
                self.of.add(behind + self._sum(here) <= int(deepest[at])).only_enforce_if(self.count[at])
