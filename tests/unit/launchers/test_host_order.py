"""The order of hosts in launch files, where links between nodes differ."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.launchers.registry import export
from meshwright.launchers.schedulers import scheduled
from meshwright.launchers.target import ExportBundle
from meshwright.solver.answer import HostOrder, Plan
from meshwright.solver.configuration import Configuration
from meshwright.solver.problem import Problem
from tests.launchers.cases import LLAMA_70B, target
from tests.launchers.plans import CASES

CONFIG = Configuration(data_parallel_size=2, tensor_parallel_size=8, stage_layers=(80,))
LAUNCHERS = sorted(set(CASES) - {"flagscale"})


def an_order(*, named: bool) -> HostOrder:
    return HostOrder(
        order=(2, 0, 1),
        hosts=("gpu-c", "gpu-a") if named else (),
        listed_step_time_s=2.0,
        bound_step_time_s=1.0,
        gap=0.5,
        slowest_bytes_per_s={"data": 25e9},
    )


def ordered(*, named: bool) -> tuple[Plan, Problem]:
    found = target(LLAMA_70B, CONFIG)
    return replace(found.plan, hosts=an_order(named=named)), found.problem


def exported(*, named: bool) -> ExportBundle:
    return export(*ordered(named=named), "megatron-lm")


def test_slurm_starts_the_hosts_in_the_order_of_the_plan(tmp_path: Path) -> None:
    bundle = exported(named=True)
    assert bundle.files["hosts.txt"] == "gpu-c\ngpu-a\n"
    script = bundle.files["launch.sbatch"]
    assert "#SBATCH --nodelist=gpu-c,gpu-a\n" in script
    for name, text in bundle.files.items():
        (tmp_path / name).write_text(text)
    commands = {
        "squeue": "exit 0",
        "scontrol": 'printf "gpu-a\\ngpu-c\\n"',
        "srun": 'echo "$SLURM_HOSTFILE $MASTER_ADDR $*" >srun.txt',
    }
    (tmp_path / "bin").mkdir()
    for name, line in commands.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    own = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path)}
    own |= {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "gpu-[a,c]"}
    subprocess.run(["bash", "launch.sbatch"], cwd=tmp_path, env=own, check=True, timeout=60)
    file, master, *words = (tmp_path / "srun.txt").read_text().split()
    assert (file, master) == ("hosts.txt", "gpu-c")
    assert "--distribution=arbitrary" in words


def test_hosts_without_names_are_asked_for_by_number() -> None:
    bundle = exported(named=False)
    assert "hosts.txt" not in bundle.files
    assert "by number from 0: 2 0" in bundle.files["launch.sbatch"]
    assert ': ${HOSTS_FILE:?"set it to' in bundle.files["launch.sbatch"]
    assert any("in this order: 2 0" in one for one in bundle.warnings)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_every_launcher_on_several_nodes_names_its_hosts(launcher: str) -> None:
    several = [one for one in CASES[launcher].values() if one.num_nodes > 1]
    for case in several:
        names = tuple(f"host-{number}" for number in reversed(range(case.num_nodes)))
        order = replace(an_order(named=True), order=tuple(range(case.num_nodes)), hosts=names)
        files = export(replace(case.plan, hosts=order), case.problem, launcher).files
        assert files["hosts.txt"].split() == list(names)
        assert f"MASTER_ADDR:-{names[0]}" in files["launch.sh"]


def test_a_scheduler_that_places_no_ranks_is_warned_of() -> None:
    plan, problem = ordered(named=True)
    bundle = scheduled(export(plan, problem, "megatron-lm"), plan, problem, "trainjob")
    assert any("depends on their order" in one for one in bundle.warnings)


def test_a_plan_on_like_links_keeps_its_files() -> None:
    plan, problem = ordered(named=True)
    plain = export(replace(plan, hosts=None), problem, "megatron-lm").files
    assert "hosts.txt" not in plain
    assert "--nodelist=gpu" not in plain["launch.sbatch"]
