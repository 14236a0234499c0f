"""Plans of small fleets are the best of all schedules, and bounds of any fleet hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.profiles.errors import InvalidProblemError
from meshwright.solver.fleet.bounds import bounds_of
from meshwright.solver.fleet.master import Master
from meshwright.solver.fleet.plan import FleetAnswer, Limits, jobs_without_plan, plan_fleet
from meshwright.solver.fleet.problem import (
    Fleet,
    FleetJob,
    NodeChoice,
    NodeKind,
    Schedule,
    Score,
    choices_of,
)
from meshwright.solver.fleet.rules import by_rules
from tests.draws import draws
from tests.property.fleet_judge import best_of_all, broken, worth

NODES, KIND = 4, "gpu"


@st.composite
def fleets(draw: st.DrawFn, most: int = 3) -> dict[str, dict[str, Any]]:
    """Jobs of up to three minutes on one to four nodes, with every kind of link between them."""
    names = [f"job-{at}" for at in range(draw(st.integers(1, most)))]
    jobs = dict[str, dict[str, Any]]()
    for at, name in enumerate(names):
        widths = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=2, unique=True))
        before = st.lists(st.sampled_from(names[:at]), max_size=1) if at else st.just([])
        jobs[name] = {
            "minutes": {width: draw(st.integers(1, 3)) for width in sorted(widths)},
            "release": draw(st.integers(0, 2)),
            "due": draw(st.none() | st.integers(3, 6)),
            "weight": draw(st.integers(1, 3)),
            "after": draw(before),
            "never_with": draw(before),
            "same": draw(st.sampled_from([None, *names[:at]])) if draw(st.booleans()) else None,
        }
    return jobs


class Given:
    """Durations that are given, with bounds that are shorter for every other choice."""

    def __init__(self, jobs: Mapping[str, Mapping[str, Any]]) -> None:
        self.jobs, self.searched = jobs, list[tuple[str, int]]()

    def least_min(self, job: str, choice: NodeChoice) -> int | None:
        took: int | None = self.jobs[job]["minutes"].get(choice.nodes)
        return None if took is None else max(1, took - choice.nodes % 2)

    def exact_min(self, job: str, choice: NodeChoice) -> int | None:
        self.searched.append((job, choice.nodes))
        return self.jobs[job]["minutes"][choice.nodes]  # type: ignore[no-any-return]


def fleet_of(jobs: Mapping[str, Mapping[str, Any]], nodes: int = NODES) -> Fleet:
    return Fleet(
        kinds=(NodeKind(name=KIND, nodes=nodes),),
        jobs=tuple(
            FleetJob(
                name=name, release_min=job["release"], due_min=job["due"], weight=job["weight"],
                node_counts=tuple(job["minutes"]), after=tuple(job["after"]),
                never_with=tuple(job["never_with"]), as_many_nodes_as=job["same"],
                start_min=job.get("start"),
            )
            for name, job in jobs.items()
        ),
    )  # fmt: skip


def at(job: str, name: str) -> str:
    return f"/{job}/{name}"


def planned(jobs: Mapping[str, Mapping[str, Any]], effort: float = 5.0, seed: int = 0) -> FleetAnswer:
    fleet, source = fleet_of(jobs), Given(jobs)
    least, faults = jobs_without_plan(fleet, source, at)
    assert not faults
    return plan_fleet(fleet, least, source, at, Limits(effort=effort, seed=seed))


def placed(schedule: Schedule) -> dict[str, tuple[int, int]]:
    return {name: (run.choice.nodes, run.start_min) for name, run in schedule.items()}


@given(fleets())
@settings(max_examples=draws(12, of_more=40), deadline=None)
def test_small_fleets_get_the_best_of_all_schedules(jobs: dict[str, dict[str, Any]]) -> None:
    best = best_of_all(jobs, NODES)
    if best is None:  # equal numbers of nodes that no job has in common
        with pytest.raises(InvalidProblemError, match="as_many_nodes_as"):
            planned(jobs)
        return
    answer = planned(jobs)
    assert answer.status == "optimal"
    assert list(broken(jobs, NODES, placed(answer.schedule))) == []
    assert worth(jobs, placed(answer.schedule)) == best
    assert tuple(one.value for one in answer.objectives) == best


DRAWS_W = {0: 10, 5: 6}  # of one node, by the limit of its GPUs


class Powered(Given):
    """The same, with GPUs that may be limited."""

    def least_min(self, job: str, choice: NodeChoice) -> int | None:
        took: int | None = self.jobs[job]["minutes"].get((KIND, choice.nodes, choice.limit_w))
        return None if took is None else max(1, took - choice.nodes % 2)

    def exact_min(self, job: str, choice: NodeChoice) -> int | None:
        return self.jobs[job]["minutes"][KIND, choice.nodes, choice.limit_w]  # type: ignore[no-any-return]


@given(fleets(2), st.integers(24, 60), st.data())
@settings(max_examples=draws(8, of_more=25), deadline=None)
def test_jobs_that_share_a_limit_of_power_get_the_best_of_all_schedules(
    jobs: dict[str, dict[str, Any]], most_w: int, data: st.DataObject
) -> None:
    fleet = fleet_of(jobs)
    fleet = replace(fleet, kinds=(replace(fleet.kinds[0], draws_w=DRAWS_W),), most_w=most_w)
    for job in jobs.values():  # a limited run takes as long or longer
        own = {
            (KIND, width, limit): took + (data.draw(st.integers(0, 2)) if limit else 0)
            for width, took in job["minutes"].items() for limit in DRAWS_W
        }  # fmt: skip
        watts = {width: width[1] * DRAWS_W[width[2]] for width in own}
        job |= {"minutes": {width: took for width, took in own.items() if watts[width] <= most_w}}
        job |= {"watts": watts}
    best = best_of_all(jobs, {KIND: NODES}, most_w=most_w)
    source = Powered(jobs)
    least, faults = jobs_without_plan(fleet, source, at)
    if best is None:
        if not faults:
            with pytest.raises(InvalidProblemError, match="as_many_nodes_as"):
                plan_fleet(fleet, least, source, at, Limits(effort=5.0))
        return
    answer = plan_fleet(fleet, least, source, at, Limits(effort=5.0))
    shown = {
        name: ((KIND, run.choice.nodes, run.choice.limit_w), run.start_min)
        for name, run in answer.schedule.items()
    }
    assert answer.status == "optimal"
    assert list(broken(jobs, {KIND: NODES}, shown, most_w)) == []
    assert worth(jobs, shown) == best == tuple(one.value for one in answer.objectives)


EACH = 2  # nodes under a switch, of two


class UnderSwitches(Given):
    """The same, under switches with short uplinks."""

    def exact_min(self, job: str, choice: NodeChoice) -> int | None:
        return self.jobs[job]["minutes"].get(width_of(choice))  # type: ignore[no-any-return]

    def least_min(self, job: str, choice: NodeChoice) -> int | None:
        took = self.exact_min(job, choice)
        return None if took is None else max(1, took - choice.nodes % 2)


def width_of(choice: NodeChoice) -> tuple[str, int, tuple[tuple[int, int], ...], int]:
    return KIND, choice.nodes, tuple(sorted(choice.under.items())), choice.uplinks


def under_switches(data: st.DataObject, numbers: list[int], times: float) -> dict[Any, int]:
    """Return minutes of every way to be under two switches: smaller shares of uplinks are never faster.

    A job of n nodes under each of both has a share of n, or all that it can use.
    """
    found = dict[Any, int]()
    for number in numbers:
        took = data.draw(st.integers(1, 3))
        if number == 1 or (
            number == EACH and data.draw(st.sampled_from([False, False, True]))
        ):  # else it has no plan there
            found |= {(KIND, number, ((switch, number),), 0): took for switch in range(2)}
        elif number % 2:  # all nodes of one, and the rest under the other
            for first in (EACH, number - EACH):
                found[KIND, number, ((0, first), (1, number - first)), EACH] = took
        if number % 2 == 0:
            own = number // 2
            for share in sorted({own, min(EACH, math.ceil(own * times))}, reverse=True):
                took += data.draw(st.integers(0, 2))
                found[KIND, number, ((0, own), (1, own)), share] = took
    return found


@given(fleets(2), st.sampled_from([1.5, 2.0, 4.0]), st.data())
@settings(max_examples=draws(8, of_more=25), deadline=None)
def test_jobs_that_share_uplinks_get_the_best_of_all_schedules(
    jobs: dict[str, dict[str, Any]], times: float, data: st.DataObject
) -> None:
    """Every start under every set of switches with every share of their uplinks is tried."""
    for job in jobs.values():
        numbers = data.draw(st.sampled_from([[2], [2], [2], [2, 4], [1], [3]]))
        job["minutes"] = under_switches(data, numbers, times)
    kind = NodeKind(
        name=KIND, nodes=2 * EACH, switches=(EACH, EACH), switch_nodes=EACH, oversubscription=times
    )
    plain = fleet_of({name: {**job, "minutes": {1: 1}} for name, job in jobs.items()})
    fleet = Fleet(
        kinds=(kind,),
        jobs=tuple(
            replace(one, node_counts=tuple({width[1] for width in jobs[one.name]["minutes"]}))
            for one in plain.jobs
        ),
    )
    assert all(
        {width_of(one) for one in choices_of(fleet, job) if one.uplinks}
        == {width for width in jobs[job.name]["minutes"] if width[-1]}
        for job in fleet.jobs
    )
    source = UnderSwitches(jobs)
    least, _ = jobs_without_plan(fleet, source, at)
    best = best_of_all(jobs, {KIND: 2 * EACH}, each=EACH)
    if best is None:
        with pytest.raises(InvalidProblemError, match="as_many_nodes_as"):
            plan_fleet(fleet, least, source, at, Limits(effort=5.0))
        return
    answer = plan_fleet(fleet, least, source, at, Limits(effort=5.0))
    shown = {name: (width_of(run.choice), run.start_min) for name, run in answer.schedule.items()}
    assert answer.status == "optimal"
    assert list(broken(jobs, {KIND: 2 * EACH}, shown, each=EACH)) == []
    assert worth(jobs, shown) == best == tuple(one.value for one in answer.objectives)
    for rule in answer.rules:
        ruled = {name: (width_of(run.choice), run.start_min) for name, run in rule.schedule.items()}
        assert list(broken(jobs, {KIND: 2 * EACH}, ruled, each=EACH)) == [], rule.rule


@given(fleets(), st.data())
@settings(max_examples=draws(12, of_more=40), deadline=None)
def test_small_fleets_with_pinned_starts_get_the_best_of_all_schedules(
    jobs: dict[str, dict[str, Any]], data: st.DataObject
) -> None:
    """A fleet that no schedule answers at these starts is refused."""
    for job in jobs.values():
        start = data.draw(st.none() | st.integers(0, 3))
        if start is not None:
            job |= {"start": start, "release": start}
    best = best_of_all(jobs, NODES)
    if best is None:
        with pytest.raises(InvalidProblemError, match=r"start_hours|as_many_nodes_as"):
            planned(jobs)
        return
    answer = planned(jobs)
    assert answer.status == "optimal"
    assert list(broken(jobs, NODES, placed(answer.schedule))) == []
    assert tuple(one.value for one in answer.objectives) == best


KINDS, PRICES = {"fast": 2, "slow": 3}, {"fast": 5, "slow": 2}


class OfKinds(Given):
    """The same, on nodes of two kinds."""

    def least_min(self, job: str, choice: NodeChoice) -> int | None:
        took: int | None = self.jobs[job]["minutes"].get((choice.kind, choice.nodes))
        return None if took is None else max(1, took - choice.nodes % 2)

    def exact_min(self, job: str, choice: NodeChoice) -> int | None:
        return self.jobs[job]["minutes"][choice.kind, choice.nodes]  # type: ignore[no-any-return]


@given(fleets(), st.data())
@settings(max_examples=draws(8, of_more=25), deadline=None)
def test_small_fleets_on_nodes_of_two_kinds_get_the_best_of_all_schedules(
    jobs: dict[str, dict[str, Any]], data: st.DataObject
) -> None:
    """A job runs on nodes of one kind; kinds have nodes, durations and prices of their own."""
    every = [(kind, number) for kind, most in KINDS.items() for number in range(1, most + 1)]
    for job in jobs.values():
        widths = data.draw(st.lists(st.sampled_from(every), min_size=1, max_size=2, unique=True))
        job["minutes"] = {one: data.draw(st.integers(1, 3)) for one in sorted(widths)}
    fleet = Fleet(
        kinds=tuple(NodeKind(name=name, nodes=most, price=PRICES[name]) for name, most in KINDS.items()),
        jobs=tuple(
            replace(one, node_counts=(), kinds=tuple({kind for kind, _ in jobs[one.name]["minutes"]}))
            for one in fleet_of({name: {**job, "minutes": {1: 1}} for name, job in jobs.items()}).jobs
        ),
    )
    source = OfKinds(jobs)
    least, _ = jobs_without_plan(replace(fleet, jobs=_with_counts(fleet, jobs)), source, at)
    best = best_of_all(jobs, KINDS, PRICES)
    if best is None:
        with pytest.raises(InvalidProblemError, match="as_many_nodes_as"):
            plan_fleet(fleet, least, source, at, Limits())
        return
    answer = plan_fleet(fleet, least, source, at, Limits())
    found = {
        name: ((run.choice.kind, run.choice.nodes), run.start_min) for name, run in answer.schedule.items()
    }
    assert answer.status == "optimal"
    assert list(broken(jobs, KINDS, found)) == []
    assert worth(jobs, found, PRICES) == best == tuple(one.value for one in answer.objectives)


def _with_counts(fleet: Fleet, jobs: Mapping[str, Mapping[str, Any]]) -> tuple[FleetJob, ...]:
    return tuple(
        replace(one, node_counts=tuple(sorted({number for _, number in jobs[one.name]["minutes"]})))
        for one in fleet.jobs
    )


@given(fleets())
@settings(max_examples=draws(12, of_more=40), deadline=None)
def test_bounds_hold_for_the_best_of_all_schedules(jobs: dict[str, dict[str, Any]]) -> None:
    best = best_of_all(jobs, NODES)
    if best is None:
        return
    minutes = {
        name: {NodeChoice(KIND, width): took for width, took in job["minutes"].items()}
        for name, job in jobs.items()
    }
    fleet = fleet_of(jobs)
    known = by_rules(fleet, minutes, orders=0)[0].value
    least = bounds_of(fleet, minutes, known, rounds=50)
    assert least.lateness <= best[0]
    assert least.last_end_min <= best[1]
    assert least.cost <= best[2]


@given(fleets(most=8))
@settings(max_examples=draws(7, of_more=20), deadline=None)
def test_simple_rules_and_neighbourhoods_break_nothing(jobs: dict[str, dict[str, Any]]) -> None:
    minutes = {
        name: {NodeChoice(KIND, width): took for width, took in job["minutes"].items()}
        for name, job in jobs.items()
    }
    fleet = fleet_of(jobs)
    source = Given(jobs)
    least, _ = jobs_without_plan(fleet, source, at)
    try:
        plan_fleet(fleet, least, source, at, Limits(effort=0.5))
    except InvalidProblemError:
        return  # no common number of nodes
    rules = by_rules(fleet, minutes, orders=30)
    for one in rules:
        assert list(broken(jobs, NODES, placed(one.schedule))) == [], one.rule
    improved = Master(fleet).improve(minutes, rules[0].schedule, Score(0, 0, 0), effort=0.2)
    assert list(broken(jobs, NODES, placed(improved))) == []
    assert Score.of(fleet, improved) <= rules[0].value


def test_the_same_seed_gives_the_same_schedule() -> None:
    jobs: dict[str, dict[str, Any]] = {
        f"job-{one}": {
            "minutes": {1: 9 + one, 2: 5 + one // 2, 4: 3 + one // 3}, "release": one % 3, "due": 8 + one,
            "weight": 1 + one % 3, "after": [], "never_with": [], "same": None,
        }
        for one in range(8)
    }  # fmt: skip
    first, again = planned(jobs, effort=0.5, seed=3), planned(jobs, effort=0.5, seed=3)
    assert first.schedule == again.schedule
    assert first.objectives == again.objectives
