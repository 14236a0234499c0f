"""torchrun and accelerate start the launch files of a plan that leaves a part of its last node idle."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.launchers.registry import export
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.planner.plan import ask

SUMS_ITS_RANKS = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
summed = torch.tensor([float(dist.get_rank())])
dist.all_reduce(summed)
names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE")
print(*(os.environ[name] for name in names), int(summed), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("launcher", ["deepspeed", "accelerate"])
def test_two_ranks_of_the_first_node_and_one_of_the_last_train_together(
    launcher: str, tmp_path: Path
) -> None:
    problem = parse_problem(
        {
            "model": {"name": "qwen3-0.6b"},
            "cluster": {"groups": [{"gpu": "a100-sxm-80gb", "num_nodes": 2, "gpus_per_node": 2}]},
            "workload": {"global_batch_size": 3, "seq_length": 1024},
            "launcher": launcher,
            "search": {"pin": {"data_parallel_size": 3}, "top_k": 1, "certify": "none"},
        }
    )
    (plan,) = ask(problem, default_profile(problem.cluster, launcher)).plans
    for name, text in export(plan, problem, launcher).files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(SUMS_ITS_RANKS)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "TRAIN_SCRIPT": str(tmp_path / "train.py"),
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "CHECK_PACKAGES": "0",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    nodes = [
        subprocess.Popen(
            ["bash", tmp_path / "launch.sh"], env={**environment, "NODE_RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    done = [node.communicate(timeout=100) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], done
    ranks = sorted(line for said, _ in done for line in said.splitlines())
    assert ranks == ["0 0 0 3 3", "1 1 0 3 3", "2 0 1 3 3"]  # rank, of its node, node, world, 0 + 1 + 2
