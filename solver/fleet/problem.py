"""A fleet: several jobs that share the nodes of one cluster, and the schedules that answer it.

Times are whole minutes from the beginning of the plan, as Slurm limits jobs; durations are rounded up.
A job runs on one kind of node, without a pause, on as many nodes from its start to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil
from typing import NamedTuple

from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.errors import FieldError, UnknownNameError
from meshwright.profiles.links import NodeLinks, SwitchLevel
from meshwright.solver.answer import Answer
from meshwright.solver.post_training.problem import PostTraining, PostTrainingAnswer
from meshwright.solver.problem import Problem

_POWER = "W"
Question = Problem | PostTraining  # of a job
Found = Answer | PostTrainingAnswer


class NodeChoice(NamedTuple):
    """Nodes of one kind that a job may run on, the limit of power of their GPUs, and their switches.

    Where uplinks are oversubscribed, a job has as many nodes under each of its switches, or all of some and
    the rest under the last. Of several it has a share of the uplinks of each, counted in nodes.
    """

    kind: str
    nodes: int
    limit_w: int = 0  # of each GPU; 0: none
    switches: tuple[int, ...] = ()  # by number from 0; empty: uplinks are not oversubscribed
    uplinks: int = 0  # 0: it does not use them
    rest: int = 0  # nodes under the last of its switches; 0: as many as under each

    @property
    def under(self) -> Mapping[int, int]:
        """Return the nodes under each switch."""
        if not self.switches:
            return {}
        if self.rest:
            whole = (self.nodes - self.rest) // (len(self.switches) - 1)
            return {**dict.fromkeys(self.switches[:-1], whole), self.switches[-1]: self.rest}
        return dict.fromkeys(self.switches, self.nodes // len(self.switches))

    @property
    def alike(self) -> NodeChoice:
        """Return what its duration depends on: any switches are as good as the first."""
        return self._replace(switches=tuple(range(len(self.switches))))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes of the cluster that are all alike."""

    name: str
    nodes: int
    price: int = 1  # of one node for one minute, in any unit; 1: node-minutes are counted
    draws_w: Mapping[int, int] = field(default_factory=dict)  # of one node, by the limit of its GPUs
    switches: tuple[int, ...] = ()  # nodes under each; empty: uplinks are not oversubscribed
    switch_nodes: int = 0  # that a switch joins when all are there; its uplinks are counted in these
    oversubscription: float = 1.0  # bandwidth of a switch's nodes over that of its uplinks


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetJob:
    """One job of a fleet; the source of its durations holds its problem."""

    name: str
    release_min: int = 0
    due_min: int | None = None
    weight: int = 1  # of a minute behind the due date
    least_nodes: int = 1
    least_nodes_field: str = "least_nodes"  # the request's field with this number
    most_nodes: int | None = None  # None: all of its kind
    node_counts: tuple[int, ...] = ()  # the only ones in question; empty: the usual ones (``choices_of``)
    after: tuple[str, ...] = ()  # jobs that end before it starts
    never_with: tuple[str, ...] = ()  # jobs that never run at the same time
    as_many_nodes_as: str | None = None
    kinds: tuple[str, ...] = ()  # of nodes; empty: all
    start_min: int | None = None  # pinned
    under: Mapping[int, int] = field(default_factory=dict)  # nodes by switch: it runs there; empty: any
    uplinks: int | None = None  # the only share of their uplinks in question
    places_roles: bool = False  # not priced at lower limits of power, nor over several switches


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Jobs and nodes."""

    kinds: tuple[NodeKind, ...]
    jobs: tuple[FleetJob, ...]
    most_w: int | None = None  # that GPUs of all jobs draw together at any time; None: no limit

    def draw_w(self, choice: NodeChoice) -> int:
        """Return what the GPUs of a job draw on the nodes of a choice; 0 without a limit on all."""
        if self.most_w is None:
            return 0
        return (
            choice.nodes
            * next(one for one in self.kinds if one.name == choice.kind).draws_w[choice.limit_w]
        )

    def room(self) -> Mapping[str, int]:
        """Return how much of each resource all runs may use at any time together.

        Nodes of a kind, nodes under a switch, the uplinks of a switch, watts.
        """
        found = {kind.name: kind.nodes for kind in self.kinds}
        for kind in self.kinds:
            for at, nodes in enumerate(kind.switches):
                found |= {f"{kind.name}/{at}": nodes, f"{kind.name}/{at}/uplinks": kind.switch_nodes}
        return found if self.most_w is None else {**found, _POWER: self.most_w}

    def uses(self, choice: NodeChoice) -> Mapping[str, int]:
        """Return how much of each resource of ``room`` a job uses on the nodes of a choice."""
        found = {choice.kind: choice.nodes}
        for at, nodes in choice.under.items():
            found[f"{choice.kind}/{at}"] = nodes
            if choice.uplinks:
                found[f"{choice.kind}/{at}/uplinks"] = choice.uplinks
        return found if self.most_w is None else {**found, _POWER: self.draw_w(choice)}

    def prices(self) -> Mapping[str, int]:
        """Return the price of one node for one minute, by kind."""
        return {kind.name: kind.price for kind in self.kinds}

    def nodes(self) -> Mapping[str, int]:
        """Return the number of nodes by kind."""
        return {kind.name: kind.nodes for kind in self.kinds}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job's problem and steps, which give its durations."""

    problem: Question  # on the whole cluster
    steps: int
    stated: Mapping[str, object] = field(default_factory=dict)  # of post-training: its request, in full

    @property
    def training(self) -> Problem:
        """Return the problem that is trained: that of a step's policy where roles are placed."""
        return self.problem.training if isinstance(self.problem, PostTraining) else self.problem


Minutes = Mapping[NodeChoice, int]  # of one job, for each of its choices
Durations = Mapping[str, Minutes]  # by job


class PlannedRun(NamedTuple):
    """One job of a schedule."""

    choice: NodeChoice
    start_min: int
    end_min: int

    @property
    def minutes(self) -> int:
        """Return the duration."""
        return self.end_min - self.start_min


Schedule = Mapping[str, PlannedRun]  # by job


class Score(NamedTuple):
    """The objectives of a schedule, in their order."""

    lateness: int  # minutes behind due dates, times the weights
    last_end_min: int
    cost: int  # price times nodes times minutes

    @classmethod
    def of(cls, fleet: Fleet, schedule: Schedule) -> Score:
        """Return the objectives of a schedule of all jobs."""
        prices = fleet.prices()
        runs = [(job, schedule[job.name]) for job in fleet.jobs]
        return cls(
            lateness=sum(lateness_of(job, run.end_min) for job, run in runs),
            last_end_min=max((run.end_min for _, run in runs), default=0),
            cost=sum(prices[run.choice.kind] * run.choice.nodes * run.minutes for _, run in runs),
        )


def lateness_of(job: FleetJob, end_min: int) -> int:
    """Return the weighted minutes behind the due date."""
    return 0 if job.due_min is None else job.weight * max(0, end_min - job.due_min)


def choices_of(fleet: Fleet, job: FleetJob) -> tuple[NodeChoice, ...]:
    """Return the choices of a job that the fleet's nodes have room for, fewest nodes first.

    Where a job names no numbers of nodes: powers of two, and its least and most. Batches and layers are
    divided by few other numbers: on those in between, GPUs are idle. Where all jobs share a limit of power,
    each number of nodes is a choice under every limit of its GPUs that this leaves; a job that may not be
    limited has none.
    """
    found = list[NodeChoice]()
    for kind in fleet.kinds:
        if job.kinds and kind.name not in job.kinds:
            continue
        most = min(kind.nodes, job.most_nodes or kind.nodes)
        usual = {job.least_nodes, most, *(1 << power for power in range(most.bit_length()))}
        counts = job.node_counts or sorted(usual)
        able = [one for one in counts if job.least_nodes <= one <= most]
        limits = (0,) if fleet.most_w is None or job.places_roles else sorted(kind.draws_w)
        found += [
            NodeChoice(kind.name, nodes, limit, *under)
            for nodes in able for limit in limits for under in _under(kind, nodes, job)
        ]  # fmt: skip
    kept = [one for one in found if fleet.most_w is None or fleet.draw_w(one) <= fleet.most_w]
    if job.under:
        kept = [one for one in kept if one.under == job.under and job.uplinks in (None, one.uplinks)]
    return tuple(sorted(kept, key=lambda one: (one.nodes, one.kind, *one[2:])))


def nodes_of(group: NodeGroup, choice: NodeChoice) -> NodeGroup:
    """Return a job's nodes: its share of the uplinks is an oversubscription of its own.

    Its n nodes under a switch of S hold u/S of uplinks that carry S/o of the nodes' bandwidth, so that they
    are oversubscribed n o / u times.
    """
    links = group.links
    rails = NodeLinks(rail_only=True) if links is not None and links.rail_only else None
    own = replace(group, num_nodes=choice.nodes, links=rails)
    if links is None or not choice.uplinks:
        return own
    each = max(choice.under.values())
    slower = each * links.levels[0].oversubscription / choice.uplinks
    if slower <= 1.0:
        return own
    if each == 1:  # every link is one between switches
        return replace(own, inter_node=own.inter_node.slowed(slower))
    level = SwitchLevel(nodes=each, oversubscription=slower)
    return replace(own, links=NodeLinks(levels=(level,), rail_only=links.rail_only))


_FEW = 4  # switches of which a job may have any; of more, neighbours


def _under(kind: NodeKind, nodes: int, job: FleetJob) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield the switches that so many nodes may be under, shares of uplinks, and the nodes of the last."""
    if not kind.switches:
        yield (), 0, 0
        return
    for count in range(1, 2 if job.places_roles else len(kind.switches) + 1):
        each, odd = divmod(nodes, count)
        for some in () if odd else _sets(kind.switches, each, count, job):
            yield from ((some, share, 0) for share in shares_of(kind, each, count))
    whole, rest = divmod(nodes, kind.switch_nodes)
    if whole and rest and not job.places_roles:
        for some in _filled(kind, whole, rest, job):
            yield some, kind.switch_nodes, rest


def _filled(kind: NodeKind, whole: int, rest: int, job: FleetJob) -> Iterator[tuple[int, ...]]:
    """Yield so many switches of which a job has all nodes, and one with room for the rest."""
    numbers: Sequence[int] = sorted(job.under) or range(len(kind.switches))
    for last in (at for at in numbers if kind.switches[at] >= rest):
        others = [at for at in numbers if at != last and kind.switches[at] == kind.switch_nodes]
        if len(numbers) > _FEW and not job.under:
            others = [at for at in others if last - whole <= at < last]
        yield from ((*some, last) for some in combinations(others, whole))


def _sets(room: Sequence[int], each: int, count: int, job: FleetJob) -> Iterator[tuple[int, ...]]:
    """Yield so many switches with room for ``each`` nodes under each."""
    numbers: Sequence[int] = sorted(job.under) or range(len(room))
    every: Iterable[tuple[int, ...]] = (
        combinations(numbers, count)
        if len(room) <= _FEW or job.under
        else (
            tuple(range(first, first + count)) for first in numbers[::count] if first + count <= len(room)
        )
    )
    return (some for some in every if all(room[at] >= each for at in some))


def shares_of(kind: NodeKind, each: int, count: int) -> tuple[int, ...]:
    """Return the shares of uplinks in question: that of the job's nodes, its doubles, all it can use."""
    if count == 1:
        return (0,)
    most = min(kind.switch_nodes, max(each, ceil(each * kind.oversubscription)))
    doubled = (each << power for power in range(most.bit_length()))
    return tuple(sorted({most, *(one for one in doubled if one < most)}))


# --------------------------------------------------------------------------------------------------
# Faults: the job, the field, what is allowed.


def faults_of(fleet: Fleet, at: Callable[[str, str], str]) -> dict[str, tuple[FieldError, ...]]:
    """Return the faults that need no durations, by job; the other jobs can be planned.

    ``at`` makes a pointer from a job's name and a field.
    """
    found = dict[str, list[FieldError]]()
    names = [job.name for job in fleet.jobs]
    for job in fleet.jobs:
        faults = [*_own_faults(fleet, job, at), *_reference_faults(job, names, at)]
        if faults:
            found[job.name] = faults
    for cycle in _cycles(fleet.jobs):
        words = " after ".join([*cycle, cycle[0]])
        error = FieldError(
            pointer=at(cycle[0], "after"), message=f"{words} is a cycle", allowed="an order without a cycle"
        )
        for name in cycle:
            found.setdefault(name, []).append(error)
    return {name: tuple(dict.fromkeys(errors)) for name, errors in found.items()}


def _own_faults(fleet: Fleet, job: FleetJob, at: Callable[[str, str], str]) -> Iterable[FieldError]:
    kinds = [kind for kind in fleet.kinds if not job.kinds or kind.name in job.kinds]
    largest = max((kind.nodes for kind in kinds), default=0)
    most = min(largest, job.most_nodes or largest)

    def fault(field: str, message: str, allowed: str, nearest: str | None = None) -> FieldError:
        return FieldError(pointer=at(job.name, field), message=message, allowed=allowed, nearest=nearest)

    for name in (one for one in job.kinds if one not in fleet.nodes()):
        yield UnknownNameError.among(at(job.name, "kinds"), name, list(fleet.nodes())).errors[0]
    if job.due_min is not None and job.release_min >= job.due_min:
        released = f"released after {job.release_min / 60:g} h, due after {job.due_min / 60:g} h"
        yield fault("release_hours", released, f"below {job.due_min / 60:g}")
    if job.least_nodes > largest > 0:
        more = f"{job.least_nodes} nodes are more than the cluster has"
        yield fault(job.least_nodes_field, more, f"1 to {largest}", str(largest))
    if job.most_nodes is not None and job.most_nodes < job.least_nodes:
        fewer = f"{job.most_nodes} nodes are fewer than least_nodes, {job.least_nodes}"
        yield fault("most_nodes", fewer, f"from {job.least_nodes}")
    elif (
        job.least_nodes <= largest
        and job.node_counts
        and not any(job.least_nodes <= count <= most for count in job.node_counts)
    ):
        none = f"none of {', '.join(map(str, job.node_counts))} nodes is allowed"
        yield fault("node_counts", none, f"{job.least_nodes} to {most}")
    if job.start_min is not None and job.start_min < job.release_min:
        early = f"pinned to {job.start_min / 60:g} h, before the release"
        yield fault("start_hours", early, f"from {job.release_min / 60:g}")


def _reference_faults(
    job: FleetJob, names: Sequence[str], at: Callable[[str, str], str]
) -> Iterable[FieldError]:
    same = (job.as_many_nodes_as,) if job.as_many_nodes_as else ()
    for name, others in (("after", job.after), ("never_with", job.never_with), ("as_many_nodes_as", same)):
        known = [one for one in names if one != job.name]
        for other in others:
            if other == job.name:
                message, allowed = "a job cannot name itself", ", ".join(known[:20]) or "no job"
                yield FieldError(pointer=at(job.name, name), message=message, allowed=allowed)
            elif other not in known:
                yield UnknownNameError.among(at(job.name, name), other, known).errors[0]


def _cycles(jobs: Sequence[FleetJob]) -> list[list[str]]:
    after = {job.name: [one for one in job.after if one != job.name] for job in jobs}
    done, found = set[str](), list[list[str]]()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append(path[path.index(name) :])
        elif name not in done:
            for other in after.get(name, ()):
                visit(other, [*path, name])
            done.add(name)

    for job in jobs:
        visit(job.name, [])
    return found


def without(fleet: Fleet, names: Iterable[str]) -> tuple[Fleet, tuple[str, ...]]:
    """Return the fleet without these jobs and those that come after them, and the latter's names."""
    first = set(names)
    left_out = set(first)
    while more := {
        job.name for job in fleet.jobs if job.name not in left_out and left_out & {*job.after}
    } | {job.name for job in fleet.jobs if job.name not in left_out and job.as_many_nodes_as in left_out}:
        left_out |= more
    kept = tuple(
        replace(job, never_with=tuple(one for one in job.never_with if one not in left_out))
        for job in fleet.jobs
        if job.name not in left_out
    )
    return replace(fleet, jobs=kept), tuple(job.name for job in fleet.jobs if job.name in left_out - first)


def sharing(fleet: Fleet, schedule: Schedule) -> tuple[tuple[str, ...], ...]:
    """Return the sets of jobs that use the uplinks of one switch at one time, each once and whole."""
    found = set[tuple[str, ...]]()
    for kind in fleet.kinds:
        for at in range(len(kind.switches)):
            own = {
                name: run
                for name, run in schedule.items()
                if run.choice.kind == kind.name and run.choice.uplinks and at in run.choice.switches
            }
            for run in own.values():
                here = (one for one, other in own.items() if _runs_at(other, run.start_min))
                found.add(tuple(sorted(here)))
    whole = [some for some in found if len(some) > 1 and not any({*some} < {*other} for other in found)]
    return tuple(sorted(whole))


def _runs_at(run: PlannedRun, minute: int) -> bool:
    return run.start_min <= minute < run.end_min


# --------------------------------------------------------------------------------------------------
# Links between jobs, as all parts of the solver read them.


def pairs_apart(fleet: Fleet) -> tuple[tuple[str, str], ...]:
    """Return the pairs that never run at the same time, each once."""
    pairs = {tuple(sorted((job.name, other))) for job in fleet.jobs for other in job.never_with}
    return tuple(sorted((one, other) for one, other in pairs))


def equal_counts(fleet: Fleet) -> tuple[tuple[str, ...], ...]:
    """Return the sets of jobs that have as many nodes as each other."""
    of = {job.name: {job.name} for job in fleet.jobs}
    for job in fleet.jobs:
        if job.as_many_nodes_as is not None:
            joined = of[job.name] | of[job.as_many_nodes_as]
            of.update(dict.fromkeys(joined, joined))
    found = {tuple(sorted(some)) for some in of.values() if len(some) > 1}
    return tuple(sorted(found))


def common_choices(fleet: Fleet, durations: Durations) -> dict[str, dict[NodeChoice, int]]:
    """Return the durations without choices that equal numbers of nodes rule out."""
    left = {job.name: dict(durations[job.name]) for job in fleet.jobs}
    for some in equal_counts(fleet):
        counts = set.intersection(*({choice.nodes for choice in left[name]} for name in some))
        for name in some:
            left[name] = {choice: took for choice, took in left[name].items() if choice.nodes in counts}
    return left


def keeps_pins(fleet: Fleet, schedule: Schedule) -> bool:
    """Return whether jobs with pinned starts leave what is asked of a schedule: nodes, order, jobs apart.

    Schedules of a fleet without pinned jobs are built so that they do.
    """
    pinned = [(job, schedule[job.name]) for job in fleet.jobs if job.start_min is not None]
    room, runs = fleet.room(), schedule.values()
    after = all(schedule[one].end_min <= run.start_min for job, run in pinned for one in job.after)
    return after and not (
        any(
            room[name] < used
            for _, run in pinned
            for name, used in _used_together(fleet, runs, run.start_min).items()
        )
        or any(
            schedule[one].start_min < schedule[other].end_min
            and schedule[other].start_min < schedule[one].end_min
            for one, other in (pairs_apart(fleet) if pinned else ())
        )
    )


def _used_together(fleet: Fleet, runs: Iterable[PlannedRun], minute: int) -> Mapping[str, int]:
    """Return how much of each resource the runs of one moment use."""
    found = dict[str, int]()
    for run in runs:
        if _runs_at(run, minute):
            for name, amount in fleet.uses(run.choice).items():
                found[name] = found.get(name, 0) + amount
    return found
