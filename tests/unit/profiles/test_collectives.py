from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.profiles.collectives.collectives import (
    Fabric,
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    point_to_point_s,
)
from meshwright.profiles.collectives.tables import KINDS, Lines, SlowdownTable, slowdown_tables

# no table here lies below or above the line rate: what is left is volumes, rails and links
Collective = Callable[[np.ndarray, Group, Fabric], np.ndarray]
LINE_RATE = SlowdownTable.at_line_rate()


def a_fabric(
    *, fast: float = 100e9, network: float = 25e9, launch_s: float = 0.0, measured: bool = False
) -> Fabric:
    lines = Lines(island_gpus=8.0, nodes_per_island=1.0, fast_bytes_per_s=fast, network_bytes_per_s=network)
    tables = slowdown_tables("a100-sxm-80gb", lines, None) if measured else dict.fromkeys(KINDS, LINE_RATE)
    return Fabric(lines=lines, tables=tables, launch_s=launch_s)


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


def test_a_group_of_every_second_rank_owns_every_second_rail() -> None:
    # stride 2: 16 ranks, 4 on each of 4 nodes; 15/16 GB over 4 rails of 5 GB/s = 46.9 ms
    fabric = a_fabric(network=5e9)
    ranks = group(16, 2, fabric)
    assert (one(ranks.in_island), one(ranks.islands)) == (4.0, 4.0)
    assert one(all_gather_s(GB, ranks, fabric)) == pytest.approx(46.875e-3)


def test_a_dense_group_uses_every_rail_it_owns() -> None:
    # 32 ranks on 4 nodes: 8 rails of 25 GB/s carry more than the fast link: 31/32 GB at 100 GB/s
    fabric = a_fabric()
    assert one(all_gather_s(GB, group(32, 1, fabric), fabric)) == pytest.approx(9.6875e-3)
    # 31/32 GB over 8 rails of 2.5 GB/s = 48.4 ms
    slow = a_fabric(network=2.5e9)
    assert one(all_gather_s(GB, group(32, 1, slow), slow)) == pytest.approx(48.4375e-3)


def test_a_group_of_one_costs_nothing() -> None:
    fabric = a_fabric(launch_s=1e-4, measured=True)
    for collective in (all_gather_s, all_reduce_s, all_to_all_s):
        assert one(collective(GB, group(1, 8, fabric), fabric)) == 0.0


def test_all_to_all_over_two_nodes_sends_half_through_the_network() -> None:
    # 16 ranks on 2 nodes: 8/16 of 1 GB leaves through one 25 GB/s rail = 20 ms; 7/16 GB stays
    fabric = a_fabric()
    assert one(all_to_all_s(GB, group(16, 1, fabric), fabric)) == pytest.approx(20e-3)


def test_neighbours_a_node_apart_use_the_network() -> None:
    # 1 GB at 25 GB/s = 40 ms; inside the island at 100 GB/s = 10 ms
    fabric = a_fabric()
    four = np.array([4.0])
    assert one(point_to_point_s(GB, np.array([8.0]), four, fabric)) == pytest.approx(40e-3)
    assert one(point_to_point_s(GB, np.array([2.0]), four, fabric)) == pytest.approx(10e-3)
    assert one(point_to_point_s(GB, np.array([8.0]), np.array([1.0]), fabric)) == 0.0


COLLECTIVES = st.sampled_from([all_gather_s, all_reduce_s, all_to_all_s])
PAYLOADS = st.floats(1e3, 1e11)


@given(
    collective=COLLECTIVES,
    size=st.sampled_from([1, 2, 3, 4, 8, 16, 24, 64]),
    stride=st.sampled_from([1, 2, 8, 16]),
    payload=PAYLOADS,
    factors=st.tuples(st.floats(1.0, 10.0), st.floats(1.0, 10.0)),
)
def test_more_bandwidth_is_never_slower(
    collective: Collective, size: int, stride: int, payload: float, factors: tuple[float, float]
) -> None:
    slow = a_fabric(measured=True, launch_s=5e-5)
    quick = a_fabric(measured=True, launch_s=5e-5, fast=100e9 * factors[0], network=25e9 * factors[1])
    before = one(collective(np.array([payload]), group(size, stride, slow), slow))
    after = one(collective(np.array([payload]), group(size, stride, quick), quick))
    assert after <= before * (1 + 1e-12)


@given(
    collective=COLLECTIVES, stride=st.sampled_from([1, 2, 8]), doublings=st.integers(1, 9), payload=PAYLOADS
)
def test_more_nodes_are_never_faster_for_the_same_bytes_of_a_rank(
    collective: Collective, stride: int, doublings: int, payload: float
) -> None:
    # the bytes of an all-gather's result grow with the ranks, those of the others are a rank's own
    fabric = a_fabric(measured=True)
    least = 8 // stride * 2**doublings
    seconds = [
        one(
            collective(
                np.array([payload * (size if collective is all_gather_s else 1)]),
                group(size, stride, fabric),
                fabric,
            )
        )
        for size in (least, 2 * least)
    ]
    assert seconds[1] >= seconds[0] * (1 - 1e-9)


@given(
    collective=COLLECTIVES, size=st.sampled_from([2, 8, 64]), payload=PAYLOADS, more=st.floats(1.0, 100.0)
)
def test_a_larger_message_never_reaches_less_of_its_bandwidth_than_half(
    collective: Collective, size: int, payload: float, more: float
) -> None:
    # NCCL's switches of protocol cost a measured ramp a few percent here and there, never a cliff
    fabric = a_fabric(measured=True)
    small, large = (
        one(collective(np.array([b]), group(size, 1, fabric), fabric)) / b
        for b in (payload, payload * more)
    )
    assert large <= 2.0 * small
