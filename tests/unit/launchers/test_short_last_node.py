"""The last node of a plan may start fewer ranks than the others: 22 on three nodes of 8 are 8, 8 and 6."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest
import yaml

from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export, launcher_names
from meshwright.profiles.capabilities import launcher_capabilities, launchers_in_order
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.planner.plan import ask
from tests.launchers.plans import problem_of, random_targets

BY_TORCHRUN = ("axolotl", "deepspeed", "llama-factory", "megatron-bridge", "megatron-lm", "torchtitan")
BY_ACCELERATE = ("accelerate", "llama-factory-accelerate", "trl")  # num_processes // num_machines on a node
ABLE = (*BY_TORCHRUN, *BY_ACCELERATE)
REQUIRED = re.compile(r"\$\{([A-Z][A-Z_]+):\?")  # a script's check of a variable


@cache
def exported(launcher: str) -> dict[str, str]:
    problem = parse_problem(
        {
            "model": {"name": "qwen3-0.6b"},
            "cluster": {"name": "dgx-h100", "num_nodes": 3},
            "workload": {"global_batch_size": 66, "seq_length": 1024},
            "launcher": launcher,
            "search": {"pin": {"data_parallel_size": 22}, "top_k": 1, "certify": "none"},
        }
    )
    (plan,) = ask(problem, default_profile(problem.cluster, launcher)).plans
    return dict(export(plan, problem, launcher).files)


def test_launchers_over_torchrun_can_start_a_short_last_node() -> None:
    able = {name for name in launchers_in_order() if launcher_capabilities(name).short_last_node}
    assert able - {"none"} == {*ABLE}


@pytest.mark.parametrize("launcher", ABLE)
def test_each_node_starts_its_own_number_of_ranks(launcher: str, tmp_path: Path) -> None:
    for name, text in exported(launcher).items():
        (tmp_path / name).write_text(text)
    for starter in ("torchrun", "accelerate"):
        (tmp_path / starter).write_text('#!/bin/sh\necho "$@"\n')
        (tmp_path / starter).chmod(0o755)
    script = tmp_path / "launch.sh"
    (tmp_path / "given").write_text("base_model: Qwen/Qwen3-0.6B\n")
    given = dict.fromkeys(REQUIRED.findall(script.read_text()), "given") | {"CHECK_PACKAGES": "0"}
    started = []
    for rank in ("0", "1", "2"):
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", script], env={**given, "PATH": path, "NODE_RANK": rank}, cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        words = done.stdout.split()
        if launcher in BY_TORCHRUN:
            assert words[words.index("--nnodes") + 1] == "3"
            started.append(int(words[words.index("--nproc-per-node") + 1]))
        else:
            assert yaml.safe_load((tmp_path / "accelerate.yaml").read_text())["num_machines"] == 3
            started.append(int(words[words.index("--num_processes") + 1]) // 3)
    assert started == [8, 8, 6]


@pytest.mark.parametrize("launcher", ABLE)
def test_files_of_a_short_last_node_are_read_back_as_they_start(launcher: str) -> None:
    files = exported(launcher)
    for name in ("launch.sh", "launch.sbatch"):
        found = read_launch_files(Source(name=name, text=files[name], files=files), Overrides())
        assert (found.num_nodes, found.gpus_per_node, found.idle_gpus) == (3, 8, 2)
        assert found.configuration.data_parallel_size == found.configuration.num_gpus == 22


def test_the_header_of_a_script_with_one_number_for_all_nodes_no_longer_counts() -> None:
    files = exported("megatron-lm")
    edited = re.sub(r"GPUS_PER_NODE=.*", "GPUS_PER_NODE=8", files["launch.sh"])
    source = Source(name="launch.sh", text=edited, files={**files, "launch.sh": edited})
    with pytest.raises(InvalidProblemError, match="66 is not a multiple of micro-batch × data parallel"):
        read_launch_files(source, Overrides())  # 24 replicas don't share 66 sequences


RANKED = "NODE_RANK=${SLURM_NODEID:-0}\n"
BY_HAND = f"""{RANKED}torchrun --nnodes 3 --nproc-per-node $((NODE_RANK < 2 ? 8 : 6)) \
    --node-rank $NODE_RANK --master-addr first pretrain_gpt.py --num-layers 32 --hidden-size 4096 \
    --num-attention-heads 32 --ffn-hidden-size 14336 --swiglu --seq-length 2048 --vocab-size 128256 \
    --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 528 --bf16
"""
TESTED = BY_HAND.replace(RANKED, f"{RANKED}EACH=8\nif [ $NODE_RANK -eq 2 ]; then EACH=6; fi\n").replace(
    "$((NODE_RANK < 2 ? 8 : 6))", "$EACH"
)
RENAMED = BY_HAND.replace(RANKED, "N=${SLURM_NODEID:-0}\n").replace("NODE_RANK", "N")
TRLS = f"""{RANKED}accelerate launch --multi_gpu --num_machines 3 --machine_rank $NODE_RANK \
    --num_processes $((NODE_RANK < 2 ? 24 : 18)) --main_process_ip first -m trl.scripts.sft \
    --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara --max_length 1024 --packing \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 3 --bf16
"""


@pytest.mark.parametrize(
    "script", [BY_HAND, TESTED, RENAMED, TRLS], ids=["expression", "condition", "renamed", "accelerate"]
)
def test_a_script_that_asks_for_the_rank_of_its_node_is_read_with_its_short_last_node(script: str) -> None:
    given = Overrides(model=find_model("qwen3-0.6b")) if script is TRLS else Overrides()
    found = read_launch_files(Source(name="train.sh", text=script), given)
    assert (found.num_nodes, found.gpus_per_node, found.idle_gpus) == (3, 8, 2)
    assert found.configuration.num_gpus == found.started_gpus == 22


def test_a_script_that_starts_on_its_first_node_alone_is_read_as_its_launcher_starts_all() -> None:
    waits = BY_HAND.replace(RANKED, f"{RANKED}if [ $NODE_RANK = 0 ]; then\n").replace(
        "$((NODE_RANK < 2 ? 8 : 6))", "8"
    )
    found = read_launch_files(Source(name="train.sh", text=f"{waits}fi\n"), Overrides())
    assert (found.num_nodes, found.gpus_per_node, found.idle_gpus) == (3, 8, 0)


def test_a_script_whose_nodes_are_alike_or_are_unlike_elsewhere_is_read_or_refused() -> None:
    alike = BY_HAND.replace("8 : 6", "8 : 8")
    assert read_launch_files(Source(name="train.sh", text=alike), Overrides()).idle_gpus == 0
    for unlike in ("NODE_RANK < 1 ? 8 : 6", "NODE_RANK < 2 ? 6 : 8"):
        text = BY_HAND.replace("NODE_RANK < 2 ? 8 : 6", unlike)
        with pytest.raises(InvalidProblemError, match="nodes start unlike numbers of processes"):
            read_launch_files(Source(name="train.sh", text=text), Overrides())


@cache
def exported_on_part_of_a_node(launcher: str, gpus: int) -> dict[str, str]:
    model = find_model("llama-3-70b" if launcher == "nanotron" else "qwen3-0.6b")
    plain = problem_of(launcher, model, seq_length=1024, num_nodes=1, batch=56)
    problem = replace(plain, options=replace(plain.options, num_gpus=(gpus,)))
    (found,) = random_targets(problem, 1, Random(launcher))
    return dict(export(found.plan, problem, launcher).files)


@pytest.mark.parametrize("gpus", [1, 7, 8])
@pytest.mark.parametrize("launcher", [one for one in launcher_names() if one != "flagscale"])
def test_a_plan_on_some_gpus_of_a_node_sees_these_alone(launcher: str, gpus: int, tmp_path: Path) -> None:
    files = exported_on_part_of_a_node(launcher, gpus)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for starter in ("torchrun", "accelerate", "python3"):
        (tmp_path / starter).write_text('#!/bin/sh\necho "${CUDA_VISIBLE_DEVICES:-all}"\n')
        (tmp_path / starter).chmod(0o755)
    (tmp_path / "given").write_text("base_model: meta-llama/Llama-3.2-1B\n")
    script, usual = tmp_path / "launch.sh", "all" if gpus == 8 else ",".join(map(str, range(gpus)))
    given = dict.fromkeys(REQUIRED.findall(script.read_text()), "given") | {"CHECK_PACKAGES": "0"}
    given["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for chosen, seen in (({}, usual), ({"CUDA_VISIBLE_DEVICES": "5,3"}, "5,3")):
        done = subprocess.run(
            ["bash", script], env={**given, **chosen}, cwd=tmp_path, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == seen
    found = read_launch_files(Source(name="launch.sh", text=files["launch.sh"], files=files), Overrides())
    assert found.started_gpus == found.configuration.num_gpus == gpus
