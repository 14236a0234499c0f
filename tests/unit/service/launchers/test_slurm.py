"""What an exported Slurm script does when it runs, with a Slurm that places tasks as its manual says."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.service.launchers.registry import export
from meshwright.service.launchers.target import Target
from meshwright.solver.configuration import Configuration
from tests.launcher_cases import A100, LLAMA_70B, target
from tests.launcher_plans import CASES

# Tasks in order: on the hosts of SLURM_HOSTFILE with arbitrary distribution, else on the allocation's.
SRUN = """#!/bin/bash
for option in "$@"; do
    case "${option}" in
        --ntasks=*) tasks="${option#*=}" ;;
        --distribution=*) how="${option#*=}" ;;
        --*) ;;
        *) break ;;
    esac
    shift
done
mapfile -t hosts < <(if [[ "${how}" == arbitrary ]]; then cat "${SLURM_HOSTFILE}"; else scontrol; fi)
for ((task = 0; task < tasks; task++)); do
    echo "task ${task} on ${hosts[task]}"
    SLURM_PROCID="${task}" "$@" || exit
done
"""
SCONTROL = "#!/bin/sh\nseq -f host%g 100\n"
STARTED = '#!/bin/sh\nprintf "<%s>" "$(basename "$0")" "$@"; echo\n'
SITE = (
    "BRIDGE_SCRIPT", "TRAIN_SCRIPT", "NANOTRON_DIR", "SWIFT_DIR", "SWIFT_COMMAND", "LLAMA_FACTORY_DIR",
    "MEGATRON_LM_DIR",
)  # fmt: skip


def written(found: Target, launcher: str, folder: Path) -> Path:
    """The exported files in a folder whose name needs quotes, and the commands that they run."""
    place = folder / "my plan's $HOME"
    (place / "bin").mkdir(parents=True)
    for name, text in export(found.plan, found.problem, launcher).files.items():
        (place / name).write_text(text)
    for name, text in {
        "srun": SRUN,
        "scontrol": SCONTROL,
        "torchrun": STARTED,
        "accelerate": STARTED,
    }.items():
        (place / "bin" / name).write_text(text)
        (place / "bin" / name).chmod(0o755)
    return place


def sbatch(place: Path, nodes: int, *extra: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(place),
        "SLURM_NNODES": str(nodes), "SLURM_JOB_NODELIST": "host[1-8]", "MOCK_DATA": "1",
        **dict.fromkeys(SITE, "/site folder/x.py"), **more,
    }  # fmt: skip
    command = ["bash", str(place / "launch.sbatch"), *extra]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=place.parent
    )


@pytest.mark.parametrize("launcher", CASES)
def test_every_node_starts_with_its_own_rank_and_the_first_ones_address(
    launcher: str, tmp_path: Path
) -> None:
    found = min(CASES[launcher].values(), key=lambda one: one.num_nodes)
    place = written(found, launcher, tmp_path)
    done = sbatch(place, found.num_nodes, "--logging 1 2")
    assert (done.returncode, done.stderr) == (0, "")
    tasks = done.stdout.splitlines()
    assert tasks[::2] == [f"task {rank} on host{rank + 1}" for rank in range(found.num_nodes)]
    for rank, words in enumerate(tasks[1::2]):
        own = "machine_rank" if words.startswith("<accelerate>") else "node-rank"
        assert f"<--{own}><{rank}>" in words
        assert "<host1>" in words
        assert words.endswith("<--logging 1 2>")


MIXED = Configuration(data_parallel_size=4, tensor_parallel_size=8, stage_layers=(80,))


def mixed() -> Target:
    """Two nodes of one kind, then two of another."""
    found = target(LLAMA_70B, MIXED)
    (group,) = found.problem.cluster.groups
    groups = (replace(group, num_nodes=2), replace(group, num_nodes=2, gpu=A100))
    return replace(
        found, problem=replace(found.problem, cluster=replace(found.problem.cluster, groups=groups))
    )


def test_the_order_of_hosts_is_that_of_the_file(tmp_path: Path) -> None:
    place = written(mixed(), "megatron-lm", tmp_path)
    without = sbatch(place, 4)
    assert without.returncode != 0
    assert "HOSTS_FILE: set it to a file of 4 hosts" in without.stderr
    (place / "our hosts").write_text("z9\nb2\na1\nc3\n")
    done = sbatch(place, 4, HOSTS_FILE="our hosts")
    assert (done.returncode, done.stderr) == (0, "")
    tasks = done.stdout.splitlines()
    assert tasks[::2] == ["task 0 on z9", "task 1 on b2", "task 2 on a1", "task 3 on c3"]
    assert all("<--master-addr><z9>" in words for words in tasks[1::2])


WRONG_HOSTS = {
    "one too few": "a\nb\nc\n", "one twice": "a\nb\nc\nc\n", "a line without": "a\n\nb\nc\n",
    "two on a line": "a\nb c\nd\ne\n", "commas": "a,b,c,d\n", "none": "",
    "another system's lines": "a\r\nb\r\nc\r\nd\r\n",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG_HOSTS.values(), ids=WRONG_HOSTS)
def test_a_list_of_hosts_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    place = written(mixed(), "megatron-lm", tmp_path)
    (place / "hosts").write_text(text)
    done = sbatch(place, 4, HOSTS_FILE="hosts")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hosts must name 4 hosts, each once, one a line" in done.stderr


def test_another_number_of_nodes_and_another_folder_are_refused(tmp_path: Path) -> None:
    place = written(mixed(), "megatron-lm", tmp_path)
    wrong = sbatch(place, 3)
    assert wrong.returncode == 2
    assert "needs 4 nodes, Slurm gave 3" in wrong.stderr
    elsewhere = sbatch(place, 4, SLURM_SUBMIT_DIR=str(tmp_path))
    assert elsewhere.returncode == 2
    assert "start this file from its own folder: launch.sh is not in" in elsewhere.stderr
