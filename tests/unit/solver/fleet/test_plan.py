"""Fleets: what is searched, what is proved, and which faults name a job and a field."""

from __future__ import annotations

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.solver.fleet.bounds import bounds_of
from meshwright.solver.fleet.plan import FleetAnswer, Limits, jobs_without_plan, plan_fleet
from meshwright.solver.fleet.problem import (
    Fleet,
    FleetJob,
    NodeChoice,
    NodeKind,
    Score,
    choices_of,
    faults_of,
    without,
)
from meshwright.solver.fleet.rules import by_rules

ONE, TWO, FOUR = (NodeChoice("gpu", nodes) for nodes in (1, 2, 4))


class Durations:
    """Exact minutes, with bounds a tenth below them."""

    def __init__(self, minutes: dict[str, dict[NodeChoice, int]]) -> None:
        self.minutes, self.searched = minutes, list[tuple[str, NodeChoice]]()

    def least_min(self, job: str, choice: NodeChoice) -> int | None:
        took = self.minutes[job].get(choice)
        return None if took is None else took * 9 // 10

    def exact_min(self, job: str, choice: NodeChoice) -> int | None:
        self.searched.append((job, choice))
        return self.minutes[job].get(choice)


def at(job: str, name: str) -> str:
    return f"/{job}/{name}"


def planned(fleet: Fleet, source: Durations) -> FleetAnswer:
    least, faults = jobs_without_plan(fleet, source, at)
    assert not faults
    return plan_fleet(fleet, least, source, at, Limits(effort=2.0))


def on_four(*jobs: FleetJob) -> Fleet:
    return Fleet(kinds=(NodeKind(name="gpu", nodes=4),), jobs=jobs)


def test_only_what_the_master_picks_is_searched() -> None:
    """Four nodes are four times as fast as one, at 400 node-minutes each; both jobs are due after 110."""
    minutes = {ONE: 400, TWO: 200, FOUR: 100}
    source = Durations({"first": minutes, "second": minutes})
    due = [FleetJob(name=name, due_min=210) for name in ("first", "second")]
    answer = planned(on_four(*due), source)
    assert answer.status == "optimal"
    assert [one.value for one in answer.objectives] == [0, 200, 800]
    assert len(source.searched) == answer.searched < answer.choices == 6


def test_lateness_comes_before_the_last_end() -> None:
    """The urgent job first: none is late. The other order ends as soon and is 100 min late."""
    source = Durations({"long": {FOUR: 100}, "urgent": {FOUR: 50}})
    fleet = on_four(
        FleetJob(name="long", due_min=150, node_counts=(4,)),
        FleetJob(name="urgent", due_min=50, node_counts=(4,)),
    )
    answer = planned(fleet, source)
    assert answer.schedule["urgent"].start_min == 0
    assert answer.schedule["long"].start_min == 50
    assert [one.value for one in answer.objectives] == [0, 150, 600]


def test_a_pinned_job_stays_where_it_runs() -> None:
    source = Durations({"runs": {TWO: 60}, "waits": {FOUR: 30}})
    fleet = on_four(
        FleetJob(name="runs", node_counts=(2,), start_min=0), FleetJob(name="waits", node_counts=(4,))
    )
    answer = planned(fleet, source)
    assert answer.schedule["runs"].start_min == 0
    assert answer.schedule["waits"].start_min == 60


def test_each_kind_of_node_has_its_own_room() -> None:
    """Two kinds of two nodes: both jobs run at once, the short one on the faster kind."""
    fast, slow = NodeChoice("fast", 2), NodeChoice("slow", 2)
    source = Durations({"a": {fast: 10, slow: 20}, "b": {fast: 30, slow: 60}})
    kinds = (NodeKind(name="fast", nodes=2), NodeKind(name="slow", nodes=2))
    answer = planned(Fleet(kinds=kinds, jobs=(FleetJob(name="a"), FleetJob(name="b"))), source)
    assert answer.schedule["a"].choice == slow
    assert answer.schedule["b"].choice == fast
    assert answer.objectives[1].value == 30


def test_the_bound_on_lateness_sees_that_nodes_are_short() -> None:
    """Ten jobs of 60 min on all four nodes, due after 60: ends at 60, 120, … are 60 * (0 + … + 9) late."""
    jobs = [FleetJob(name=f"job-{one}", due_min=60, node_counts=(4,)) for one in range(10)]
    fleet = on_four(*jobs)
    minutes = {job.name: {FOUR: 60} for job in jobs}
    value = by_rules(fleet, minutes, orders=0)[-1].value
    assert value.lateness == 60 * 45
    least = bounds_of(fleet, minutes, value, rounds=400)
    assert 0.75 * value.lateness <= least.lateness <= value.lateness
    assert least.last_end_min == 600


@pytest.mark.parametrize(
    ("jobs", "pointer", "message"),
    [
        ([FleetJob(name="a", least_nodes=5)], "/a/least_nodes", "more than the cluster has"),
        ([FleetJob(name="a", as_many_nodes_as="a")], "/a/as_many_nodes_as", "cannot name itself"),
        ([FleetJob(name="a", release_min=60, due_min=60)], "/a/release_hours", "released after 1 h"),
        ([FleetJob(name="a", after=("b",))], "/a/after", 'unknown "b"'),
        ([FleetJob(name="a", most_nodes=1, least_nodes=2)], "/a/most_nodes", "fewer than least_nodes"),
        ([FleetJob(name="a", node_counts=(8,))], "/a/node_counts", "none of 8 nodes is allowed"),
        (
            [FleetJob(name="a", after=("b",)), FleetJob(name="b", after=("a",))], "/a/after",
            "a after b after a is a cycle",
        ),
    ],
)  # fmt: skip
def test_a_fault_names_the_job_and_the_field(jobs: list[FleetJob], pointer: str, message: str) -> None:
    (error, *_) = faults_of(on_four(*jobs), at)["a"]
    assert error.pointer == pointer
    assert message in error.message


def test_a_job_without_a_plan_is_named_with_the_numbers_tried() -> None:
    fleet = on_four(FleetJob(name="a"), FleetJob(name="b"))
    _, faults = jobs_without_plan(fleet, Durations({"a": {ONE: 1}, "b": {}}), at)
    assert list(faults) == ["b"]
    assert faults["b"].message == "no plan fits on 1, 2, 4 nodes"


def test_a_search_may_find_that_a_job_has_no_plan() -> None:
    class Optimistic(Durations):
        def exact_min(self, job: str, choice: NodeChoice) -> int | None:
            return None if job == "b" else super().exact_min(job, choice)

    source = Optimistic({"a": {ONE: 1}, "b": {ONE: 1, TWO: 1}})
    with pytest.raises(InvalidProblemError, match=r"b\.problem: no plan fits on 1, 2, 4 nodes"):
        planned(on_four(FleetJob(name="a"), FleetJob(name="b")), source)


def test_jobs_that_wait_for_a_job_that_is_left_out_are_left_out() -> None:
    fleet = on_four(
        FleetJob(name="a"), FleetJob(name="b", after=("a",)), FleetJob(name="c", never_with=("a",))
    )
    left, followers = without(fleet, ["a"])
    assert [job.name for job in left.jobs] == ["c"]
    assert left.jobs[0].never_with == ()
    assert followers == ("b",)


def test_pinned_jobs_cannot_hold_more_nodes_than_there_are() -> None:
    source = Durations({"a": {TWO: 10}, "b": {FOUR: 10}})
    fleet = on_four(
        FleetJob(name="a", node_counts=(2,), start_min=0), FleetJob(name="b", node_counts=(4,), start_min=5)
    )
    with pytest.raises(InvalidProblemError, match="a, b are pinned to 6 nodes at the same time"):
        planned(fleet, source)


def test_pinned_jobs_that_overlap_take_no_more_nodes_than_there_are() -> None:
    """From minute 5 to 10 "b" has three of four nodes, so that "a" takes one, although two are faster."""
    source = Durations({"a": {ONE: 20, TWO: 10}, "b": {NodeChoice("gpu", 3): 5}})
    fleet = on_four(
        FleetJob(name="a", node_counts=(1, 2), start_min=0),
        FleetJob(name="b", node_counts=(3,), start_min=5),
    )
    answer = planned(fleet, source)
    assert answer.status == "optimal"
    assert {name: (run.choice, run.end_min) for name, run in answer.schedule.items()} == {
        "a": (ONE, 20),
        "b": (NodeChoice("gpu", 3), 10),
    }


def test_a_job_pinned_before_one_that_it_waits_for_can_end_is_refused() -> None:
    source = Durations({"first": {ONE: 60}, "second": {ONE: 60}})
    fleet = on_four(FleetJob(name="first"), FleetJob(name="second", after=("first",), start_min=30))
    with pytest.raises(
        InvalidProblemError, match="no schedule found that keeps the pinned starts of second"
    ) as no:
        planned(fleet, source)
    assert no.value.errors[0].pointer == "/second/start_hours"


def test_usual_counts_are_powers_of_two_and_both_ends() -> None:
    many = Fleet(kinds=(NodeKind(name="gpu", nodes=24),), jobs=())
    assert [one.nodes for one in choices_of(many, FleetJob(name="a", least_nodes=3))] == [3, 4, 8, 16, 24]
    fleet = on_four()
    assert choices_of(fleet, FleetJob(name="a", most_nodes=3)) == (ONE, TWO, NodeChoice("gpu", 3))


def test_values_are_compared_in_the_order_of_the_objectives() -> None:
    assert Score(1, 9, 9) < Score(2, 0, 0)
    assert Score(1, 1, 9) < Score(1, 2, 0)
