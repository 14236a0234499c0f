"""The script with which Slurm starts a placement, next to stand-ins for its commands."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.launchers.post_training.slurm import sbatch_file
from tests.launchers.post_training import placed_roles

COMMANDS = {
    "scontrol": 'printf "n0\\nn1\\nn2\\nn3\\n"',
    "srun": 'echo "$MASTER_ADDR ${VLLM_URL:-none} $*" >"srun-$$.txt"',
}


@pytest.mark.parametrize("serves", [True, False])
def test_training_starts_on_its_nodes_alone_where_others_are_idle(tmp_path: Path, serves: bool) -> None:
    """TRL's file names the number of nodes; of four two train, one is idle, and the last one serves."""
    asked, plan = placed_roles(f"trl-fsdp-{'apart' if serves else 'colocated'}")
    plan = replace(plan, training=replace(plan.training, nodes=2))
    for name, text in {**sbatch_file(asked, plan), **({"serve.sh": ""} if serves else {})}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "bin").mkdir()
    for name, line in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    own = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "n[0-3]"}
    text = (tmp_path / "launch.sbatch").read_text() + "wait\n"
    subprocess.run(["bash", "-c", text], cwd=tmp_path, env=own, check=True, timeout=60)
    url = "http://n3:8000" if serves else "none"
    ran = sorted(path.read_text() for path in tmp_path.glob("srun-*.txt"))
    assert ran[-1].startswith(f"n0 {url} --overlap --nodes=2 --nodelist=n0,n1 bash -c")
    assert len(ran) == 1 + serves
    assert not serves or f"n0 {url} --overlap --nodes=1 --ntasks=1 --nodelist=n3 bash serve.sh\n" in ran
