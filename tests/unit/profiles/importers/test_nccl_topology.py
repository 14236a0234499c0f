"""Nodes as NCCL describes them: islands, NVLinks, slots, nearest network cards."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.nccl_topology import read_nccl_topology

FILES = Path(__file__).parents[1] / "fixtures" / "importers" / "topology"


def changed(folder: Path, name: str, old: str, new: str) -> Path:
    text = (FILES / name).read_text()
    assert old in text
    path = folder / name
    path.write_text(text.replace(old, new, 1))
    return path


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
