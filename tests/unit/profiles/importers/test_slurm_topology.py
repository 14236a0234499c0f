"""Slurm's topology.conf: host lists, trees and blocks."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.foreign_file import ForeignFile
from meshwright.profiles.importers.slurm_topology import expand_hostlist, read_slurm_topology

FILES = Path(__file__).parents[1] / "fixtures" / "importers" / "topology"


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
