from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.catalog.network_shares import network_json
from benchmarks.foreign.records import BandwidthShares
from benchmarks.foreign.simai import read_simai
from benchmarks.foreign.vtrain import read_vtrain
from meshwright.profiles.cluster import ClusterSpec
from meshwright.profiles.collectives.collectives import (
    Fabric,
    Group,
    Lines,
    SlowdownTable,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    point_to_point_s,
    row_of,
)
from meshwright.profiles.collectives.measured import MeasuredCurve, MeasuredLink, measured_network
from meshwright.profiles.collectives.tables import (
    FOLDER,
    KINDS,
    network_shares,
    network_shares_from_json,
    slowdown_tables,
)
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.nccl_tests import read_nccl_tests
from meshwright.profiles.importers.node_groups import measured_link
from meshwright.profiles.inline import cluster_from_mapping, cluster_to_mapping
from meshwright.profiles.library import find_cluster

# no table here lies below or above the line rate: what is left is volumes, rails and links
Collective = Callable[[np.ndarray, Group], np.ndarray]
LINE_RATE = SlowdownTable.at_line_rate()


def a_fabric(
    *, fast: float = 100e9, network: float = 25e9, launch_s: float = 0.0, measured: bool = False
) -> Fabric:
    lines = Lines(island_gpus=8.0, nodes_per_island=1.0, fast_bytes_per_s=fast, network_bytes_per_s=network)
    tables = slowdown_tables("a100-sxm-80gb", lines, None) if measured else dict.fromkeys(KINDS, LINE_RATE)
    return Fabric(lines=lines, tables=tables, launch_s=launch_s)


def group(size: int, stride: int, fabric: Fabric) -> Group:
    return Group(np.array([float(size)]), np.array([float(stride)]), fabric)


def one(seconds: np.ndarray) -> float:
    return float(seconds[0])


GB = np.array([1e9])


def test_ring_all_gather_of_8_ranks_takes_8_75_ms() -> None:
    # 1 GB, 8 ranks in one island at 100 GB/s: 7/8 GB through each link = 8.75 ms
    fabric = a_fabric()
    assert one(all_gather_s(GB, group(8, 1, fabric))) == pytest.approx(8.75e-3)


def test_ring_all_reduce_of_8_ranks_takes_17_5_ms() -> None:
    fabric = a_fabric()
    assert one(all_reduce_s(GB, group(8, 1, fabric))) == pytest.approx(17.5e-3)


@pytest.mark.parametrize("collective", [all_gather_s, all_reduce_s])
def test_a_second_nvlink_domain_makes_no_ring_faster(collective: Collective) -> None:
    # 144 ranks on two islands of 72 pass what 72 pass inside one, whose hops they have too
    lines = Lines(island_gpus=72.0, nodes_per_island=9.0, fast_bytes_per_s=900e9, network_bytes_per_s=50e9)
    fabric = Fabric(lines=lines, tables=slowdown_tables("gb200", lines, None), launch_s=0.0)
    for payload in (1e7, 1e8, 1e9):
        inside, across = (one(collective(np.array([payload]), group(n, 1, fabric))) for n in (72, 144))
        assert across >= inside


def test_a_strided_group_uses_one_rail_of_each_node() -> None:
    # stride 8 of 8 GPUs a node: 4 ranks on 4 nodes; 3/4 GB through one 25 GB/s rail = 30 ms
    fabric = a_fabric()
    ranks = group(4, 8, fabric)
    assert (one(ranks.in_island), one(ranks.islands)) == (1.0, 4.0)
    assert one(all_gather_s(GB, ranks)) == pytest.approx(30e-3)


def test_a_group_of_every_second_rank_owns_every_second_rail() -> None:
    # stride 2: 16 ranks, 4 on each of 4 nodes; 15/16 GB over 4 rails of 5 GB/s = 46.9 ms
    fabric = a_fabric(network=5e9)
    ranks = group(16, 2, fabric)
    assert (one(ranks.in_island), one(ranks.islands)) == (4.0, 4.0)
    assert one(all_gather_s(GB, ranks)) == pytest.approx(46.875e-3)


@pytest.mark.parametrize(
    ("size", "stride", "world", "fewest"),
    [
        (7, 1, 7, 7),  # the first 7 GPUs of a node
        (7, 1, 21, 1),  # of 7 to 13 one is on the first node
        (4, 1, 20, 4),  # 16 to 19
        (3, 2, 24, 1),  # 6, 8, 10: one on the first node
        (25, 1, 50, 1),  # 0 to 24: 8, 8, 8 and 1
        (11, 2, 22, 3),  # 0 to 20: 4, 4 and 3
        (12, 1, 24, 4),  # 0 to 11: 8 and 4
        (16, 1, 48, 8),
        (12, 6, 64, 1),  # 0, 6, 12 to 66: beyond the world, and still one group
        (5, 8, 40, 1),  # one on each node
    ],
)
def test_of_groups_across_the_end_of_a_node_the_thinnest_counts(
    size: int, stride: int, world: int, fewest: int
) -> None:
    groups = replace(group(size, stride, a_fabric()), world=np.array([float(world)]))
    counts = [
        sum(rank // 8 == node for rank in ranks)
        for start in range(0, world, size * stride)
        for inner in range(stride)
        for ranks in [range(start + inner, start + size * stride, stride)]
        for node in {rank // 8 for rank in ranks}
    ]
    assert one(groups.in_island) == fewest == min(counts)
    assert one(groups.islands) == -(-size // fewest)


def test_groups_begin_with_an_island_of_several_nodes() -> None:
    # 64 of the 72 GPUs of each rack, not 64 and then 8 and 56
    fabric = a_fabric()
    rack = replace(fabric, lines=replace(fabric.lines, island_gpus=72.0, nodes_per_island=18.0))
    assert one(replace(group(64, 1, rack), world=np.array([256.0])).in_island) == 64.0


def test_a_dense_group_uses_every_rail_it_owns() -> None:
    # 32 ranks on 4 nodes: 8 rails of 25 GB/s carry more than the fast link: 31/32 GB at 100 GB/s
    fabric = a_fabric()
    assert one(all_gather_s(GB, group(32, 1, fabric))) == pytest.approx(9.6875e-3)
    # 31/32 GB over 8 rails of 2.5 GB/s = 48.4 ms
    slow = a_fabric(network=2.5e9)
    assert one(all_gather_s(GB, group(32, 1, slow))) == pytest.approx(48.4375e-3)


def test_a_group_of_one_costs_nothing() -> None:
    fabric = a_fabric(launch_s=1e-4, measured=True)
    for collective in (all_gather_s, all_reduce_s, all_to_all_s):
        assert one(collective(GB, group(1, 8, fabric))) == 0.0


def test_all_to_all_over_two_nodes_sends_half_through_the_network() -> None:
    # 16 ranks on 2 nodes: 8/16 of 1 GB leaves through one 25 GB/s rail = 20 ms; 7/16 GB stays
    fabric = a_fabric()
    assert one(all_to_all_s(GB, group(16, 1, fabric))) == pytest.approx(20e-3)


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
    before = one(collective(np.array([payload]), group(size, stride, slow)))
    after = one(collective(np.array([payload]), group(size, stride, quick)))
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
        one(collective(np.array([b]), group(size, 1, fabric))) / b for b in (payload, payload * more)
    )
    assert large <= 2.0 * small


# Tables of collectives against measurements that they were not made from.

FILES = Path(__file__).parents[1] / "fixtures" / "importers"
FOREIGN = Path(__file__).parents[3] / "fixtures" / "foreign"
A100 = Lines(island_gpus=8.0, nodes_per_island=1.0, fast_bytes_per_s=300e9, network_bytes_per_s=25e9)
H100 = Lines(island_gpus=8.0, nodes_per_island=1.0, fast_bytes_per_s=450e9, network_bytes_per_s=50e9)


def without(shares: BandwidthShares, column: int) -> BandwidthShares:
    kept = [i for i in range(len(shares.num_nodes)) if i != column]
    return replace(
        shares,
        num_nodes=tuple(shares.num_nodes[i] for i in kept),
        shares=tuple(tuple(row[i] for i in kept) for row in shares.shares),
    )


def bus_bytes_per_s(
    kind: str, lines: Lines, measured: MeasuredLink | None, *, nodes: int, payload: float, in_node: int = 8
) -> float:
    """Predicted bus bandwidth over ``in_node`` GPUs of each node."""
    tables = slowdown_tables("h100-sxm-80gb", lines, measured)
    inside, islands = np.array([float(in_node)]), np.array([float(nodes)])
    part = np.array([payload]) / (in_node * nodes)
    taken = tables[kind].at(row_of(inside, islands), part)
    return float((lines.ring_bytes_per_s(inside, islands) * part / taken)[0])


def test_the_catalogs_network_shares_are_what_the_command_makes_of_simais_tables() -> None:
    made = network_json(
        read_simai(FOREIGN / "simai" / "nic_ratio.csv"), read_simai(FOREIGN / "simai" / "ata_ratio.csv")
    )
    assert network_shares_from_json(made) == network_shares()
    assert (FOLDER / "network.json").stat().st_size < 4000


def test_one_curve_over_parts_reproduces_numbers_of_nodes_it_was_not_made_from() -> None:
    # 2 to 128 nodes, each left out in turn: 77 points; median error 2.0 %, 90th percentile 13 %
    # (worst: 16 MB on two nodes, which run faster than any ring of more)
    ring, exchange = (
        read_simai(FOREIGN / "simai" / "nic_ratio.csv"),
        read_simai(FOREIGN / "simai" / "ata_ratio.csv"),
    )
    errors: list[float] = []
    for column, nodes in enumerate(ring.num_nodes):
        if nodes == 1:
            continue
        shares = network_shares_from_json(network_json(without(ring, column), exchange))
        measured = np.array([row[column] for row in ring.shares], dtype=np.float64)
        parts = np.array(ring.payload_bytes) / (8 * nodes)
        errors += np.abs(shares.ring_share(parts) / measured - 1.0).tolist()
    assert len(errors) == 77
    assert np.median(errors) < 0.025
    assert np.quantile(errors, 0.9) < 0.15


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_nccls_table_of_the_a100_reproduces_vtrains_all_reduces(ranks: int) -> None:
    # another machine, another year: 64 sizes from 1 MB to 64 MB; median error 2.9 / 2.3 / 3.4 %
    measured = read_vtrain(FOREIGN / "vtrain" / f"AR_GPU{ranks}_1M_1024M_LUT").tables[0]
    tables = slowdown_tables("a100-sxm-80gb", A100, None)
    payload = np.array(measured.payload_bytes, dtype=np.float64)
    row = row_of(np.full_like(payload, ranks), np.ones_like(payload))
    bus = 300e9 * payload / ranks / tables["all_reduce"].at(row, payload / ranks)
    assert np.median(np.abs(bus / np.array(measured.bus_bytes_per_s) - 1.0)) < 0.04


def test_gathers_over_efa_take_what_was_measured_from_1_to_64_nodes() -> None:
    # a ring's step over EFA takes 42 us + its bytes: one curve for all numbers of nodes. Median error of
    # the seven points 2 %, the largest 4 %; without the measurement up to 7 times too fast
    measured = measured_network("efa", "h100-sxm-80gb")
    assert measured is not None
    points = measured.of_collective("all_gather")
    assert [curve.num_nodes for curve in points] == [1, 2, 4, 8, 16, 32, 64]
    errors = [
        bus_bytes_per_s("all_gather", H100, measured, nodes=c.num_nodes, payload=256e6)
        / c.bus_bytes_per_s[0]
        - 1
        for c in points
    ]
    assert np.median(np.abs(errors)) < 0.03
    assert np.max(np.abs(errors)) < 0.06
    free = bus_bytes_per_s("all_gather", H100, None, nodes=64, payload=256e6)
    assert free > 5 * points[-1].bus_bytes_per_s[0]


def test_what_a_measured_part_loses_a_larger_one_loses_once() -> None:
    # 16 ranks at half of 400 GB/s with 16 MB: 37.5 us over line rate (and the table's own share) stay,
    # so a hundred times as much runs within a few percent of what the table says
    curve = MeasuredCurve(
        collective="all_gather",
        num_nodes=2,
        num_ranks=16,
        payload_bytes=(16_000_000,),
        bus_bytes_per_s=(5e10,),
    )
    link = MeasuredLink(curves=(curve,))
    assert bus_bytes_per_s("all_gather", H100, link, nodes=2, payload=16e6) == pytest.approx(5e10, rel=0.02)
    table = bus_bytes_per_s("all_gather", H100, None, nodes=2, payload=64e9)
    assert bus_bytes_per_s("all_gather", H100, link, nodes=2, payload=64e9) == pytest.approx(
        table, rel=0.02
    )


def test_a_log_of_nccl_tests_corrects_its_own_side_of_the_island_only() -> None:
    log = measured_link(read_nccl_tests(FILES / "nccl_tests" / "one_node.log"), source="one_node.log")
    curve = log.curves[0]
    assert (curve.num_nodes, curve.num_ranks) == (1, 8)
    predicted = [
        bus_bytes_per_s(curve.collective, H100, log, nodes=1, payload=payload, in_node=curve.num_ranks)
        for payload in curve.payload_bytes
    ]
    assert np.median(np.abs(np.array(predicted) / np.array(curve.bus_bytes_per_s) - 1)) < 0.05
    before = bus_bytes_per_s("all_reduce", H100, None, nodes=4, payload=1e8)
    assert bus_bytes_per_s("all_reduce", H100, log, nodes=4, payload=1e8) == before


def measured_cluster() -> ClusterSpec:
    return find_cluster("aws-p5-h100", num_nodes=4)


def test_a_measured_network_survives_the_round_trip_of_a_request() -> None:
    cluster = measured_cluster()
    assert cluster.groups[0].measured is not None
    assert cluster_from_mapping(cluster_to_mapping(cluster)) == cluster


def test_a_catalog_cluster_takes_the_users_own_measurements() -> None:
    curve = {
        "collective": "all_reduce",
        "num_nodes": 2,
        "num_ranks": 16,
        "payload_bytes": [1_000_000, 100_000_000],
        "bus_bytes_per_s": [1e10, 1e11],
    }
    raw = {"name": "dgx-h100", "num_nodes": 2, "measured": {"curves": [curve], "source": "our log"}}
    measured = cluster_from_mapping(raw).groups[0].measured
    assert measured is not None
    assert measured.curves[0].bus_bytes_per_s == (1e10, 1e11)


@pytest.mark.parametrize(
    ("change", "pointer", "nearest"),
    [
        ({"num_ranks": 17}, "/cluster/measured/curves/0/num_ranks", "16"),
        ({"num_ranks": 1}, "/cluster/measured/curves/0/num_ranks", "2"),
        ({"bus_bytes_per_s": [1e10]}, "/cluster/measured/curves/0/bus_bytes_per_s", "2"),
        ({"payload_bytes": [5, 5]}, "/cluster/measured/curves/0/payload_bytes", None),
        ({"payload_bytes": [0, 5]}, "/cluster/measured/curves/0/payload_bytes/0", "1"),
        ({"collective": "broadcast"}, "/cluster/measured/curves/0/collective", None),
    ],
)
def test_a_curve_that_contradicts_itself_names_its_place_and_the_nearest_legal_value(
    change: dict[str, object], pointer: str, nearest: str | None
) -> None:
    curve = {
        "collective": "all_reduce",
        "num_nodes": 2,
        "num_ranks": 16,
        "payload_bytes": [10, 20],
        "bus_bytes_per_s": [1e9, 2e9],
    }
    raw = {"name": "dgx-h100", "num_nodes": 2, "measured": {"curves": [curve | change]}}
    with pytest.raises(InvalidProblemError) as refused:
        cluster_from_mapping(raw)
    assert [(fault.pointer, fault.nearest) for fault in refused.value.errors] == [(pointer, nearest)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_network_starts_a_step_as_fast_as_a_fast_one_and_is_never_faster(kind: str) -> None:
    parts = np.array([2.0**17, 2.0**20, 2.0**24])
    rows = row_of(np.full(3, 8.0), np.full(3, 24.0))

    def taken_s(network: float) -> np.ndarray:
        lines = Lines(
            island_gpus=8.0, nodes_per_island=1.0, fast_bytes_per_s=100e9, network_bytes_per_s=network
        )
        return slowdown_tables("a100-sxm-80gb", lines, None)[kind].at(rows, parts) / network

    slowest = taken_s(6.25e9)
    before = slowest
    for network in (6.2e9, 3.125e9, 0.78125e9, 0.1e9):
        seconds = taken_s(network)
        assert (seconds >= before * 0.999).all(), "more bandwidth is never slower"
        before = seconds
    # at 0.1 GB/s a megabyte takes 10 ms, next to which its start-up is small
    assert before[1] < 1.15 * parts[1] / 0.1e9
