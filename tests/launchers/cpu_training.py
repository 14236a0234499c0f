"""Launchers that train on the processes of this machine: Megatron-LM and torchtitan themselves, on gloo.

``examples/cpu_training/launchers`` makes them do without a GPU; here are their pinned environments, the
questions that are asked for them, and the commands that start a plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.cpu_training.closed_loop import TINY, problem_of
from meshwright.service.verify.environments import Environment, make
from tests.launchers.environments import ENVIRONMENTS, TORCHTITAN_ON_CPU
from tests.processes.servers import free_port
from tests.processes.warm_python import RANKS, python

SCRIPTS = Path(__file__).parents[2] / "examples" / "cpu_training" / "launchers"
LAYERS, BATCH = 4, 8


@dataclass(frozen=True)
class OnCpu:
    """A launcher and how it is started here."""

    launcher: str
    environment: Environment
    command: tuple[str, ...]  # of ``tune``; empty: the plan's own launch.sh
    forbid: Mapping[str, Sequence[int]] = field(default_factory=dict)  # that its release cannot run
    loaded: tuple[str, ...] = ()  # what a rank loads first, and may have loaded before it begins

    def variables(self, folder: Path) -> dict[str, str]:
        """What its processes find: its own torchrun first on the path, one thread each.

        Args:
            folder: where a program that starts torchrun is put.
        """
        make(self.environment)
        torchrun = folder / "bin" / "torchrun"
        torchrun.parent.mkdir(parents=True, exist_ok=True)
        paths = f"{self.environment.path}{os.pathsep}{SCRIPTS}"
        own = python(str(self.environment.python), *RANKS, *self.loaded, path=paths)
        torchrun.write_text(f'#!/bin/sh\nexec "{own}" -m torch.distributed.run "$@"\n')
        torchrun.chmod(0o755)
        return {
            "PATH": f"{torchrun.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.environment.path),
            "MEGATRON_LM_DIR": str(SCRIPTS),
            "MASTER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            "CHECK_PACKAGES": "0",  # the stand-ins do without Transformer Engine
        }

    def problem(self, processes: int, top_k: int) -> dict[str, Any]:
        """Which plans train a GPT of four layers on so many processes of this machine."""
        problem = problem_of(TINY)
        pinned = {"virtual_pipeline_size", "context_parallel_size", "expert_parallel_size"}
        cores = {**problem["cluster"]["groups"][0], "gpus_per_node": processes, "island_gpus": processes}
        search = {
            **problem["search"], "top_k": top_k, "constraints": [f"num_gpus == {processes}"],
            "pin": {"recompute_granularity": "none", **dict.fromkeys(sorted(pinned), 1)},
            "forbid": {name: list(values) for name, values in self.forbid.items()},
        }  # fmt: skip
        return {
            **problem, "launcher": self.launcher, "search": search,
            "model": {**problem["model"], "num_layers": LAYERS},
            "cluster": {**problem["cluster"], "groups": [cores]},
            "workload": {**problem["workload"], "global_batch_size": BATCH},
        }  # fmt: skip


MEGATRON_LM = OnCpu("megatron-lm", ENVIRONMENTS["megatron-lm"], (), loaded=("pretrain_gpt",))
TORCHTITAN = OnCpu(
    "torchtitan",
    TORCHTITAN_ON_CPU,
    (
        "torchrun", "--standalone", "--nproc-per-node", "{num_gpus}", str(SCRIPTS / "torchtitan_train.py"),
        "--module", "torchtitan_plan", "--config", "plan", "--training.steps", "{steps}",
        "--metrics.log_freq", "1",
    ),
    # Without shards 0.2 has neither replicas nor mixed precision; on one rank it leaves FSDP out.
    {"zero_stage": (0,), "data_parallel_size": (1,)},
)  # fmt: skip
