"""Bandwidths of Galvatron, Sailor, vTrain and SimAI."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.foreign.galvatron import read_galvatron
from benchmarks.foreign.records import LinkTable
from benchmarks.foreign.sailor import read_sailor
from benchmarks.foreign.simai import read_simai
from benchmarks.foreign.vtrain import read_vtrain
from meshwright.profiles.errors import ProfileError
from meshwright.profiles.measurements import CollectiveTables

FILES = Path(__file__).parents[3] / "fixtures" / "foreign"
VTRAIN = FILES / "vtrain" / "AR_GPU8_1M_1024M_LUT"
SIMAI = FILES / "simai" / "nic_ratio.csv"


def test_galvatron_tells_neighbours_from_ranks_strided_over_nodes() -> None:
    profile = read_galvatron(FILES / "galvatron" / "allreduce_bandwidth_2nodes_8gpus_per_node.json")
    assert isinstance(profile, CollectiveTables)
    by_kind = {(entry.num_ranks, entry.consecutive): entry.bus_bytes_per_s for entry in profile.averages}
    assert by_kind[8, True] == pytest.approx(155.658e9)
    assert by_kind[8, False] == pytest.approx(20.7724e9)


def test_galvatron_point_to_point_and_overlap_are_read() -> None:
    links = read_galvatron(FILES / "galvatron" / "p2p_bandwidth_2nodes_8gpus_per_node.json")
    overlap = read_galvatron(FILES / "galvatron" / "overlap_coefficient.json")
    assert isinstance(links, CollectiveTables)
    assert isinstance(overlap, CollectiveTables)
    assert links.averages[0].collective == "point_to_point"
    assert overlap.compute_slowdown == pytest.approx(1.1256, abs=1e-4)


def test_galvatron_times_become_tables_in_bytes_and_seconds() -> None:
    profile = read_galvatron(FILES / "galvatron" / "sp_time_1nodes_8gpus_per_node.json")
    assert isinstance(profile, CollectiveTables)
    names = {(table.collective, table.num_ranks) for table in profile.tables}
    assert names == {(name, ranks) for name in ("all_reduce", "all_to_all") for ranks in (2, 4, 8)}
    table = next(t for t in profile.tables if (t.collective, t.num_ranks) == ("all_reduce", 8))
    assert table.payload_bytes[-1] == 2**30
    # 1 GiB in 8.1409 ms: 2 · 7 / 8 · 1.0737e9 / 8.1409e-3 = 230.8 GB/s
    assert table.seconds[-1] == pytest.approx(8.1409e-3)
    assert table.bus_bytes_per_s[-1] == pytest.approx(230.8e9, rel=1e-3)


def test_sailor_links_within_nodes_between_nodes_and_between_zones() -> None:
    inside = read_sailor(FILES / "sailor" / "intra_node_bandwidths.json")
    both = read_sailor(FILES / "sailor" / "network_coeffs_all_homo.json")
    zones = read_sailor(FILES / "sailor" / "multizone_bandwidths_het.json")
    assert isinstance(inside, LinkTable)
    assert isinstance(both, LinkTable)
    assert isinstance(zones, LinkTable)
    assert {link.scope for link in inside.links} == {"intra_node"}
    assert {link.scope for link in both.links} == {"intra_node", "inter_node"}
    far = [link for link in zones.links if link.sender.zone != link.receiver.zone]
    mixed = [link for link in zones.links if link.sender.gpu != link.receiver.gpu]
    assert len(zones.links) == 2 * 2 * 3 * 2 * 2 * 3  # zones, types and counts on both ends
    assert far
    assert mixed


def test_a_sailor_curve_is_a_polynomial_in_the_logarithm_of_megabytes() -> None:
    inside = read_sailor(FILES / "sailor" / "intra_node_bandwidths.json")
    assert isinstance(inside, LinkTable)
    link = inside.links[0]  # A100-40, two GPUs: 0.808 x² + 16.40 x + 32.98 GB/s
    # 64 MB: x = 6, 0.80818532 · 36 + 16.40103598 · 6 + 32.98046678 = 160.48
    assert link.bytes_per_s(64e6) == pytest.approx(160.48e9, rel=1e-4)
    assert link.bytes_per_s(1e3) == link.bytes_per_s(1e6) == pytest.approx(32.98e9, rel=1e-4)
    assert link.bytes_per_s(1e12) == link.peak_bytes_per_s


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"intra": {"A100": {"2": [[1, 2], -5]}}}', "peak: -5 is out of range"),
        ('{"intra": {"A100": {"two": [[1, 2], 5]}}}', "'two' is not a whole number"),
        ('{"intra": {"A100": {"2": [[1, 2], 5]}}, "outer": {}}', "'outer': expected intra or inter"),
        ('{"1": {"2": {"0": [0.1, 0.2]}}}', "layer '0': expected 3 times"),
        ('{"1": {"2": {"0": [0.1, 0.2, 1e9]}}}', "layer '0': 1000000000.0 is out of range"),
        ('{"1": {"2": {"0": [0.1, 0.2, NaN]}}}', "NaN is not a JSON number"),
        ('{"1": 5}', "expected {micro-batch: {tp: {layer: [seconds]}}} or links"),
        ('{"1": {"2"', "(line 1, column 11)"),
        ('{"1": {}, "1": {}}', 'the key "1" is repeated'),
    ],
)
def test_a_broken_sailor_file_names_the_place(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"^profile.json: ") as raised:
        read_sailor(path)
    assert expected in str(raised.value)


def test_vtrain_nanoseconds_become_seconds_and_ranks_come_from_the_name() -> None:
    out_of_place, in_place = read_vtrain(VTRAIN).tables
    assert (out_of_place.num_ranks, out_of_place.collective) == (8, "all_reduce")
    assert out_of_place.payload_bytes[0] == 2**20
    assert out_of_place.seconds[0] == pytest.approx(92.79e-6)
    assert out_of_place.bus_bytes_per_s[0] == pytest.approx(19.78e9)
    assert in_place.seconds[0] == pytest.approx(92.15e-6)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (",92790,", ",92.79,", "line 2: busbw is not 2 (n - 1) / n × size / time of 8 ranks"),
        ("time(ns)", "time(us)", "line 1: expected the columns"),
        ("1048576,262144,float,92790", "1048576,262144,float", "line 2: expected 7 columns, found 6"),
        ("2097152,", "1048576,", "line 3, size(B): sizes must grow"),
        ("1048576,", "1e6,", "line 2, size(B): '1e6' is not a whole number"),
    ],
)
def test_a_broken_table_of_vtrain_names_the_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = VTRAIN.read_text()
    assert old in text
    path = tmp_path / VTRAIN.name
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ProfileError, match=r"^AR_GPU8_1M_1024M_LUT: ") as raised:
        read_vtrain(path)
    assert expected in str(raised.value)


def test_simai_shares_are_by_size_and_nodes() -> None:
    table = read_simai(SIMAI)
    assert table.num_nodes == (1, 2, 4, 8, 16, 32, 64, 128)
    assert table.payload_bytes[0] == 16 * 2**20
    assert table.shares[0][0] == 0.45
    assert table.shares[-1][-1] == 0.919175


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("16777216,0.45", "16777216,45", "line 2, '1 Node(NVLinkx)': 45.0 is out of range"),
        ("Size,", "Bytes,", "line 1: expected the columns Size, 1 Node"),
        ("16777216,", "", "line 2: expected 13 columns, found 12"),
    ],
)
def test_a_broken_table_of_simai_names_the_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "ratio.csv"
    path.write_text(SIMAI.read_text().replace(old, new, 1))
    with pytest.raises(ProfileError, match=r"^ratio.csv: ") as raised:
        read_simai(path)
    assert expected in str(raised.value)


def test_the_catalogs_network_shares_are_distilled_by_a_command(tmp_path: Path) -> None:
    run = distilled(SIMAI, SIMAI, tmp_path / "network.json")
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads((tmp_path / "network.json").read_text())["gpus_per_node"] == 8


@pytest.mark.parametrize("text", ["", "not,a,table\n1,2,3\n", None])
def test_a_wrong_file_is_named_in_one_line(tmp_path: Path, text: str | None) -> None:
    wrong = tmp_path / "wrong.csv"
    if text is not None:
        wrong.write_text(text)
    run = distilled(SIMAI, wrong, tmp_path / "network.json")
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "wrong.csv" in run.stderr
    assert not (tmp_path / "network.json").exists()


def distilled(ring: Path, exchange: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Run ``benchmarks.catalog.network_shares``."""
    command = [sys.executable, "-m", "benchmarks.catalog.network_shares", "--ring", str(ring)]
    command += ["--all-to-all", str(exchange), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False)
