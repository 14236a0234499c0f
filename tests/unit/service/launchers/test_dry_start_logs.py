"""A dry start of ten steps logs enough step times for ``meshwright import``, whatever the launcher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from meshwright.profiles.importers.registry import import_profile
from meshwright.profiles.measurements import MeasuredRun
from meshwright.service.launchers.megatron_lm import MegatronLm
from meshwright.service.launchers.registry import export
from meshwright.service.launchers.target import ExportBundle
from meshwright.solver.configuration import Configuration
from tests.launcher_cases import LLAMA_70B, target
from tests.launcher_plans import CASES
from tests.training_logs import (
    deepspeed_log,
    megatron_arguments,
    megatron_log,
    nanotron_log,
    torchtitan_log,
    words_of_start,
)

STEP_S = 6.9


def folder_of(bundle: ExportBundle, folder: Path) -> Path:
    for name, text in bundle.files.items():
        (folder / name).write_text(text)
    return folder


def read(folder: Path, text: str) -> MeasuredRun:
    (folder / "train.log").write_text(text)
    run = import_profile(folder / "train.log")
    assert isinstance(run, MeasuredRun)
    return run


@pytest.mark.parametrize("environment", [{}, {"TRAIN_ITERS": "6"}])
def test_megatron_lm(tmp_path: Path, environment: dict[str, str]) -> None:
    config = Configuration(data_parallel_size=2, tensor_parallel_size=8, stage_layers=(80,))
    folder = folder_of(MegatronLm().export(target(LLAMA_70B, config)), tmp_path)
    arguments = megatron_arguments(words_of_start(folder, **environment), 16)
    run = read(folder, megatron_log(arguments, STEP_S))
    assert run.step_time_s == pytest.approx(STEP_S, rel=0.003)
    # every step but the first two, which warm up
    assert run.num_steps == int(environment.get("TRAIN_ITERS", "10")) - 2
    assert run.flops_per_s_per_gpu == pytest.approx(400e12)


def test_a_real_run_of_megatron_lm_logs_every_tenth_step(tmp_path: Path) -> None:
    config = Configuration(data_parallel_size=2, tensor_parallel_size=8, stage_layers=(80,))
    folder = folder_of(MegatronLm().export(target(LLAMA_70B, config)), tmp_path)
    real = {"MOCK_DATA": "0", "DATA_PATH": "d", "TOKENIZER_TYPE": "t", "TOKENIZER_MODEL": "m", "LR": "1e-4"}
    arguments = megatron_arguments(words_of_start(folder, TRAIN_ITERS="90", **real), 16)
    assert read(folder, megatron_log(arguments, STEP_S)).step_time_s == pytest.approx(STEP_S, rel=0.003)


def test_megatron_bridge(tmp_path: Path) -> None:
    """``training_log`` in src/megatron/bridge/training/utils/train_utils.py prints Megatron-LM's line."""
    case = next(iter(CASES["megatron-bridge"].values()))
    folder = folder_of(export(case.plan, case.problem, "megatron-bridge"), tmp_path)
    words = [word.partition("=") for word in words_of_start(folder)]
    interval = next(value for name, _, value in words if name == "logger.log_interval")
    arguments = {"log_interval": interval, "train_iters": "10", "global_batch_size": "128"}
    assert read(folder, megatron_log(arguments, STEP_S)).step_time_s == pytest.approx(STEP_S, rel=0.003)


@pytest.mark.parametrize("name", list(CASES["deepspeed"]))
def test_deepspeed(tmp_path: Path, name: str) -> None:
    case = CASES["deepspeed"][name]
    files = export(case.plan, case.problem, "deepspeed").files
    pipeline = case.plan.config.pipeline_parallel_size > 1
    text = deepspeed_log(json.loads(files["ds_config.json"]), 64, STEP_S, pipeline=pipeline)
    run = read(tmp_path, text)
    assert run.step_time_s == pytest.approx(STEP_S, rel=1e-3)
    assert run.configuration["micro_batch_size"] == case.plan.config.micro_batch_size


def test_nanotron(tmp_path: Path) -> None:
    case = next(iter(CASES["nanotron"].values()))
    config = yaml.safe_load(export(case.plan, case.problem, "nanotron").files["nanotron.yaml"])
    run = read(tmp_path, nanotron_log(config, STEP_S))
    assert run.framework == "nanotron"
    assert run.step_time_s == pytest.approx(STEP_S, rel=0.005)  # three digits
    # dp 8 with 16 micro-batches of 1 sequence; tp 8 * dp 8 GPUs
    assert (run.configuration["global_batch_size"], run.configuration["num_gpus"]) == (128, 64)


def test_torchtitan(tmp_path: Path) -> None:
    case = next(iter(CASES["torchtitan"].values()))
    folder = folder_of(export(case.plan, case.problem, "torchtitan"), tmp_path)
    # 128 sequences of 8192 tokens on 64 GPUs in 16.384 s: 1000 tokens a second and GPU
    text = "Building device mesh with parallelism: dp_shard=64\n"
    text += "Trainer is initialized with local batch size 1, global batch size 128, "
    text += "gradient accumulation steps 2, sequence length 8192\n"
    run = read(folder, text + torchtitan_log(words_of_start(folder), 1000.0))
    assert run.step_time_s == pytest.approx(16.384, rel=1e-3)
