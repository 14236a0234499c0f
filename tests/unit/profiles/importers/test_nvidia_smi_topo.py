"""Nodes as nvidia-smi describes them: islands, NVLinks, rows that contradict each other."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.nvidia_smi_topo import read_nvidia_smi_topo
from tests.unit.profiles.importers.test_nccl_topology import FILES, changed


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
