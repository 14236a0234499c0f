"""Runs of nccl-tests between every pair of nodes become a matrix of links."""

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.inline import cluster_from_mapping
from meshwright.service.cli.import_file import ImportRequest, run_import
from meshwright.solver.cost.links import LinkTable

HOSTS = ("gpu-01", "gpu-02", "gpu-03")
RATES = {("gpu-01", "gpu-02"): 6.0, ("gpu-01", "gpu-03"): 48.0, ("gpu-02", "gpu-03"): 45.0}
PAYLOAD = 96_000_000


def a_run(
    one: str, other: str, bus: float, *, program: str = "sendrecv", ranks: int = 1, small_us: float = 0.0,
    payload: int = PAYLOAD,
) -> str:  # fmt: skip
    """What nccl-tests prints of one pair, with so many ranks a host, at a bus bandwidth in GB/s."""
    many = 2 * ranks
    factor = {"sendrecv": 1.0, "all_gather": (many - 1) / many}.get(program, 1.0)
    algorithm = bus / factor
    took_us = payload / algorithm / 1e3
    lines = [f"# Collective test starting: {program}_perf"]
    places = [(host, number) for host in (one, other) for number in range(ranks)]
    for rank, (host, number) in enumerate(places):
        lines.append(
            f"#  Rank {rank:2} Group  0 Pid 9 on {host} device {number} [0x10] NVIDIA H100 80GB HBM3"
        )
    half = f"{took_us:.1f} {algorithm:.2f} {bus:.2f} 0"
    lines += [
        "#    size    count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong",
        "#     (B)  (elements)                    (us)  (GB/s)  (GB/s)        (us)  (GB/s)  (GB/s)",
        *([f"  8 2 float none -1 {small_us:.2f} 0.00 0.00 0 N/A N/A N/A N/A"] if small_us else ()),
        f"  {payload} {payload // 4} float none -1 {half} {half}",
    ]
    return "\n".join(lines) + "\n"


def imported(folder: Path, text: str) -> dict[str, object]:
    log, cluster = folder / "pairs.log", folder / "cluster.yaml"
    log.write_text(text)
    assert run_import(ImportRequest(file=log, out=cluster, gpu="h100-sxm-80gb")) == 0
    (group,) = yaml.safe_load(cluster.read_text())["groups"]
    assert cluster_from_mapping({"groups": [group]}).differs
    assert group["num_nodes"] == len(HOSTS)
    links: dict[str, object] = group["links"]
    return links


def logs(
    rates: Mapping[tuple[str, str], float] = RATES, *, program: str = "sendrecv", ranks: int = 1
) -> str:
    return "".join(a_run(*pair, rate, program=program, ranks=ranks) for pair, rate in rates.items())


def test_a_run_of_each_pair_is_a_symmetric_matrix_with_the_names_of_its_hosts(tmp_path: Path) -> None:
    links = imported(tmp_path, logs())
    assert links["hosts"] == list(HOSTS)
    assert links["bytes_per_s"] == [[0, 6e9, 48e9], [6e9, 0, 45e9], [48e9, 45e9, 0]]
    assert "nccl-tests log" in str(links["source"])


def test_rings_through_eight_gpus_a_node_have_eight_links(tmp_path: Path) -> None:
    links = imported(tmp_path, logs(program="all_gather", ranks=8))
    assert links["bytes_per_s"][0] == pytest.approx([0, 6e9 / 8, 48e9 / 8])  # type: ignore[index]


def test_of_two_runs_of_a_pair_the_slower_counts(tmp_path: Path) -> None:
    links = imported(tmp_path, logs() + a_run("gpu-03", "gpu-01", 12.0))
    assert links["bytes_per_s"][0] == [0, 6e9, 12e9]  # type: ignore[index]


def test_a_run_of_small_messages_alone_states_no_bandwidth(tmp_path: Path) -> None:
    # 64 000 bytes in 32 µs are 2 GB/s, on links of 6 to 48
    small = "".join(a_run(*pair, 2.0, payload=64_000) for pair in RATES)
    links = imported(tmp_path, logs() + small)
    assert links["bytes_per_s"] == [[0, 6e9, 48e9], [6e9, 0, 45e9], [48e9, 45e9, 0]]


def test_small_messages_state_how_much_longer_the_latency_of_a_pair_is(tmp_path: Path) -> None:
    # 25 µs of launch and hop on the fastest pair, 31 and 25.5 on the others; the usual hop is 14 µs
    small = dict(zip(RATES, (31.0, 25.0, 25.5), strict=True))
    text = "".join(a_run(*pair, RATES[pair], small_us=us) for pair, us in small.items())
    links = imported(tmp_path, text)
    late = links["latency_s"]
    assert isinstance(late, list)
    assert late[0] == pytest.approx([0, 20e-6, 14e-6])
    assert late[2] == pytest.approx([14e-6, 14.5e-6, 0])
    only_some = text + a_run("gpu-01", "gpu-04", 40.0) + a_run("gpu-02", "gpu-04", 40.0)
    only_some += a_run("gpu-03", "gpu-04", 40.0)
    (tmp_path / "some.log").write_text(only_some)
    request = ImportRequest(file=tmp_path / "some.log", out=tmp_path / "some.yaml", gpu="h100-sxm-80gb")
    assert run_import(request) == 0
    (group,) = yaml.safe_load((tmp_path / "some.yaml").read_text())["groups"]
    assert "latency_s" not in group["links"]


def test_pairs_without_a_run_have_the_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Disjoint pairs, measured all at once: 2 of 6 have a run, the usual network of an H100 is 50 GB/s."""
    log = tmp_path / "pairs.log"
    log.write_text(logs({("gpu-01", "gpu-02"): 40.0, ("gpu-03", "gpu-04"): 6.0}))
    request = ImportRequest(file=log, out=tmp_path / "cluster.yaml", gpu="h100-sxm-80gb")
    assert run_import(request) == 0
    (group,) = yaml.safe_load((tmp_path / "cluster.yaml").read_text())["groups"]
    assert group["links"]["bytes_per_s"] == [
        [0, 40e9, 50e9, 50e9], [40e9, 0, 50e9, 50e9], [50e9, 50e9, 0, 6e9], [50e9, 50e9, 6e9, 0],
    ]  # fmt: skip
    said = " ".join(capsys.readouterr().err.split())
    assert "no run of 'gpu-01' with 'gpu-03'" in said
    assert "assumed the network's 50 GB/s" in said


def test_measured_bandwidths_carry_no_headers_any_more(tmp_path: Path) -> None:
    """On RoCE, a stated line of 40 GB/s leaves 4122 / 4178 of the payload that InfiniBand leaves."""
    links = imported(tmp_path, logs())
    network = {"kind": "roce", "bytes_per_s": 50e9}
    of = {}
    for measured in (True, False):
        group = {
            "gpu": "h100-sxm-80gb", "num_nodes": 3, "inter_node": network,
            "links": {**links, "measured": measured},
        }  # fmt: skip
        (read,) = cluster_from_mapping({"groups": [group]}).groups
        of[measured] = LinkTable.of(read, 3).slowness
    share = 4122 / 4178
    assert of[True][0, 2] == pytest.approx(50 * share / 48)
    assert of[False][0, 2] == pytest.approx(50 / 48)
    assert of[True][0, 0] == of[False][0, 0] == 1.0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (logs(program="alltoall", ranks=8), "'gpu-01' with 'gpu-02': all_to_all of 16 ranks"),
        (logs(dict.fromkeys(RATES, 0.002)), "largest payload is printed as 0"),
    ],
)
def test_what_is_no_matrix_is_refused_with_the_pair(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(InvalidProblemError, match=word) as refused:
        imported(tmp_path, text)
    assert refused.value.errors[0].pointer == "/links/bytes_per_s"


def test_a_matrix_of_64_nodes_is_read(tmp_path: Path) -> None:
    hosts = [f"n{number:03}" for number in range(64)]
    log = tmp_path / "pairs.log"
    log.write_text(logs(dict.fromkeys(combinations(hosts, 2), 40.0)))
    request = ImportRequest(file=log, out=tmp_path / "cluster.yaml", gpu="h100-sxm-80gb")
    assert run_import(request) == 0
