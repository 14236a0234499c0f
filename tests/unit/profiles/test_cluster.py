from dataclasses import replace

import pytest

from meshwright.profiles.cluster import ClusterSpec, LinkSpec, NodeGroup, host_of, transport_of
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_gpu


def group_of(slug: str) -> NodeGroup:
    gpu = find_gpu(slug)
    return NodeGroup(
        gpu=gpu,
        num_nodes=1,
        gpus_per_node=gpu.gpus_per_node,
        island_gpus=gpu.island_gpus,
        intra_node=gpu.intra_node,
        inter_node=gpu.inter_node,
    )


def test_an_h100_reaches_its_host_at_four_fifths_of_pcie_5() -> None:
    assert host_of(group_of("h100-sxm-80gb")).link_bytes_per_s == pytest.approx(0.8 * 63e9)


def test_a_superchip_reaches_its_host_faster_than_pcie() -> None:
    superchip, card = host_of(group_of("gb200")), host_of(group_of("b200-sxm-180gb"))
    assert superchip.link_bytes_per_s > 3 * card.link_bytes_per_s


def test_a_node_group_may_state_its_own_host() -> None:
    own = replace(group_of("h100-sxm-80gb"), host_link_bytes_per_s=1e10, host_memory_bytes=8 * 10**11)
    # 800 GB for 8 GPUs
    assert (host_of(own).link_bytes_per_s, host_of(own).memory_bytes) == (1e10, 10**11)


def test_a_node_group_may_state_its_own_drives() -> None:
    # of eight GPUs each has an eighth; unstated, a drive of 3.84 TB each
    usual = host_of(group_of("h100-sxm-80gb"))
    assert usual.nvme_bytes == 3840 * 10**9
    own = replace(group_of("h100-sxm-80gb"), nvme_bytes=8 * 10**12, nvme_read_bytes_per_s=4e10)
    assert (host_of(own).nvme_bytes, host_of(own).nvme_read_bytes_per_s) == (10**12, 5e9)
    assert host_of(own).nvme_write_bytes_per_s == usual.nvme_write_bytes_per_s


def test_what_a_group_does_not_state_of_its_drives_is_no_part_of_its_name() -> None:
    plain = group_of("h100-sxm-80gb")
    assert "nvme_bytes" not in plain.to_mapping()
    assert replace(plain, nvme_bytes=10**12).to_mapping()["nvme_bytes"] == 10**12


@pytest.mark.parametrize("name", ["host_link_bytes_per_s", "host_memory_bytes", "nvme_read_bytes_per_s"])
def test_a_host_without_speed_or_memory_is_refused(name: str) -> None:
    with pytest.raises(InvalidProblemError, match="must be positive"):
        replace(group_of("h100-sxm-80gb"), **{name: 0})  # type: ignore[arg-type]


def test_unlike_groups_have_unlike_names_also_where_a_gpu_is_named_as_a_numbered_one() -> None:
    h100 = group_of("h100-sxm-80gb")
    sizes = (("a", 24), ("a", 48), ("a-1", 80))
    groups = tuple(
        replace(h100, gpu=replace(h100.gpu, slug=slug, memory_bytes=gib * 2**30)) for slug, gib in sizes
    )
    assert ClusterSpec(name="x", groups=groups).group_names == ("a-2", "a-3", "a-1")
    assert ClusterSpec(name="x", groups=groups[:2]).group_names == ("a-1", "a-2")


def a_network(kind: str, gbit_per_s: float) -> LinkSpec:
    return LinkSpec(kind=kind, bytes_per_s=gbit_per_s * 1e9 / 8, latency_s=1e-5)


@pytest.mark.parametrize(
    ("kind", "gbit_per_s", "payload"),
    [
        ("infiniband", 200, 200.0),
        ("efa", 100, 100.0),  # as the shares that collectives reach count it
        # 4096 of 4178 bytes, where InfiniBand has 4096 of 4122: 200 * 4122 / 4178
        ("roce", 200, 197.319),
        ("RoCEv2", 200, 197.319),
        # 1448 of 1538 bytes: 25 * 1448 / 1538 * 4122 / 4096
        ("ethernet", 25, 23.6865),
        # one core moves 42 Gbit/s
        ("Ethernet", 100, 42.0),
    ],
)
def test_a_network_leaves_for_payload_what_its_headers_and_copies_spare(
    kind: str, gbit_per_s: float, payload: float
) -> None:
    assert a_network(kind, gbit_per_s).payload_bytes_per_s * 8 / 1e9 == pytest.approx(payload, rel=1e-4)


def test_a_network_slowed_by_a_factor_leaves_as_much_less_for_payload() -> None:
    for kind in ("infiniband", "roce", "ethernet"):
        whole = a_network(kind, 100)
        assert whole.slowed(3.0).payload_bytes_per_s == pytest.approx(whole.payload_bytes_per_s / 3)


@pytest.mark.parametrize(
    ("kind", "transport"),
    [
        *(
            (kind, "ethernet")
            for kind in ("ethernet", "100GbE", "25 GbE", "tcp", "100 Gb/s eth", "10GBASE-T")
        ),
        *((kind, "roce") for kind in ("RoCE v2", "ROCE2", "Ethernet (RDMA)", "Spectrum-X")),
        *((kind, "") for kind in ("infiniband", "efa", "slingshot", "pcie", "100GbE InfiniBand")),
        ("8x ConnectX-7 IB NDR 400Gb/s + 200Gb/s Ethernet NIC", ""),
    ],
)
def test_the_transport_of_a_network_is_read_from_free_text(kind: str, transport: str) -> None:
    assert transport_of(kind) == transport
