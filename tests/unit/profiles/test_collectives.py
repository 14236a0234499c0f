import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.collectives import (
    Fabric,
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    point_to_point_s,
)


def a_fabric(**changes: float) -> Fabric:
    values = {
        "island_gpus": 8.0,
        "fast_bytes_per_s": 100e9,
        "network_bytes_per_s": 25e9,
        "network_decay": 0.0,
        "latency_s": 0.0,
        "network_latency_s": 0.0,
    }
    return Fabric(**(values | changes))


def group(size: int, stride: int, fabric: Fabric) -> Group:
    return Group.of(np.array([float(size)]), np.array([float(stride)]), fabric)


def one(seconds: np.ndarray) -> float:
    return float(seconds[0])


GB = np.array([1e9])


def test_ring_all_gather_of_8_ranks_takes_8_75_ms() -> None:
    # 1 GB, 8 ranks in one island at 100 GB/s: 7/8 GB through each link = 8.75 ms
    fabric = a_fabric()
    assert one(all_gather_s(GB, group(8, 1, fabric), fabric)) == pytest.approx(8.75e-3)


def test_ring_all_reduce_of_8_ranks_takes_17_5_ms() -> None:
    fabric = a_fabric()
    assert one(all_reduce_s(GB, group(8, 1, fabric), fabric)) == pytest.approx(17.5e-3)


def test_a_strided_group_uses_one_rail_of_each_node() -> None:
    # stride 8 of 8 GPUs a node: 4 ranks on 4 nodes; 3/4 GB through one 25 GB/s rail = 30 ms
    fabric = a_fabric()
    ranks = group(4, 8, fabric)
    assert (one(ranks.in_island), one(ranks.islands)) == (1.0, 4.0)
    assert one(all_gather_s(GB, ranks, fabric)) == pytest.approx(30e-3)


def test_a_dense_group_uses_every_rail_it_owns() -> None:
    # 32 ranks on 4 nodes: each node's 8 rails share 3/4 GB: 0.75 / (8 * 25) = 3.75 ms on the network,
    # 7/8 GB at 100 GB/s = 8.75 ms inside; both run at once
    fabric = a_fabric()
    assert one(all_gather_s(GB, group(32, 1, fabric), fabric)) == pytest.approx(8.75e-3)
    slow = a_fabric(network_bytes_per_s=2.5e9)
    assert one(all_gather_s(GB, group(32, 1, slow), slow)) == pytest.approx(37.5e-3)


def test_a_group_of_one_costs_nothing() -> None:
    fabric = a_fabric(latency_s=1e-4, network_latency_s=1e-3)
    assert one(all_gather_s(GB, group(1, 8, fabric), fabric)) == 0.0


def test_all_to_all_over_two_nodes_sends_half_through_the_network() -> None:
    # 16 ranks on 2 nodes: 8/16 of 1 GB leaves through one 25 GB/s rail = 20 ms; 7/16 GB stays
    fabric = a_fabric()
    assert one(all_to_all_s(GB, group(16, 1, fabric), fabric)) == pytest.approx(20e-3)


def test_the_networks_share_falls_with_each_doubling_beyond_two_nodes() -> None:
    # 8 nodes = 2 doublings beyond two: 25 * (1 - 2 * 0.1) = 20 GB/s; 7/8 GB / 20 = 43.75 ms
    fabric = a_fabric(network_decay=0.1)
    assert one(all_gather_s(GB, group(8, 8, fabric), fabric)) == pytest.approx(43.75e-3)


def test_neighbours_a_node_apart_use_the_network() -> None:
    # 1 GB at 25 GB/s = 40 ms; inside the island at 100 GB/s = 10 ms
    fabric = a_fabric()
    four = np.array([4.0])
    assert one(point_to_point_s(GB, np.array([8.0]), four, fabric)) == pytest.approx(40e-3)
    assert one(point_to_point_s(GB, np.array([2.0]), four, fabric)) == pytest.approx(10e-3)
    assert one(point_to_point_s(GB, np.array([8.0]), np.array([1.0]), fabric)) == 0.0


@given(
    size=st.sampled_from([1, 2, 4, 8, 16, 64]),
    stride=st.sampled_from([1, 2, 8, 16]),
    payload=st.floats(1e3, 1e11),
    factor=st.floats(1.0, 10.0),
)
def test_more_bandwidth_is_never_slower(size: int, stride: int, payload: float, factor: float) -> None:
    slow = a_fabric(latency_s=5e-5, network_latency_s=1e-4, network_decay=0.03)
    fast = a_fabric(
        latency_s=5e-5,
        network_latency_s=1e-4,
        network_decay=0.03,
        fast_bytes_per_s=100e9 * factor,
        network_bytes_per_s=25e9 * factor,
    )
    for collective in (all_gather_s, all_reduce_s, all_to_all_s):
        before = one(collective(np.array([payload]), group(size, stride, slow), slow))
        after = one(collective(np.array([payload]), group(size, stride, fast), fast))
        assert after <= before * (1 + 1e-12)
