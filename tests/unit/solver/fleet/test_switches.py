"""Switches with short uplinks: which nodes a job may be on, what its share carries, and who shares."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.profiles.cluster import NodeGroup
from meshwright.profiles.inline import cluster_from_mapping
from meshwright.profiles.links import NodeLinks, SwitchLevel
from meshwright.solver.fleet.plan import FleetAnswer, Limits, jobs_without_plan, plan_fleet
from meshwright.solver.fleet.problem import (
    Fleet,
    FleetJob,
    NodeChoice,
    NodeKind,
    choices_of,
    nodes_of,
    sharing,
)

KIND = NodeKind(name="gpu", nodes=8, switches=(4, 4), switch_nodes=4, oversubscription=4.0)


def group(*, rail_only: bool = False) -> NodeGroup:
    (found,) = cluster_from_mapping({"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 8}]}).groups
    level = SwitchLevel(nodes=4, oversubscription=4.0)
    return replace(found, links=NodeLinks(levels=(level,), rail_only=rail_only, hosts=tuple("abcdefgh")))


@pytest.mark.parametrize(("nodes", "share"), [(4, 2), (4, 3), (6, 3), (6, 4), (8, 4)])
def test_a_share_carries_its_part_of_the_uplinks(nodes: int, share: int) -> None:
    """Four nodes of 8 GPUs at 50 GB/s with uplinks of a quarter: these carry 400 GB/s."""
    own = nodes_of(group(), NodeChoice("gpu", nodes, 0, (0, 1), share))
    assert own.links is not None
    (level,) = own.links.levels
    each = nodes // 2
    assert (own.num_nodes, level.nodes, own.links.hosts) == (nodes, each, ())
    assert each * 8 * 50e9 / level.oversubscription == pytest.approx(400e9 * share / 4)


def test_all_nodes_of_one_switch_and_the_rest_have_whole_uplinks() -> None:
    """A quarter of what four nodes send, under the switch of the rest too."""
    own = nodes_of(group(), NodeChoice("gpu", 6, 0, (0, 1), 4, 2))
    assert own.links is not None
    assert own.links.levels == (SwitchLevel(nodes=4, oversubscription=4.0),)


def test_one_node_under_each_switch_reaches_the_others_by_uplinks_alone() -> None:
    """It has a quarter of 400 GB/s for 8 GPUs: 12.5 GB/s each."""
    own = nodes_of(group(), NodeChoice("gpu", 2, 0, (0, 1), 1))
    assert own.links is None
    assert own.inter_node.bytes_per_s == pytest.approx(12.5e9)


def test_under_one_switch_or_with_all_that_it_sends_links_are_not_slower() -> None:
    """A node with all four shares of uplinks that are a quarter: as much as it sends."""
    for choice in (NodeChoice("gpu", 4, 0, (1,), 0), NodeChoice("gpu", 2, 0, (0, 1), 4)):
        own = nodes_of(group(rail_only=True), choice)
        assert own.links == NodeLinks(rail_only=True)
        assert own.inter_node == group().inter_node


def test_choices_are_sets_of_switches_with_room_and_shares_by_doubling() -> None:
    fleet = Fleet(kinds=(KIND,), jobs=())
    found = [one[3:5] for one in choices_of(fleet, FleetJob(name="a", node_counts=(2,)))]
    assert found == [((0,), 0), ((0, 1), 1), ((0, 1), 2), ((0, 1), 4), ((1,), 0)]
    assert [one[3:5] for one in choices_of(fleet, FleetJob(name="a", node_counts=(8,)))] == [((0, 1), 4)]
    five = [(one.under, one.uplinks) for one in choices_of(fleet, FleetJob(name="a", node_counts=(5,)))]
    assert five == [({0: 4, 1: 1}, 4), ({1: 4, 0: 1}, 4)]  # all of one, and the rest
    roles = FleetJob(name="a", node_counts=(2, 8), places_roles=True)
    assert [one[3:5] for one in choices_of(fleet, roles)] == [((0,), 0), ((1,), 0)]
    eight = replace(KIND, nodes=32, switches=(4,) * 8)
    sets = {one.switches for one in choices_of(Fleet(kinds=(eight,), jobs=()), FleetJob(name="a"))}
    assert {some for some in sets if len(some) == 4} == {(0, 1, 2, 3), (4, 5, 6, 7)}


class Shared:
    """Two jobs of four nodes, two under each switch: with half of the uplinks, and with all."""

    def __init__(self, half: int, whole: int) -> None:
        self.minutes = {2: half, 4: whole}

    def least_min(self, _job: str, choice: NodeChoice) -> int | None:
        return min(self.minutes.values()) if len(choice.switches) == 2 else None

    def exact_min(self, _job: str, choice: NodeChoice) -> int | None:
        return self.minutes[choice.uplinks]


def planned(half: int, whole: int) -> tuple[Fleet, FleetAnswer]:
    fleet = Fleet(kinds=(KIND,), jobs=tuple(FleetJob(name=name, node_counts=(4,)) for name in "ab"))
    source = Shared(half, whole)
    least, _ = jobs_without_plan(fleet, source, lambda job, name: f"/{job}/{name}")
    return fleet, plan_fleet(fleet, least, source, lambda job, name: f"/{job}/{name}", Limits(effort=1.0))


def test_jobs_share_uplinks_where_that_ends_sooner() -> None:
    """Side by side they take 15 minutes, one after the other 2 times 10."""
    fleet, answer = planned(half=15, whole=10)
    assert (answer.status, answer.objectives[1].value) == ("optimal", 15)
    assert [run.choice.uplinks for run in answer.schedule.values()] == [2, 2]
    assert sharing(fleet, answer.schedule) == (("a", "b"),)


def test_jobs_take_turns_where_half_of_the_uplinks_is_too_slow() -> None:
    """Side by side they would take 30 minutes."""
    fleet, answer = planned(half=30, whole=10)
    assert (answer.status, answer.objectives[1].value) == ("optimal", 20)
    assert sharing(fleet, answer.schedule) == ()
    assert answer.choices == 4  # two shares for each job: one set of switches is like any other
