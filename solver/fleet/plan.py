"""From a fleet to its schedule: CP-SAT chooses, and only what it chooses is searched (Benders).

Every job has a lower bound on its duration for each of its choices. The master (``master.Master``) takes
the bounds for durations; what it picks is searched exactly, and put back. Once it picks only what is exact,
its schedule is one of real durations, and none of the choices that were not searched can be better: with
their bounds they are not (logic-based Benders decomposition, Hooker and Ottosson, Mathematical Programming
96, 2003). A fleet that the master does not prove is overloaded: large neighbourhoods of a local search's
schedule improve it until the effort is spent, and the answer comes with the bounds of ``bounds``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from meshwright.profiles.errors import FieldError, InvalidProblemError, StoppedError
from meshwright.solver.fleet.bounds import bounds_of
from meshwright.solver.fleet.master import Master, Mastered
from meshwright.solver.fleet.problem import (
    Durations,
    Fleet,
    NodeChoice,
    Schedule,
    Score,
    choices_of,
    common_choices,
    equal_counts,
    keeps_pins,
)
from meshwright.solver.fleet.rules import Builder, RuleResult, by_rules


class SearchedDurations(Protocol):
    """Durations of jobs: bounds at once, exact ones by a search."""

    def least_min(self, job: str, choice: NodeChoice) -> int | None:
        """Return a lower bound on the minutes; None: the job has no plan on these nodes."""

    def exact_min(self, job: str, choice: NodeChoice) -> int | None:
        """Return the minutes of the best plan; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One objective of the answer, with its proof."""

    value: int
    bound: int

    @property
    def gap(self) -> float:
        """Return the share of the value that is not proved."""
        return 0.0 if self.value <= self.bound else (self.value - self.bound) / self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """A schedule of all jobs, with its proof and the simple rules next to it."""

    status: Literal["optimal", "feasible"]
    decided_by: str  # cp-sat, or the rule with a schedule as good
    schedule: Schedule
    objectives: tuple[Objective, ...]  # weighted lateness, last end, cost
    rules: tuple[RuleResult, ...]
    searched: int = 0  # choices that were searched
    choices: int = 0  # choices with a bound on their duration
    rounds: int = 0  # of the master

    @property
    def gap(self) -> float:
        """Return the gap of the first objective that is not proved."""
        return next((one.gap for one in self.objectives if one.gap), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much work is done; nothing depends on the clock."""

    effort: float = 10.0  # deterministic seconds of CP-SAT, and the orders of local search
    seed: int = 0
    ended: Callable[[], bool] = lambda: False


@dataclass(slots=True)
class _Known:
    """Durations as far as they are known: bounds, and exact ones."""

    fleet: Fleet
    source: SearchedDurations
    minutes: dict[str, dict[NodeChoice, int]]
    exact: set[tuple[str, NodeChoice]] = field(default_factory=set)
    searched: int = 0

    def search(self, job: str, choice: NodeChoice) -> bool:
        """Replace a bound by the duration of the best plan; return whether the bound was exact.

        It counts for every choice that is alike. Slower links of as many nodes take as long at least.
        """
        own = self.minutes[job]
        if (job, choice) in self.exact or choice not in own:
            return choice in own
        took, bound = self.source.exact_min(job, choice), own[choice]
        self.searched += 1
        for other in [one for one in own if one.alike == choice.alike]:
            if took is None:
                del own[other]
            else:
                own[other] = took
                self.exact.add((job, other))
        for other in own if took is not None else ():
            if (job, other) not in self.exact and _has_slower_links(other, choice):
                own[other] = max(own[other], took or 0)
        return took == bound

    def only_exact(self) -> Durations:
        return {
            job: {one: took for one, took in own.items() if (job, one) in self.exact}
            for job, own in self.minutes.items()
        }

    def unsearched(self, schedule: Schedule) -> list[tuple[str, NodeChoice]]:
        return sorted({(name, run.choice) for name, run in schedule.items()} - self.exact)

    def searched_as_bounded(self, schedule: Schedule) -> bool:
        """Search what a schedule picks; return whether all its durations were exact already."""
        return not [one for one in self.unsearched(schedule) if not self.search(*one)]

    def has_schedule(self, master: Master, limits: Limits) -> bool:
        exact = self.only_exact()
        return (
            all(exact.values())
            and all(common_choices(self.fleet, exact).values())
            and (not _pinned(self.fleet) or master.possible(exact, effort=limits.effort) is not None)
        )


def _has_slower_links(one: NodeChoice, other: NodeChoice) -> bool:
    """Return whether a choice differs from another in slower links alone."""
    if one[:3] != other[:3] or not other.switches:
        return False
    alone = len(other.switches) == 1
    same = (len(one.switches), one.rest) == (len(other.switches), other.rest)
    return alone or (same and one.uplinks < other.uplinks)


def jobs_without_plan(
    fleet: Fleet, source: SearchedDurations, at: Callable[[str, str], str]
) -> tuple[dict[str, dict[NodeChoice, int]], dict[str, FieldError]]:
    """Return the least minutes of every choice, and the faults of jobs that have no plan on any."""
    found, faults = dict[str, dict[NodeChoice, int]](), dict[str, FieldError]()
    for job in fleet.jobs:
        choices = choices_of(fleet, job)
        alike = dict.fromkeys(one.alike for one in choices)
        alike = {one: source.least_min(job.name, one) for one in alike}
        least = {one: alike[one.alike] for one in choices}
        found[job.name] = {choice: took for choice, took in least.items() if took is not None}
        if not found[job.name]:
            faults[job.name] = _without_plan(fleet, job.name, choices, at)
    return found, faults


def _without_plan(
    fleet: Fleet, job: str, choices: Sequence[NodeChoice], at: Callable[[str, str], str]
) -> FieldError:
    if not choices and fleet.most_w is not None:
        return _too_little_power(fleet, job, fleet.most_w)
    if not choices:
        return _under_no_switches(fleet, job, at)
    counts = ", ".join(dict.fromkeys(str(choice.nodes) for choice in choices))
    most = max(kind.nodes for kind in fleet.kinds)
    return FieldError(
        pointer=at(job, "problem"),
        message=f"no plan fits on {counts} {'node' if counts == '1' else 'nodes'}",
        allowed="a problem with a plan on " + ("1 node" if most == 1 else f"1 to {most} nodes"),
    )


def _under_no_switches(fleet: Fleet, job: str, at: Callable[[str, str], str]) -> FieldError:
    own = next(one for one in fleet.jobs if one.name == job)
    most = max(max(kind.switches, default=kind.nodes) for kind in fleet.kinds)
    roles = "roles of post-training stay under one switch, but no"
    stated = own.node_counts and own.least_nodes_field != "nodes"
    return FieldError(
        pointer=at(job, "node_counts" if stated else own.least_nodes_field),
        message=f"{roles if own.places_roles else 'no'} such number of nodes is evenly under the switches",
        allowed=f"1 to {most}" + ("" if own.places_roles else ", or as many nodes under each of several"),
        nearest=str(most),
    )


def _too_little_power(fleet: Fleet, job: str, most_w: int) -> FieldError:
    own = next(one for one in fleet.jobs if one.name == job)
    kinds = [kind for kind in fleet.kinds if not own.kinds or kind.name in own.kinds]
    least_kw = own.least_nodes * min(min(kind.draws_w.values()) for kind in kinds) / 1e3
    return FieldError(
        pointer="/max_power_kw",
        message=f"{most_w / 1e3:g} kW is less than the GPUs of {job} draw under their lowest limit",
        allowed=f"at least {least_kw:g}",
        nearest=f"{least_kw:g}",
    )


def require_room(
    fleet: Fleet, minutes: Mapping[str, Mapping[NodeChoice, int]], at: Callable[[str, str], str]
) -> None:
    """Refuse a fleet that no schedule can answer.

    Raises:
        InvalidProblemError: a job has no plan left, equal numbers of nodes have none in common, or pinned
            jobs hold more nodes at once than there are.
    """
    faults = [
        _without_plan(fleet, job.name, choices_of(fleet, job), at)
        for job in fleet.jobs
        if not minutes[job.name]
    ]
    for some in equal_counts(fleet):
        counts = [sorted({choice.nodes for choice in minutes[name]}) for name in some]
        if all(counts) and not set.intersection(*map(set, counts)):
            words = "; ".join(
                f"{name}: {', '.join(map(str, own))}" for name, own in zip(some, counts, strict=True)
            )
            message = "no number of nodes has a plan for every job that must use the same number"
            job = next(one for one in fleet.jobs if one.name in some and one.as_many_nodes_as)
            faults.append(
                FieldError(pointer=at(job.name, "as_many_nodes_as"), message=message, allowed=words)
            )
    if not faults:
        faults = _overfull(fleet, minutes, at)
    if faults:
        raise InvalidProblemError(faults)


def _overfull(
    fleet: Fleet, minutes: Mapping[str, Mapping[NodeChoice, int]], at: Callable[[str, str], str]
) -> list[FieldError]:
    """Return the fault of pinned jobs that hold more nodes at one moment than the cluster has."""
    pinned = [job for job in fleet.jobs if job.start_min is not None]
    for kind in fleet.kinds:
        for job in pinned:
            here = [
                (one, min(choice.nodes for choice in minutes[one.name]))
                for one in pinned
                if all(choice.kind == kind.name for choice in minutes[one.name])
                and (one.start_min or 0) <= (job.start_min or 0)
                and (job.start_min or 0) < (one.start_min or 0) + min(minutes[one.name].values())
            ]
            held = sum(nodes for _, nodes in here)
            if held > kind.nodes:
                names = ", ".join(one.name for one, _ in here)
                message = f"{names} are pinned to {held} nodes at the same time"
                allowed = f"up to {kind.nodes}, the nodes of the cluster"
                return [
                    FieldError(
                        pointer=at(here[-1][0].name, "start_hours"), message=message, allowed=allowed
                    )
                ]
    return []


def plan_fleet(
    fleet: Fleet,
    least: Mapping[str, Mapping[NodeChoice, int]],
    source: SearchedDurations,
    at: Callable[[str, str], str],
    limits: Limits,
) -> FleetAnswer:
    """Return the schedule of a fleet.

    ``least``: the least minutes of every choice (``jobs_without_plan``).

    Raises:
        InvalidProblemError: as ``require_room``, also where searches leave a job without a plan; or no
            schedule keeps the pinned starts.
    """
    known = _Known(fleet, source, {job: dict(own) for job, own in least.items()})
    choices = sum(len({one.alike for one in own}) for own in known.minutes.values())
    require_room(fleet, known.minutes, at)
    master = Master(fleet, seed=limits.seed, ended=limits.ended)
    rounds, settled = 0, False
    while not settled:
        rounds += 1
        found = _round(fleet, known, master, limits, at)
        settled = known.searched_as_bounded(found.schedule)
        require_room(fleet, known.minutes, at)
        hopeless = found.proved == 0 or rounds >= _ROUNDS or limits.ended()
        if hopeless and known.has_schedule(master, limits):
            break
    answer = _finished(fleet, known, master, found, limits, settled=settled)
    return replace(answer, searched=known.searched, choices=choices, rounds=rounds)


def _round(
    fleet: Fleet, known: _Known, master: Master, limits: Limits, at: Callable[[str, str], str]
) -> Mastered:
    rules = by_rules(fleet, known.minutes, orders=_HINT_ORDERS, seed=limits.seed, ended=limits.ended)
    hint = min(rules, key=lambda one: one.value).schedule if rules else None
    hint = hint or master.possible(known.minutes, effort=limits.effort)
    if hint is None:
        if limits.ended():
            raise StoppedError(_STOPPED)
        names = _pinned(fleet)
        message = f"no schedule found that keeps the pinned starts of {', '.join(names)}"
        allowed = "later starts, or fewer nodes for these jobs"
        raise InvalidProblemError.of(at(names[-1], "start_hours"), message, allowed=allowed)
    least = bounds_of(fleet, known.minutes, Score.of(fleet, hint), rounds=_HINT_PRICES)
    return master.solve(known.minutes, hint, least, effort=limits.effort * _ROUND_SHARE)


def _pinned(fleet: Fleet) -> list[str]:
    return [job.name for job in fleet.jobs if job.start_min is not None]


def _finished(
    fleet: Fleet, known: _Known, master: Master, found: Mastered, limits: Limits, *, settled: bool
) -> FleetAnswer:
    """Return the best schedule of exact durations, and the bounds of all that are known."""
    exact = known.only_exact()
    proved = settled and found.proved == len(found.value)
    orders = _PROVED_ORDERS if proved else int(_ORDERS_PER_EFFORT * limits.effort)
    rules = by_rules(fleet, exact, orders=orders, seed=limits.seed, ended=limits.ended)
    best = rules[-1].schedule if rules else found.schedule if settled else None
    best = best or master.possible(exact, effort=limits.effort)
    if best is None:
        raise StoppedError(_STOPPED)
    value = Score.of(fleet, best)
    bound = found.bound
    if not settled:  # those behind the first hold at its value under bounds alone
        bound = Score(found.bound.lateness, 0, 0)
    if settled and found.value <= value:
        best, value = found.schedule, found.value
    if not proved:
        best = _improved(known, master, best, bound, limits)
        value = Score.of(fleet, best)
        bound = Score(*map(max, bounds_of(fleet, known.minutes, value, rounds=_PRICE_ROUNDS), bound))
    objectives = tuple(
        Objective(value=reached, bound=min(low, reached)) for reached, low in zip(value, bound, strict=True)
    )
    is_proved = not any(one.gap for one in objectives)
    as_good = next((one.rule for one in rules if one.value <= value), None)
    return FleetAnswer(
        status="optimal" if is_proved else "feasible",
        decided_by="cp-sat" if is_proved or as_good is None else as_good,
        schedule=best, objectives=objectives, rules=rules,
    )  # fmt: skip


def _improved(known: _Known, master: Master, best: Schedule, bound: Score, limits: Limits) -> Schedule:
    """Return a schedule of exact durations that is as good as ``best`` or better.

    Neighbourhoods choose among all choices, by their bounds; what they pick is searched. The last ones
    choose among those that were searched.
    """
    schedule = best
    for _ in range(_HURRIED):
        schedule = master.improve(known.minutes, schedule, bound, effort=limits.effort * _HURRIED_SHARE)
        try:
            settled = known.searched_as_bounded(schedule)
        except StoppedError:  # there is a schedule: the best one
            return best
        if not settled:
            order = sorted(schedule, key=lambda name: (schedule[name].start_min, schedule[name].end_min))
            again = Builder(known.fleet, known.minutes)
            left = {name: run.choice for name, run in schedule.items() if run.choice in again.minutes[name]}
            schedule = again.build(order, "cheapest", left)
        if not keeps_pins(known.fleet, schedule):
            schedule = best
        if not known.unsearched(schedule):
            best = min(best, schedule, key=lambda one: Score.of(known.fleet, one))
        if settled or limits.ended():
            break
    return master.improve(known.only_exact(), best, bound, effort=limits.effort * _LAST_SHARE)


_STOPPED = "stopped before there was a schedule"
_HINT_ORDERS, _HINT_PRICES = 60, 60  # of a round: orders of local search, rounds of the bound on lateness
_ROUND_SHARE = 0.1  # of the effort, for the master of one round
_PRICE_ROUNDS = 400  # of the last bound on lateness
_ROUNDS = 40  # of the master
_HURRIED, _HURRIED_SHARE, _LAST_SHARE = 6, 0.12, 0.28  # rounds of neighbourhoods; shares of the effort
_PROVED_ORDERS = 300  # of the local search that is shown next to a proved schedule
_ORDERS_PER_EFFORT = 600  # orders that local search tries for each deterministic second
