"""Paces of groups on links that differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.cluster import LinkSpec, NodeGroup
from meshwright.profiles.collectives.collectives import Lines
from meshwright.profiles.collectives.measured import MeasuredCurve, MeasuredLink
from meshwright.profiles.links import KINDS, NodeLinks, SwitchLevel
from meshwright.profiles.profile import default_profile
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.links import LinkTable, flows_of, paces_of
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.splits import even_split
from tests.builders import a_cluster, a_moe_model, a_problem

RATE = 50e9


def on_links(links: NodeLinks, *, num_nodes: int = 4, **changes: object) -> Problem:
    cluster = a_cluster(num_nodes=num_nodes)
    group: NodeGroup = replace(cluster.groups[0], links=links)
    return replace(a_problem(), cluster=replace(cluster, groups=(group,)), **changes)  # type: ignore[arg-type]


def a_mesh(tp: int, pp: int, dp: int, **changes: object) -> Configuration:
    own = Configuration(
        tensor_parallel_size=tp, sequence_parallel=tp > 1, pipeline_parallel_size=pp,
        data_parallel_size=dp, num_microbatches=256 // dp, zero_stage=1, zero_shard_size=dp,
        pipeline_schedule="1f1b" if pp > 1 else "none", stage_layers=even_split(80, pp),
    )  # fmt: skip
    return replace(own, **changes)  # type: ignore[arg-type]


def rates(slow: dict[tuple[int, int], float], num_nodes: int = 4) -> NodeLinks:
    matrix = np.full((num_nodes, num_nodes), RATE)
    for (a, b), rate in slow.items():
        matrix[a, b] = matrix[b, a] = rate
    return NodeLinks(bytes_per_s=tuple(map(tuple, matrix.tolist())))


def shares(problem: Problem, config: Configuration) -> dict[str, float]:
    paces = paces_of(problem, config)
    return {kind: pace.share for kind, pace in zip(KINDS, paces, strict=True) if pace.share != 1.0}


def test_a_ring_goes_at_its_slowest_link() -> None:
    # dp = 4 over nodes 0-1-2-3-0: the link 0-2 is not part of the ring, 1-2 is
    mesh = a_mesh(8, 1, 4)
    assert shares(on_links(rates({(0, 2): 10e9})), mesh) == {}
    assert shares(on_links(rates({(1, 2): 10e9})), mesh) == {"data": pytest.approx(0.2)}


def test_stages_and_replicas_cross_links_of_their_own() -> None:
    # ranks tp 8, dp 2, pp 2: replicas on nodes 0-1 and 2-3, stages on 0-2 and 1-3
    mesh = a_mesh(8, 2, 2)
    assert shares(on_links(rates({(2, 3): 25e9})), mesh) == {"data": pytest.approx(0.5)}
    assert shares(on_links(rates({(1, 3): 25e9})), mesh) == {"stages": pytest.approx(0.5)}
    assert shares(on_links(rates({(0, 3): 25e9, (1, 2): 25e9})), mesh) == {}


def test_the_order_of_nodes_says_who_takes_which_place() -> None:
    links = replace(rates({(1, 2): 10e9}), order=(1, 0, 2, 3))  # ring 1-0-2-3-1 leaves 1-2 out
    assert shares(on_links(links), a_mesh(8, 1, 4)) == {}


def test_an_exchange_goes_at_the_mean_link_of_its_slowest_sender() -> None:
    problem = on_links(rates({(0, 1): 10e9}, 2), num_nodes=2, model=a_moe_model())
    mesh = a_mesh(1, 1, 16, expert_parallel_size=8, stage_layers=(32,))
    assert shares(problem, mesh) == {"data": pytest.approx(0.2)}  # experts stay inside nodes
    wide = a_mesh(1, 1, 16, expert_parallel_size=16, stage_layers=(32,))
    assert shares(problem, wide)["expert"] == pytest.approx(0.2)


def test_an_oversubscribed_switch_slows_what_leaves_it() -> None:
    # two nodes under a switch at 4:1 carry 2 * 8 / 4 = 4 GPUs; a ring over 4 nodes of tp 8 leaves each
    # switch once with the 8 groups of one rail each: 8 GPUs send at once, at half the network's rate
    links = NodeLinks(levels=(SwitchLevel(nodes=2, oversubscription=4.0),))
    assert shares(on_links(links), a_mesh(8, 1, 4)) == {"data": pytest.approx(0.5)}
    # in the order 0-2-1-3 every link leaves: 16 GPUs send, at a quarter
    mixed = replace(links, order=(0, 2, 1, 3))
    assert shares(on_links(mixed), a_mesh(8, 1, 4)) == {"data": pytest.approx(0.25)}


def test_slow_links_that_a_mesh_crosses_lengthen_its_step() -> None:
    mesh = a_mesh(8, 2, 2)
    even = on_links(rates({}))
    profile = default_profile(even.cluster, "megatron-lm")

    def step_s(links: NodeLinks) -> float:
        return predict(on_links(links), profile, mesh).step_time_s

    plain = predict(a_problem(cluster=a_cluster(num_nodes=4)), profile, mesh).step_time_s
    assert step_s(rates({})) == pytest.approx(plain, rel=1e-12)
    assert step_s(rates({(0, 3): 5e9})) == pytest.approx(plain, rel=1e-12)  # no group crosses it
    assert step_s(rates({(0, 1): 5e9})) > 1.01 * plain
    assert step_s(rates({(0, 2): 5e9})) > 1.001 * plain


def test_half_the_network_is_half_of_every_link() -> None:
    mesh, whole = a_mesh(8, 2, 2), a_problem(cluster=a_cluster(num_nodes=4))
    group = whole.cluster.groups[0]
    slow = replace(group, inter_node=replace(group.inter_node, bytes_per_s=25e9))
    half = replace(whole, cluster=replace(whole.cluster, groups=(slow,)))
    links = NodeLinks(bytes_per_s=((25e9,) * 4,) * 4)
    profile = default_profile(whole.cluster, "megatron-lm")
    expected = predict(half, default_profile(half.cluster, "megatron-lm"), mesh).step_time_s
    assert predict(on_links(links), profile, mesh).step_time_s == pytest.approx(expected, rel=1e-9)


def test_latency_beyond_the_networks_is_paid_once_a_hop() -> None:
    late = tuple(tuple(110e-6 if {a, b} == {0, 1} else 10e-6 for b in range(4)) for a in range(4))
    problem = on_links(NodeLinks(latency_s=late))
    paces = dict(zip(KINDS, paces_of(problem, a_mesh(8, 2, 2)), strict=True))
    assert paces["data"].hop_s == pytest.approx(100e-6)
    assert paces["stages"].hop_s == pytest.approx(0.0, abs=1e-12)
    profile = default_profile(problem.cluster, "megatron-lm")
    longer = predict(problem, profile, a_mesh(8, 2, 2)).step_time_s
    assert longer > predict(on_links(rates({})), profile, a_mesh(8, 2, 2)).step_time_s


def test_rails_without_a_spine_forward_through_the_fast_link() -> None:
    # 8 ranks in each of 4 nodes: 24 of 31 parts leave, 7/8 of them pass the fast link first
    ends = (np.array([8.0]), np.array([4.0]))
    lines = Lines(island_gpus=8, nodes_per_island=1, fast_bytes_per_s=50e9, network_bytes_per_s=50e9)
    spine, rails = lines, replace(lines, rail_only=True)
    assert spine.exchange_bytes_per_s(*ends) == pytest.approx(31 / 24 * 50e9)
    assert rails.exchange_bytes_per_s(*ends) == pytest.approx(31 / (7 + 24 * 7 / 8) * 50e9)
    alone = (np.array([1.0]), np.array([4.0]))  # one rank a node: each message stays on its rail
    assert rails.exchange_bytes_per_s(*alone) == pytest.approx(spine.exchange_bytes_per_s(*alone))


def test_nodes_that_no_matrix_holds_have_the_usual_link() -> None:
    problem = on_links(rates({(0, 1): 10e9}, 2), num_nodes=2)
    table = LinkTable.of(problem.cluster.groups[0], 3)
    assert table.slowness.tolist() == [[1, 5, 1], [5, 1, 1], [1, 1, 1]]


def test_groups_inside_nodes_cross_nothing() -> None:
    problem = on_links(rates({}, 1), num_nodes=1)
    assert flows_of(problem, a_mesh(2, 2, 2)) == ()


def test_an_even_network_is_a_link_of_that_rate() -> None:
    cluster = on_links(rates({})).cluster.with_even_links(2.0)
    link: LinkSpec = cluster.groups[0].inter_node
    assert (link.bytes_per_s, cluster.differs) == (25e9, False)


def test_a_network_of_longer_latency_pays_on_each_hop_what_exceeds_the_usual_14_us() -> None:
    def priced(latency_s: float) -> tuple[float, float]:
        cluster = a_cluster(num_nodes=4)
        group = cluster.groups[0]
        group = replace(group, inter_node=replace(group.inter_node, latency_s=latency_s))
        problem = a_problem(cluster=replace(cluster, groups=(group,)))
        profile = default_profile(problem.cluster, "megatron-lm")
        return profile.fabric.hop_s, predict(problem, profile, a_mesh(8, 2, 2)).step_time_s

    (usual_hop_s, usual_s), (hop_s, step_s) = priced(14e-6), priced(114e-6)
    assert usual_hop_s == 0.0
    assert hop_s == pytest.approx(100e-6)
    assert priced(2e-6) == (0.0, usual_s)
    # the first micro-batch crosses the boundary, and the last one's gradients return: nothing hides them
    assert step_s >= usual_s + 2 * 100e-6


def test_latency_is_not_added_to_collectives_that_were_timed_on_these_nodes() -> None:
    cluster = a_cluster(num_nodes=4)
    curve = MeasuredCurve(
        collective="all_gather", num_nodes=4, num_ranks=32, payload_bytes=(2**20,), bus_bytes_per_s=(1e9,)
    )
    group = cluster.groups[0]
    group = replace(
        group, inter_node=replace(group.inter_node, latency_s=1e-4), measured=MeasuredLink(curves=(curve,))
    )
    assert default_profile(replace(cluster, groups=(group,)), "megatron-lm").fabric.hop_s == 0.0


def test_a_mesh_on_more_nodes_than_a_group_has_is_priced_with_usual_links_between_the_others() -> None:
    """It is not legal, but ``predict`` states its price with the reason."""
    slow = on_links(rates({(0, 1): 10e9}, num_nodes=2), num_nodes=2)
    paces = dict(zip(KINDS, paces_of(slow, a_mesh(8, 1, 3)), strict=True))  # on nodes 0, 1 and 2
    assert paces["data"].share == pytest.approx(10e9 / RATE)
