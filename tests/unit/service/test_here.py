"""This machine as a cluster, from recorded outputs of real tools."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.inline import cluster_from_mapping
from meshwright.service import here
from meshwright.service.cli.main import app

RECORDED: list[Mapping[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "machines.yaml").read_text(encoding="utf-8")
)
TOPOLOGIES = Path(__file__).parents[1] / "profiles" / "fixtures" / "importers" / "topology"


def topology(name: str) -> str | None:
    if name == "all SYS of 8":
        names = [f"GPU{number}" for number in range(8)]
        cells = {one: ["X" if one == other else "SYS" for other in names] for one in names}
        return "\n".join(["\t" + "\t".join(names), *(f"{one}\t" + "\t".join(cells[one]) for one in names)])
    if name == "underlined":
        header = "\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
        return f"{header}\nGPU0\t X \tNV18\t0-15\t0\t\tN/A\nGPU1\tNV18\t X \t0-15\t0\t\tN/A\n"
    return (TOPOLOGIES / name).read_text() if name else None


def machine_of(recorded: Mapping[str, Any]) -> here.Machine:
    outputs: dict[str, str] = dict(recorded.get("run", {}))

    def run(command: Sequence[str]) -> str | None:
        if list(command[:3]) == ["nvidia-smi", "topo", "-m"]:
            return topology(recorded.get("topology", ""))
        if "torch" in command[-1]:
            return recorded.get("torch")
        text = next((one for name, one in outputs.items() if " ".join(command).startswith(name)), None)
        if text is not None and "\n* " in text:  # a line that is printed so many times
            line, _, times = text.partition("\n* ")
            return "\n".join([line] * int(times))
        return text

    return here.Machine(
        run=run,
        read=recorded.get("read", {}).get,
        list_folder=lambda path: recorded.get("folders", {}).get(path, ()),
        environment=recorded.get("environment", {}),
        release=lambda name: "2.11.0" if name == "torch" and "torch" in recorded else None,
    )


def short(group: Mapping[str, Any]) -> dict[str, Any]:
    links = {
        name: (one["kind"], one["bytes_per_s"]) for name, one in group.items() if isinstance(one, dict)
    }
    return {**group, **links}


@pytest.mark.parametrize("recorded", RECORDED, ids=[one["machine"] for one in RECORDED])
def test_a_machine_is_described_as_its_tools_print_it(recorded: Mapping[str, Any]) -> None:
    found = here.look(machine_of(recorded))
    assert found is not None
    groups: Any = found.cluster["groups"]
    assert len(groups) == len(recorded["groups"])
    for group, expected in zip(map(short, groups), recorded["groups"], strict=True):
        for name, value in expected.items():
            if isinstance(value, list):
                kind, rate = group[name]
                assert (kind, rate) == (value[0], pytest.approx(float(value[1])))
            else:
                assert group[name] == value, name
    assert not {*recorded.get("absent", [])} & {name for group in groups for name in group}
    assert recorded.get("all_notes", found.notes) == found.notes
    assert [note for note in recorded.get("notes", []) if note not in found.notes] == []
    cluster = cluster_from_mapping(found.cluster)
    assert cluster.num_nodes == sum(one["num_nodes"] for one in recorded["groups"])


def test_a_machine_without_a_gpu_says_so_with_a_tip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "this_machine", lambda: machine_of({}))
    run = CliRunner().invoke(app, ["here"])
    assert (run.exit_code, run.stderr.count("\n")) == (3, 2)
    assert "no GPU here" in run.stderr


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_gpus_are_none(hidden: str) -> None:
    assert here.look(machine_of({**RECORDED[0], "environment": {"CUDA_VISIBLE_DEVICES": hidden}})) is None


def test_a_gpu_that_the_catalog_lacks_is_named() -> None:
    recorded = {"run": {"nvidia-smi --query": "Quadro RTX 4000, 8192, 3, 16, [N/A]"}}
    with pytest.raises(InvalidProblemError, match="Quadro RTX 4000 with 8 GiB"):
        here.look(machine_of(recorded))


def test_garbage_of_every_tool_is_no_gpu() -> None:
    text = "\x00 {[ error: 12, ,, 3\nCA 'x\nNodeName= Gres=gpu:"
    names = ("nvidia-smi --query", "rocm-smi", "ibstat", "lsblk", "scontrol", "kubectl")
    assert here.look(machine_of({"run": dict.fromkeys(names, text), "torch": text})) is None


def test_a_hostfile_counts_the_nodes(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    recorded = {
        "run": {"nvidia-smi --query": "NVIDIA A100-SXM4-80GB, 81920, 4, 16, Disabled"},
        "read": {str(hosts): "one slots=1\ntwo slots=1  # rack 2\n\nthree:1\n"},
    }
    found = here.look(machine_of(recorded), hostfile=hosts)
    assert found is not None
    assert "3 nodes, by" in " ".join(found.seen)
    recorded["read"] = {str(hosts): "one slots=1\ntwo slots=4\n"}
    found = here.look(machine_of(recorded), hostfile=hosts)
    assert found is not None
    assert "two has 4 slots in hosts: all are taken for nodes of 1 GPUs, as this one is" in found.notes
    for text, why in (
        ("# none\n", "names no host"),
        ("one\ntwo slots=eight\n", "line 2: eight is no number"),
    ):
        recorded["read"] = {str(hosts): text}
        with pytest.raises(InvalidProblemError, match=why):
            here.look(machine_of(recorded), hostfile=hosts)
    with pytest.raises(InvalidProblemError, match="cannot be read"):
        here.look(machine_of(recorded), hostfile=tmp_path / "none")


def test_a_driver_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA-SMI has failed: no driver\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert here.why_none(here.this_machine()) == "no GPU here: nvidia-smi: NVIDIA-SMI has failed: no driver"


def test_here_writes_a_file_and_plan_takes_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "this_machine", lambda: machine_of(RECORDED[0]))
    written = CliRunner().invoke(app, ["here", "--out", str(tmp_path / "cluster.yaml"), "--num-nodes", "2"])
    assert written.exit_code == 0, written.output
    batch = ["--global-batch-size", "16", "--seq-length", "2048", "--launcher", "trl", "--json"]
    for cluster in ("here", str(tmp_path / "cluster.yaml")):
        run = CliRunner().invoke(app, ["plan", "smollm-135m", "--cluster", cluster, *batch])
        assert run.exit_code == 0, run.output
