"""Simple rules, as cluster owners use them: jobs one after the other, each as soon as there is room.

The order is that of arrival or of due dates; a local search moves single jobs in it. Their best schedule is
where CP-SAT begins, and is shown next to the answer.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

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
    keeps_pins,
    lateness_of,
    pairs_apart,
)

Taste = Literal["soonest", "cheapest"]  # the choice that ends first, or the cheapest that is least late
Fixed = Mapping[str, NodeChoice]


@dataclass(slots=True)
class _Usage:
    """Use of one resource over time: ``used[i]`` from ``times[i]`` to the next."""

    room: int
    times: list[int] = field(default_factory=lambda: [0])
    used: list[int] = field(default_factory=lambda: [0])

    def earliest(self, from_min: int, minutes: int, amount: int) -> int:
        """Return the first minute from which so much is free for so long."""
        times, used, room = self.times, self.used, self.room - amount
        at, start, last = bisect_right(times, from_min) - 1, from_min, len(times) - 1
        while True:
            if used[at] > room:
                start = times[at + 1]  # the last piece is free
            elif at == last or times[at + 1] >= start + minutes:
                return start
            at += 1

    def take(self, start: int, end: int, amount: int) -> None:
        for at in range(self._cut(start), self._cut(end)):
            self.used[at] += amount

    def _cut(self, minute: int) -> int:
        at = bisect_right(self.times, minute)
        if self.times[at - 1] == minute:
            return at - 1
        self.times.insert(at, minute)
        self.used.insert(at, self.used[at - 1])
        return at


class Builder:
    """Builds a schedule of a fleet from an order of its jobs."""

    def __init__(self, fleet: Fleet, durations: Durations) -> None:
        self.fleet, self.prices = fleet, fleet.prices()
        self.minutes = common_choices(fleet, durations)
        self.jobs = {job.name: job for job in fleet.jobs}
        self.apart = dict[str, list[str]]()
        for one, other in pairs_apart(fleet):
            self.apart.setdefault(one, []).append(other)
            self.apart.setdefault(other, []).append(one)
        choices = {one for own in self.minutes.values() for one in own}
        self.uses = {one: tuple(fleet.uses(one).items()) for one in choices}
        self.alike = {name: some for some in equal_counts(fleet) for name in some}

    def build(self, order: Sequence[str], taste: Taste = "soonest", fixed: Fixed | None = None) -> Schedule:
        """Return the schedule that places jobs in this order, each after those that it waits for.

        ``fixed``: choices of jobs that ``taste`` does not decide.
        """
        usage = {name: _Usage(room) for name, room in self.fleet.room().items()}
        placed = dict[str, PlannedRun]()
        for name in self._repaired(order):
            job = self.jobs[name]
            run = self._best(job, usage, placed, taste, None if fixed is None else fixed.get(name))
            for resource, amount in self.uses[run.choice]:
                usage[resource].take(run.start_min, run.end_min, amount)
            placed[name] = run
        return placed

    def rank(self, schedule: Schedule) -> tuple[bool, Score]:
        """Return what schedules are compared by: those that pinned starts rule out come last."""
        return not keeps_pins(self.fleet, schedule), Score.of(self.fleet, schedule)

    def _repaired(self, order: Sequence[str]) -> list[str]:
        """Return the order with pinned jobs first and each job after those that it waits for."""
        pinned = [name for name in order if self.jobs[name].start_min is not None]
        rest, done = [name for name in order if self.jobs[name].start_min is None], {*pinned}
        while rest:
            ready = next(name for name in rest if done.issuperset(self.jobs[name].after))
            rest.remove(ready)
            done.add(ready)
            pinned.append(ready)
        return pinned

    def _best(
        self, job: FleetJob, usage: Mapping[str, _Usage], placed: Schedule, taste: Taste,
        fixed: NodeChoice | None,
    ) -> PlannedRun:  # fmt: skip
        minutes = self.minutes[job.name]
        counts = {placed[one].choice.nodes for one in self.alike.get(job.name, ()) if one in placed}
        choices = [fixed] if fixed is not None else list(minutes)
        if counts:
            choices = [one for one in choices if one.nodes in counts] or [
                one for one in minutes if one.nodes in counts
            ]
        runs = (self._run(job, choice, minutes[choice], usage, placed) for choice in choices)
        return min(runs, key=lambda run: self._rank(job, run, taste))

    def _rank(self, job: FleetJob, run: PlannedRun, taste: Taste) -> tuple[int, ...]:
        cost = self.prices[run.choice.kind] * run.choice.nodes * run.minutes
        if taste == "soonest":
            return run.end_min, cost, run.choice.nodes
        return lateness_of(job, run.end_min), cost, run.end_min

    def _run(
        self, job: FleetJob, choice: NodeChoice, minutes: int, usage: Mapping[str, _Usage], placed: Schedule
    ) -> PlannedRun:
        if job.start_min is not None:
            return PlannedRun(choice, job.start_min, job.start_min + minutes)
        start = max([job.release_min, *(placed[one].end_min for one in job.after)])
        others = [placed[one] for one in self.apart.get(job.name, ()) if one in placed]
        while True:
            before = start
            for resource, amount in self.uses[choice]:
                start = usage[resource].earliest(start, minutes, amount)
            if start > before:  # a resource that was free then may not be now
                continue
            ends = [
                run.end_min for run in others if run.start_min < start + minutes and start < run.end_min
            ]
            if not ends:
                return PlannedRun(choice, start, start + minutes)
            start = max(ends)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The best schedule of one rule."""

    rule: str
    schedule: Schedule
    value: Score


def by_rules(
    fleet: Fleet,
    durations: Durations,
    *,
    orders: int,
    seed: int = 0,
    ended: Callable[[], bool] = lambda: False,
) -> tuple[RuleResult, ...]:
    """Return what arrival, due dates and a local search over so many orders come to, best last.

    The local search keeps the best schedule of all. Rules with schedules that pinned starts rule out are
    left out.
    """
    builder = Builder(fleet, durations)
    arrival = [job.name for job in sorted(fleet.jobs, key=lambda job: job.release_min)]
    due = [job.name for job in sorted(fleet.jobs, key=lambda job: (job.due_min is None, job.due_min or 0))]
    by_due = min((builder.build(due, taste) for taste in _TASTES), key=builder.rank)
    found = {"arrival": builder.build(arrival), "due date": by_due}
    start = min(found.values(), key=builder.rank)
    found["local search"] = local_search(builder, start, orders=orders, seed=seed, ended=ended)
    return tuple(
        RuleResult(rule, schedule, Score.of(fleet, schedule))
        for rule, schedule in found.items()
        if keeps_pins(fleet, schedule)
    )


_TASTES: tuple[Taste, ...] = ("soonest", "cheapest")


def local_search(
    builder: Builder,
    start: Schedule,
    *,
    orders: int,
    seed: int = 0,
    ended: Callable[[], bool] = lambda: False,
) -> Schedule:
    """Return the best of so many changed orders: one job moved, now and then with another number of nodes.

    A change that is not worse is kept.
    """
    draw = random.Random(seed)  # noqa: S311 - it keeps no secret
    order = sorted(start, key=lambda name: (start[name].start_min, start[name].end_min))
    fixed: dict[str, NodeChoice] = {name: run.choice for name, run in start.items()}
    best, value = start, builder.rank(start)
    for _ in range(orders if order else 0):
        if ended():
            break
        moved, choices = order[:], dict(fixed)
        name = moved.pop(draw.randrange(len(moved)))
        moved.insert(draw.randrange(len(order)), name)
        kind = draw.random()
        if kind < _FREE_ONE:
            choices.pop(name)
        elif kind < _DRAW_ONE:
            choices[name] = draw.choice(list(builder.minutes[name]))
        found = builder.build(moved, draw.choice(_TASTES), None if kind > _FREE_ALL else choices)
        if (worth := builder.rank(found)) <= value:
            best, value, order = found, worth, moved
            fixed = {one: run.choice for one, run in found.items()}
    return best


# Shares of changes: the choice of the moved job is open, is drawn; all choices are open.
_FREE_ONE, _DRAW_ONE, _FREE_ALL = 0.45, 0.75, 0.95
