"""Nodes as nvidia-smi and NCCL describe them: islands, NVLinks, nearest network cards."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.nccl_topology import read_nccl_topology
from meshwright.profiles.importers.node_groups import connected, fields_of_topology
from meshwright.profiles.importers.nvidia_smi_topo import read_nvidia_smi_topo
from meshwright.profiles.importers.slurm_topology import expand_hostlist, read_slurm_topology
from meshwright.profiles.library import find_gpu
from meshwright.profiles.measurements import GpuPlace, NodeTopology

FILES = Path(__file__).parents[1] / "fixtures" / "importers" / "topology"


def changed(folder: Path, name: str, old: str, new: str) -> Path:
    text = (FILES / name).read_text()
    assert old in text
    path = folder / name
    path.write_text(text.replace(old, new, 1))
    return path


def test_pairs_join_into_sorted_groups() -> None:
    assert connected(5, [(3, 1), (4, 3)]) == ((0,), (1, 3, 4), (2,))


def test_eight_gpus_behind_nvswitch_are_one_island_of_18_links_each() -> None:
    topology = read_nvidia_smi_topo(FILES / "topo_h100_8.txt")
    # NV18 to each of 7 peers: 126 is more than a GPU has, so all 18 go to the switch
    assert topology.islands == (tuple(range(8)),)
    assert {place.nvlinks for place in topology.gpus} == {18}
    assert topology.island_gpus == 8


def test_bridged_pcie_pairs_are_islands_of_two() -> None:
    topology = read_nvidia_smi_topo(FILES / "topo_pcie_pairs.txt")
    assert topology.islands == ((0, 1), (2, 3))
    assert topology.nic_bytes_per_s == (None, None)


def test_links_of_a_cube_add_up_to_six_and_join_all_gpus() -> None:
    topology = read_nvidia_smi_topo(FILES / "topo_v100_cube.txt")
    # GPU0: NV1 + NV1 + NV2 + NV2 = 6 links, as a V100 has
    assert {place.nvlinks for place in topology.gpus} == {6}
    assert topology.islands == (tuple(range(8)),)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("GPU3\tSYS", "GPU9\tSYS", "the row of 'GPU3' is missing"),
        ("GPU1\tNV12", "GPU1\tNV4", "row GPU1: the link to GPU0 differs"),
        ("GPU2\tSYS", "GPU2\tABC", "row GPU2: 'ABC' is not a link"),
        ("GPU3\tSYS\tSYS\tNV12", "GPU3\tSYS", "row GPU3"),
        ("\x1b[4mGPU1", "\x1b[4mGPU0", "different devices"),
    ],
)
def test_a_broken_matrix_names_the_row(tmp_path: Path, old: str, new: str, expected: str) -> None:
    with pytest.raises(ProfileError, match=r"^topo_pcie_pairs.txt: ") as raised:
        read_nvidia_smi_topo(changed(tmp_path, "topo_pcie_pairs.txt", old, new))
    assert expected in str(raised.value)


def test_a_dump_of_nccl_tells_islands_cards_and_slots() -> None:
    topology = read_nccl_topology(FILES / "nccl_h100_4.xml")
    assert topology.islands == ((0, 1, 2, 3),)
    assert [place.nvlinks for place in topology.gpus] == [18] * 4  # 5 + 4 + 4 + 5 to four switches
    # 400000 Mbit/s = 50 GB/s; PCIe 5.0 × 16: 32e9 · 16 · 128 / 130 / 8 = 63.0 GB/s
    assert topology.nic_bytes_per_s == (50e9,) * 4
    assert topology.gpus[0].pcie_bytes_per_s == pytest.approx(63.015e9, rel=1e-4)


def test_gpus_that_link_to_each_other_only_are_pairs() -> None:
    topology = read_nccl_topology(FILES / "nccl_a100_pairs.xml")
    assert topology.islands == ((0, 1), (2, 3))
    assert topology.gpus[0].pcie_bytes_per_s is None  # the virtual machine does not show it


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("</system>", "", "is not well-formed XML"),
        ('<system version="1">', '<!DOCTYPE a [<!ENTITY b "c">]><system version="1">', "document type"),
        ('count="12"', 'count="many"', "nvlink count: 'many' is not a whole number"),
        ('speed="100000"', 'speed="99999999999"', "net speed: 99999999999 is out of range"),
        ('target="0002:00:00.0"', "", "nvlink: expected the attribute target"),
        ("</system>", " " * 2**22 + "</system>", "larger than 4 MiB, too large for one node"),
    ],
)
def test_a_broken_dump_names_what_was_expected(tmp_path: Path, old: str, new: str, expected: str) -> None:
    with pytest.raises(ProfileError, match=r"^nccl_a100_pairs.xml: ") as raised:
        read_nccl_topology(changed(tmp_path, "nccl_a100_pairs.xml", old, new))
    assert expected in str(raised.value)


def test_a_file_without_gpus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "topo.xml"
    path.write_text('<system version="1"><cpu numaid="0"/></system>')
    with pytest.raises(ProfileError, match="expected at least one <gpu>"):
        read_nccl_topology(path)


def test_gpus_without_nvlink_have_the_rate_of_the_slowest_slot_unless_one_is_unknown() -> None:
    def link(*slots: float | None) -> object:
        gpus = tuple(GpuPlace(nvlinks=0, pcie_bytes_per_s=slot) for slot in slots)
        islands = tuple((index,) for index in range(len(slots)))
        topology = NodeTopology(gpus=gpus, islands=islands, nic_bytes_per_s=())
        return fields_of_topology(topology, find_gpu("l40s"), "x").fields.get("intra_node")

    assert link(32e9, 16e9) == {
        "kind": "pcie",
        "bytes_per_s": 16e9,
        "latency_s": find_gpu("l40s").intra_node.latency_s,
        "source": "x",
    }
    assert link(32e9, None) is None


def _plain_node(gpus: int, nics: tuple[float | None, ...] = (), hosts: int = 1) -> NodeTopology:
    places = (GpuPlace(nvlinks=0),) * gpus
    return NodeTopology(gpus=places, islands=((0,),), nic_bytes_per_s=nics, num_hosts=hosts)


def test_network_cards_share_their_rates_among_the_gpus_unless_one_is_unknown() -> None:
    def link(*rates: float | None) -> object:
        found = fields_of_topology(_plain_node(4, rates), find_gpu("l40s"), "x")
        network = found.fields.get("inter_node")
        return network["bytes_per_s"] if isinstance(network, dict) else found.notes[-1]

    assert link(50e9, 30e9) == 20e9  # 80 GB/s for 4 GPUs
    assert link(50e9, None) == "2 network cards without a rate: assuming the GPU's usual network"
    assert link() == "0 network cards without a rate: assuming the GPU's usual network"


def test_gpus_of_several_hosts_are_shared_out_as_whole_gpus() -> None:
    fields = fields_of_topology(_plain_node(9, hosts=2), find_gpu("l40s"), "x").fields
    assert fields["gpus_per_node"] == 4


# Slurm's topology.conf: host lists, trees and blocks.


def hosts(text: str) -> tuple[str, ...]:
    return expand_hostlist(ForeignFile(name="topology.conf", text=text), text, "line 1")


def refused(folder: Path, text: str) -> str:
    path = folder / "topology.conf"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"^topology.conf: ") as raised:
        read_slurm_topology(path)
    return str(raised.value)


def test_ranges_keep_their_leading_zeros() -> None:
    assert hosts("tux[8-11,020]") == ("tux8", "tux9", "tux10", "tux11", "tux020")
    assert hosts("gpu[008-010]") == ("gpu008", "gpu009", "gpu010")


def test_two_pairs_of_brackets_multiply() -> None:
    assert hosts("r[1-2]n[1-2],login") == ("r1n1", "r1n2", "r2n1", "r2n2", "login")


@pytest.mark.parametrize(
    "text",
    ["tux[3-1]", "tux[1-", "tux]1[", "tux[[1]]", "a,,b", "tux[]", "tux[a-b]", "a b", "t[0-999]u[0-1000]"],
)
def test_a_broken_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ProfileError, match=r"^topology.conf: line 1: "):
        hosts(text)


def test_the_tree_has_every_node_once_and_knows_distances() -> None:
    tree = read_slurm_topology(FILES / "topology_tree.conf")
    # 4 + 3 + 2 · 2 + (2 + 2) nodes
    assert tree.num_nodes == 15
    assert tree.path("gpu008") == ("leaf1", "pod0", "spine")
    assert tree.path("old9") == ("leaf3", "pod1", "spine")


def test_blocks_have_no_common_switch() -> None:
    blocks = read_slurm_topology(FILES / "topology_block.conf")
    assert blocks.block_sizes == (18, 36)
    assert blocks.num_nodes == 36


def test_each_fault_names_its_line_or_switch(tmp_path: Path) -> None:
    leaf = "SwitchName=a Nodes=n1\n"
    assert "line 1: 'Node=n1': expected SwitchName" in refused(tmp_path, "SwitchName=a Node=n1")
    assert "line 1: expected SwitchName=… (or BlockName=…)" in refused(tmp_path, "SwitchName=a")
    assert "switch b: 'c' is not defined" in refused(tmp_path, leaf + "SwitchName=b Switches=c")
    assert "node 'n1': is below two switches" in refused(tmp_path, leaf + "SwitchName=b Nodes=n1")
    assert "line 2: expected up to 100000 different switches" in refused(tmp_path, leaf + leaf)
    ring = "SwitchName=a Switches=b\nSwitchName=b Switches=a\n"
    assert "some switches form a ring" in refused(tmp_path, ring)
    assert "inside a continued line" in refused(tmp_path, leaf + "SwitchName=b \\")
    assert "expected lines such as" in refused(tmp_path, "# nothing")
