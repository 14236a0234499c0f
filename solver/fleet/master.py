"""CP-SAT's model of a fleet: which choice each job takes, and when it starts.

Variables: for every job a start, an end, and one literal for each of its choices.
Constraints
  (1) a job takes exactly one choice, and lasts as long as that takes          optional intervals
  (2) runs never use more of a resource together than there is: nodes of a kind,     cumulative for each
      nodes under a switch, its uplinks, power
  (3) a job starts at its release or later, or where it is pinned
  (4) jobs start after those that they wait for; some never overlap; some have equal numbers of nodes
  (5) the node-minutes of all runs fit before the last end                    follows from (2); a cheap cut
Objectives, one after the other, each with the ones before held at what was found:
weighted lateness, last end, cost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshwright.solver.fleet.bounds import heads_of
from meshwright.solver.fleet.problem import (
    Durations,
    Fleet,
    FleetJob,
    NodeChoice,
    PlannedRun,
    Schedule,
    Score,
    common_choices,
    equal_counts,
    pairs_apart,
)
from meshwright.solver.search.cp_sat import solved_until, solver_within, without_pandas


@dataclass(frozen=True, slots=True)
class Mastered:
    """A schedule for the durations that were given, and how far each objective is proved.

    An objective's bound holds where those before it are at what was found.
    """

    schedule: Schedule
    value: Score
    bound: Score
    effort: float  # deterministic seconds that were used

    @property
    def proved(self) -> int:
        """Return how many objectives are proved, in their order."""
        pairs = zip(self.value, self.bound, strict=True)
        return next((at for at, (found, low) in enumerate(pairs) if low < found), len(self.value))


@dataclass(slots=True)
class _FleetModel:
    of: Any
    start: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    late: dict[str, Any] = field(default_factory=dict)
    takes: dict[str, dict[NodeChoice, Any]] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)
    intervals: dict[str, list[tuple[Any, int]]] = field(default_factory=dict)  # with amounts, by resource
    last: Any = None


class _Goal(NamedTuple):
    at: int  # the objective
    least: int  # a lower bound on it
    effort: float


class Master:
    """The model of a fleet with durations that may still be bounds."""

    def __init__(self, fleet: Fleet, *, seed: int = 0, ended: Callable[[], bool] = lambda: False) -> None:
        self.fleet, self.seed, self.ended = fleet, seed, ended
        self.cp = without_pandas()
        self.apart = {name for pair in pairs_apart(fleet) for name in pair}

    def solve(self, durations: Durations, hint: Schedule, least: Score, *, effort: float) -> Mastered:
        """Return the best schedule found from ``hint`` on within so many deterministic seconds.

        ``least``: lower bounds on the objectives. An objective that is not proved ends the search, since
        those behind it mean little then.
        """
        minutes = common_choices(self.fleet, durations)
        best, value, used = hint, Score.of(self.fleet, hint), 0.0
        bounds = list(least)
        for at in range(len(value)):
            share = effort if at == 0 else effort / 2.0
            if value[at] > bounds[at] and not self.ended():
                found = self._improved(minutes, best, _Goal(at, bounds[at], share))
                used += found.effort
                best, value = found.schedule, found.value
                bounds[at] = max(bounds[at], found.bound[at])
            if value[at] > bounds[at]:
                break
        return Mastered(best, value, Score(*bounds), used)

    def possible(self, durations: Durations, *, effort: float) -> Schedule | None:
        """Return any schedule; None: there is none, or it takes more deterministic seconds to find one."""
        minutes = common_choices(self.fleet, durations)
        model = self._model(minutes, _ANY, 0)
        solver = self._solver(effort)
        status = solved_until(solver, model.of, self.ended)
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            return None
        return {name: self._run(solver, model, name) for name in model.start}

    def improve(self, durations: Durations, hint: Schedule, least: Score, *, effort: float) -> Schedule:
        """Return a schedule as good as ``hint`` or better, by large neighbourhoods.

        Some jobs that run at about one time are free, and the others keep choice and start: CP-SAT places
        the free ones anew. Neighbourhoods grow where they are exhausted.
        """
        draw, best, left = random.Random(self.seed), hint, effort  # noqa: S311 - it keeps no secret
        minutes, size, stale = common_choices(self.fleet, durations), _SMALLEST, 0
        alike = {name: some for some in equal_counts(self.fleet) for name in some}
        while left > 0.0 and not self.ended() and stale < _GIVEN_UP:
            value = Score.of(self.fleet, best)
            at = next((one for one in range(len(value)) if value[one] > least[one]), None)
            if at is None:
                break
            free = _neighbours(best, draw, min(size, len(best)))
            free |= {other for name in free for other in alike.get(name, ())}
            held = {name: run for name, run in best.items() if name not in free}
            found = self._improved(minutes, best, _Goal(at, least[at], effort / _PARTS), held)
            left -= max(found.effort, _OVERHEAD)
            better = found.value < value
            stale = 0 if better else stale + 1
            size = size if better else min(size + (stale % 3 == 0), _LARGEST)
            best = found.schedule if better else best
        return best

    def _improved(
        self, minutes: Durations, hint: Schedule, goal: _Goal, held: Schedule | None = None
    ) -> Mastered:
        """Return the best schedule for one objective, the ones before it held at what ``hint`` has."""
        value, at, least = Score.of(self.fleet, hint), goal.at, goal.least
        if held:
            minutes = {**minutes, **{name: {run.choice: run.minutes} for name, run in held.items()}}
        model = self._model(minutes, value, at)
        for name, run in (held or {}).items():
            model.of.add(model.start[name] == run.start_min)
        terms = self._objectives(model, minutes)
        for before in range(at):
            model.of.add(terms[before] <= value[before])
        model.of.add(terms[at] >= least)
        model.of.add(terms[at] <= value[at])
        model.of.minimize(terms[at])
        self._hint(model, hint)
        solver = self._solver(goal.effort)
        status = solved_until(solver, model.of, self.ended)
        used = float(solver.response_proto.deterministic_time)
        low = max(least, _whole(solver.best_objective_bound))
        bound = Score(*(low if one == at else value[one] for one in range(len(value))))
        if status not in (self.cp.OPTIMAL, self.cp.FEASIBLE):
            kept = bound if status != self.cp.INFEASIBLE else value
            return Mastered(hint, value, kept, used)
        schedule = {name: self._run(solver, model, name) for name in model.start}
        return Mastered(schedule, Score.of(self.fleet, schedule), bound, used)

    def _solver(self, effort: float) -> Any:  # noqa: ANN401 - OR-Tools
        solver = solver_within(self.cp, max(effort, 0.01), self.seed)
        parameters = solver.parameters
        parameters.cp_model_probing_level = 0
        parameters.linearization_level = 0  # the relaxation is weak: bounds.py has a stronger one
        return solver

    def _model(self, minutes: Durations, value: Score, at: int) -> _FleetModel:
        model = _FleetModel(of=self.cp.CpModel())
        # after all releases something always runs
        released = max((max(job.release_min, job.start_min or 0) for job in self.fleet.jobs), default=0)
        whole = released + sum(max(own.values()) for own in minutes.values())
        horizon = whole if at == 0 else value.last_end_min
        heads = heads_of(self.fleet, minutes)
        model.intervals.update((name, []) for name in self.fleet.room())
        for job in self.fleet.jobs:
            latest = horizon
            if job.due_min is not None and job.weight:  # later alone is more lateness than is known of all
                latest = min(horizon, job.due_min + value.lateness // job.weight)
            self._add_job(model, job, minutes, heads[job.name], latest)
        model.last = model.of.new_int_var(0, horizon, "")
        self._share(model, minutes)
        for job in self.fleet.jobs:
            for before in job.after:
                model.of.add(model.start[job.name] >= model.end[before])
        for one, other in pairs_apart(self.fleet):
            model.of.add_no_overlap([model.whole[one], model.whole[other]])
        for first, *others in equal_counts(self.fleet):
            for other in others:
                model.of.add(_nodes(model, first) == _nodes(model, other))
        for end in model.end.values():
            model.of.add(model.last >= end)
        return model

    def _share(self, model: _FleetModel, minutes: Durations) -> None:
        """Let runs share nodes, uplinks and power."""
        for kind in self.fleet.kinds:
            node_minutes = sum(
                choice.nodes * minutes[name][choice] * literal
                for name, takes in model.takes.items()
                for choice, literal in takes.items()
                if choice.kind == kind.name
            )
            model.of.add(node_minutes <= kind.nodes * model.last)
        for name, room in self.fleet.room().items():
            own = model.intervals[name]
            model.of.add_cumulative([one for one, _ in own], [amount for _, amount in own], room)

    def _add_job(
        self, model: _FleetModel, job: FleetJob, minutes: Durations, head: int, latest: int
    ) -> None:
        cp, own, name = model.of, minutes[job.name], job.name
        is_pinned = job.start_min is not None
        start = model.start[name] = cp.new_int_var(head, head if is_pinned else latest, "")
        end = model.end[name] = cp.new_int_var(head, latest, "")
        takes = model.takes[name] = {choice: cp.new_bool_var("") for choice in own}
        cp.add_exactly_one(takes.values())
        took = cp.new_int_var(min(own.values()), max(own.values()), "")
        cp.add(took == sum(own[choice] * literal for choice, literal in takes.items()))
        cp.add(end == start + took)
        if name in self.apart:
            model.whole[name] = cp.new_interval_var(start, took, end, "")
        for choice, literal in takes.items():
            interval = cp.new_optional_fixed_size_interval_var(start, own[choice], literal, "")
            for resource, amount in self.fleet.uses(choice).items():
                model.intervals[resource].append((interval, amount))
        if job.due_min is not None:
            late = model.late[name] = cp.new_int_var(0, max(0, latest - job.due_min), "")
            cp.add(late >= end - job.due_min)

    def _objectives(self, model: _FleetModel, minutes: Durations) -> tuple[Any, Any, Any]:
        prices, weights = self.fleet.prices(), {job.name: job.weight for job in self.fleet.jobs}
        lateness = sum(weights[name] * late for name, late in model.late.items())
        cost = sum(
            prices[choice.kind] * choice.nodes * minutes[name][choice] * literal
            for name, takes in model.takes.items()
            for choice, literal in takes.items()
        )
        return lateness, model.last, cost

    def _hint(self, model: _FleetModel, hint: Schedule) -> None:
        dues = {job.name: job.due_min for job in self.fleet.jobs}
        for name, run in hint.items():
            model.of.add_hint(model.start[name], run.start_min)
            model.of.add_hint(model.end[name], run.end_min)
            for choice, literal in model.takes[name].items():
                model.of.add_hint(literal, int(choice == run.choice))
            if name in model.late:
                model.of.add_hint(model.late[name], max(0, run.end_min - (dues[name] or 0)))
        model.of.add_hint(model.last, max(run.end_min for run in hint.values()))

    def _run(self, solver: Any, model: _FleetModel, name: str) -> PlannedRun:  # noqa: ANN401 - OR-Tools
        takes = model.takes[name]
        choice = next(choice for choice, literal in takes.items() if solver.boolean_value(literal))
        return PlannedRun(choice, int(solver.value(model.start[name])), int(solver.value(model.end[name])))


_ANY = Score(2**50, 2**50, 2**50)  # no schedule is worse
_SMALLEST, _LARGEST = 5, 14  # jobs of a neighbourhood
_GIVEN_UP = 60  # neighbourhoods in a row without a better schedule
_PARTS = 25  # of the effort, of which a neighbourhood gets one
_OVERHEAD = 0.005  # deterministic seconds: what building a model is counted as


def _neighbours(schedule: Schedule, draw: random.Random, size: int) -> set[str]:
    """Return jobs that run nearest to a drawn one, with one or two drawn from all."""
    names = sorted(schedule)
    middle = schedule[draw.choice(names)]
    near = sorted(
        names,
        key=lambda one: (
            max(schedule[one].start_min - middle.end_min, middle.start_min - schedule[one].end_min, 0),
            draw.random(),
        ),
    )
    return {*near[: size - 2], *draw.sample(names, min(2, len(names)))}


def _nodes(model: _FleetModel, name: str) -> Any:  # noqa: ANN401 - OR-Tools
    return sum(choice.nodes * literal for choice, literal in model.takes[name].items())


def _whole(bound: float) -> int:
    """Return the least whole number that is not below a bound of CP-SAT's, whole but for rounding."""
    return round(bound) if abs(bound - round(bound)) < 1e-6 * max(1.0, abs(bound)) else int(bound) + 1
