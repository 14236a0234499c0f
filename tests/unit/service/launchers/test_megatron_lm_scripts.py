"""What the exported scripts do when they are run, with a ``torchrun`` that only reports its call."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from meshwright.service.launchers.megatron_lm import MegatronLm
from meshwright.solver.configuration import Configuration
from tests.launcher_cases import LLAMA_70B, target
from tests.megatron_arguments import words


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The exported files of a two-node plan, and a ``torchrun`` that prints how it was called."""
    found = target(
        LLAMA_70B, Configuration(data_parallel_size=2, tensor_parallel_size=8, stage_layers=(80,))
    )
    for name, text in MegatronLm().export(found).files.items():
        (tmp_path / name).write_text(text)
    torchrun = tmp_path / "bin" / "torchrun"
    torchrun.parent.mkdir()
    torchrun.write_text('#!/bin/sh\necho "queues=$CUDA_DEVICE_MAX_CONNECTIONS"\nprintf "%s\\n" "$@"\n')
    torchrun.chmod(0o755)
    return tmp_path


def launch(folder: Path, *extra: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", folder / "launch.sh", *extra],
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


HOST = {"MASTER_ADDR": "node0", "MEGATRON_LM_DIR": "/opt/megatron"}


def test_the_script_starts_torchrun_with_static_ranks_and_every_flag_of_the_plan(folder: Path) -> None:
    done = launch(folder, "--log-interval", "1", NODE_RANK="1", MOCK_DATA="1", **HOST)
    assert (done.returncode, done.stderr) == (0, "")
    seen = done.stdout.splitlines()
    assert seen[0] == "queues=1"
    assert seen[1:5] == ["--nnodes", "2", "--nproc-per-node", "8"]
    assert seen[5:9] == ["--rdzv-backend", "static", "--node-rank", "1"]
    planned = words((folder / "megatron_args.sh").read_text())
    start = seen.index("/opt/megatron/pretrain_gpt.py") + 1
    assert seen[start : start + len(planned)] == planned
    assert "--mock-data" in seen
    assert seen[-2:] == ["--log-interval", "1"]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "MEGATRON_LM_DIR: set it to a checkout of Megatron-LM"),
        ({"MEGATRON_LM_DIR": "/opt/megatron"}, "MASTER_ADDR: set it to the host of node rank 0"),
        ({**HOST, "NODE_RANK": "2"}, "NODE_RANK 2 is not one of 0 to 1"),
        (HOST, "DATA_PATH: set it to the prefix of an indexed data set"),
        ({**HOST, "DATA_PATH": "d"}, "TOKENIZER_TYPE: set it"),
        ({**HOST, "DATA_PATH": "d", "TOKENIZER_TYPE": "t"}, "TOKENIZER_MODEL: set it"),
        ({**HOST, "DATA_PATH": "d", "TOKENIZER_TYPE": "t", "TOKENIZER_MODEL": "m"}, "TRAIN_ITERS: set it"),
    ],
)
def test_the_script_says_what_is_missing(folder: Path, environment: dict[str, str], message: str) -> None:
    done = launch(folder, **environment)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize("given", ["--num-layers", "--num-layers=4"])
def test_the_script_refuses_a_flag_that_would_replace_one_of_the_plan(folder: Path, given: str) -> None:
    done = launch(folder, given, "4", MOCK_DATA="1", **HOST)
    assert done.returncode == 2
    assert "--num-layers belongs to the plan" in done.stderr
