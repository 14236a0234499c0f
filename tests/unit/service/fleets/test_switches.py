"""Fleets under switches with short uplinks, as files state them, queue them and plan them again."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.fleets.files import ScheduledFleet, start_list
from meshwright.service.fleets.request import FleetRequest, read_fleet
from meshwright.service.fleets.running import planned_again, read_state
from meshwright.solver.fleet.durations import PlannedDurations
from meshwright.solver.fleet.plan import jobs_without_plan
from meshwright.solver.fleet.problem import NodeChoice, PlannedRun, choices_of

PROBLEM = {
    "model": {"name": "llama-3.1-8b"}, "workload": {"global_batch_size": 64, "seq_length": 4096},
    "launcher": "megatron-lm",
}  # fmt: skip
LEVELS = [{"nodes": 2, "oversubscription": 4}]


def fleet(links: dict[str, Any], *jobs: dict[str, Any], nodes: int = 4) -> dict[str, Any]:
    group = {"gpu": "h100-sxm-80gb", "num_nodes": nodes, "links": links}
    named = jobs or ({"name": "a"}, {"name": "b"})
    return {
        "cluster": {"groups": [group]},
        "jobs": [{"problem": PROBLEM, "steps": 1000, **job} for job in named],
    }


@pytest.mark.parametrize(
    ("links", "nodes", "pointer", "words"),
    [
        ({"bytes_per_s": [[0, 6e9], [6e9, 0]]}, 2, "bytes_per_s", "a fleet knows switches alone"),
        (
            {"levels": [*LEVELS, {"nodes": 4, "oversubscription": 2}]}, 8, "levels/1",
            "one level of switches",
        ),
    ],
)  # fmt: skip
def test_links_that_are_no_switches_of_one_level_are_refused(
    links: dict[str, Any], nodes: int, pointer: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError) as fault:
        read_fleet(fleet(links, nodes=nodes))
    (error,) = fault.value.errors
    assert error.pointer == f"/cluster/groups/0/links/{pointer}"
    assert words in error.sentence()


@pytest.mark.parametrize(
    "level",
    [{"nodes": 2, "oversubscription": 1}, {"nodes": 4, "oversubscription": 9}],
)
def test_uplinks_that_are_not_short_are_no_resource(level: dict[str, Any]) -> None:
    """They carry all that their nodes send, or all nodes are under one switch."""
    (kind,) = read_fleet(fleet({"levels": [level]})).fleet.kinds
    assert kind.switches == ()


def request(**links: object) -> FleetRequest:
    return read_fleet(fleet({"levels": LEVELS, **links}))


def test_slurm_is_told_the_switches_and_the_hosts_of_others() -> None:
    read = request(hosts=["n0", "n1", "n2", "n3"])
    runs = {
        "a": PlannedRun(NodeChoice("h100-sxm-80gb", 2, 0, (1,), 0), 0, 60),
        "b": PlannedRun(NodeChoice("h100-sxm-80gb", 4, 0, (0, 1), 2), 60, 90),
    }

    class Named:
        plan_id = "0123"

    text = start_list(
        ScheduledFleet(request=read, schedule=runs, plans={"a": Named(), "b": Named()}),  # type: ignore[dict-item]
        [*read.fleet.jobs],
    )
    assert "--begin=now --switches=1 --exclude=n0,n1 " in text
    assert "--begin=now+60minutes --switches=2 " in text


def test_a_running_job_stays_under_its_switches_and_lost_nodes_are_missing_there() -> None:
    state = {
        "now_hours": 1, "lost_nodes": {"1": 1},
        "jobs": {"a": {"nodes": 2, "steps_done": 400, "switches": {"0": 2}}},
    }  # fmt: skip
    left = planned_again(request(), read_state(state, request()))
    (kind,), (a, b) = left.fleet.kinds, left.fleet.jobs
    assert (kind.nodes, kind.switches, kind.switch_nodes) == (3, (2, 1), 2)
    assert [one[3:5] for one in choices_of(left.fleet, a)] == [((0,), 0)]
    assert {one.switches for one in choices_of(left.fleet, b) if one.nodes == 2} == {(0,), (0, 1)}


@pytest.mark.parametrize(
    ("state", "pointer", "words"),
    [
        ({"lost_nodes": 1}, "/lost_nodes", "under which switch"),
        ({"lost_nodes": {"2": 1}}, "/lost_nodes/2", "unknown field"),
        ({"jobs": {"a": {"nodes": 2}}}, "/jobs/a/switches", "0 to 1, as many under each"),
        (
            {"jobs": {"a": {"nodes": 4, "switches": {"0": 2}}}}, "/jobs/a/switches",
            "2 under switch 0: no plan has 4 nodes so",
        ),
        ({"jobs": {"a": {"nodes": 4, "switches": {}}}}, "/jobs/a/switches", "many of the 4 nodes"),
        ({"lost_nodes": {"0": 2, "1": 2}}, "/lost_nodes", "no node is left. Allowed: 3 nodes at most"),
        (
            {"jobs": {"a": {"nodes": 2, "switches": {"0": 1, "1": 1}, "uplinks": 0.7}}}, "/jobs/a/uplinks",
            "Allowed: 0.5, 1",
        ),
        (
            {"lost_nodes": {"0": 1}, "jobs": {"a": {"nodes": 2, "switches": {"0": 2}}}}, "/jobs",
            "hold 2 of 1 nodes under switch 0",
        ),
    ],
)  # fmt: skip
def test_a_state_names_what_is_wrong_with_its_switches(
    state: dict[str, Any], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError) as fault:
        planned_again(request(), read_state({"now_hours": 1, **state}, request()))
    (error,) = fault.value.errors
    assert error.pointer == pointer
    assert words in error.sentence()


@pytest.mark.parametrize(
    ("under", "uplinks", "held"),
    [
        ({"0": 3, "2": 3}, 1.0, ((0, 2), 3)),  # of six switches a plan has neighbours, Slurm has any
        ({"1": 3, "2": 3}, 1.0, ((1, 2), 3)),
        ({"4": 3, "1": 2}, None, ((4, 1), 3)),
        ({"0": 1, "3": 1}, 0.333333, ((0, 3), 1)),  # as refusals show shares
        ({"0": 1, "3": 1}, 0.67, ((0, 3), 2)),  # as tables do
    ],
)
def test_a_running_job_may_be_under_any_switches(
    under: dict[str, int], uplinks: float | None, held: tuple[tuple[int, ...], int]
) -> None:
    read = read_fleet(fleet({"levels": [{"nodes": 3, "oversubscription": 4}]}, {"name": "a"}, nodes=18))
    own = {"nodes": sum(under.values()), "switches": under}
    own |= {} if uplinks is None else {"uplinks": uplinks}
    left = planned_again(read, read_state({"now_hours": 0.1, "jobs": {"a": own}}, read))
    assert [one[3:5] for one in choices_of(left.fleet, left.fleet.jobs[0])] == [held]


@pytest.mark.parametrize("counts", [{"nodes": 3}, {"node_counts": [3]}])
def test_roles_that_no_switch_has_room_for_are_refused_by_their_field(counts: dict[str, Any]) -> None:
    roles = {
        "kind": "post_training", "model": {"name": "llama-3.2-1b"},
        "algorithm": {"name": "grpo", "prompts": 64, "responses": 16},
        "lengths": {"prompt": 200, "mean": 1500, "max": 4096}, "launcher": "verl",
    }  # fmt: skip
    read = read_fleet(fleet({"levels": LEVELS}, {"name": "a", "problem": roles, **counts}))
    durations = PlannedDurations(jobs={}, groups={}, profile_of=lambda _: pytest.fail("nothing is priced"))
    _, faults = jobs_without_plan(read.fleet, durations, read.at)
    assert faults["a"].pointer == f"/jobs/0/{next(iter(counts))}"
    assert "stay under one switch" in faults["a"].sentence()
