"""TRL's commands and files of arguments: what its own program does, and what tells preferences."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError

OWN = (
    "model_name_or_path: meta-llama/Llama-2-7b-hf\nmax_length: 2048\npacking: true\ndtype: bfloat16\n"
    "per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\n"
)
SHARED = (
    "num_machines: 1\nnum_processes: 8\ncompute_environment: LOCAL_MACHINE\n"
    "distributed_type: DEEPSPEED\ndeepspeed_config:\n"
)
BY_JSON = "deepspeed_config_file: z.json"
DS = '{"bf16": {"enabled": true}, "zero_optimization": {"stage": %d}}'


def on_deepspeed(own: str, plugin: str, stage: int) -> LaunchFile:
    """TRL's file under accelerate's plugin, which may name DeepSpeed's file of a stage."""
    run = "accelerate launch --config_file a.yaml -m trl.scripts.sft --config own.yaml\n"
    files = {"a.yaml": f"{SHARED}  {plugin}\n", "own.yaml": own, "z.json": DS % stage, "run.sh": run}
    return read_launch_files(Source(name="run.sh", text=run, files=files))


@pytest.mark.parametrize("plugin", ["zero_stage: 2", BY_JSON])
def test_trl_runs_on_accelerates_plugin_of_deepspeed(plugin: str) -> None:
    found = on_deepspeed(OWN, plugin, 2)
    # DeepSpeed keeps weights in fp32 next to those that are loaded in bf16
    assert (found.launcher, found.workload.optimizer) == ("deepspeed", "adamw")
    assert (found.configuration.zero_stage, found.configuration.zero_shard_size) == (2, 8)
    # 8 processes × 2 × 4
    assert (found.workload.global_batch_size, found.configuration.recompute_granularity) == (64, "full")
    assert (found.num_nodes, found.gpus_per_node, found.unread) == (1, 8, ())


@pytest.mark.parametrize("plugin", ["zero_stage: 3", BY_JSON])
def test_weights_of_4_bits_are_not_cut_over_ranks(plugin: str) -> None:
    with pytest.raises(InvalidProblemError, match="load_in_4bit: line 8: weights of 4 bits cut over ranks"):
        on_deepspeed(f"{OWN}use_peft: true\nload_in_4bit: true\n", plugin, 3)


@pytest.mark.parametrize("line", ["beta: 0.05", "loss_type: apo_zero", "precompute_ref_log_probs: true"])
def test_preferences_are_told_by_their_own_words(line: str) -> None:
    text = (
        "model_name_or_path: Qwen/Qwen3-8B\nper_device_train_batch_size: 1\nmax_length: 2048\nbf16: true\n"
    )
    plain, found = (
        read_launch_files(Source(name="a.yaml", text=one), Overrides(num_gpus=8))
        for one in (text, f"{text}{line}\n")
    )
    assert plain.workload.sample == "sequence"
    assert (found.launcher, found.workload.sample) == ("trl", "pair")


SFT = (
    "torchrun --nproc_per_node 4 -m trl.scripts.sft --model_name_or_path meta-llama/Llama-2-7b-hf "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 2048 --bf16 True\n"
)


def test_trls_own_program_recomputes_unless_it_is_an_older_one() -> None:
    today, older, alone = (
        read_launch_files(Source(name="a.sh", text=text))
        for text in (
            SFT,
            SFT.replace("max_length", "max_seq_length"),
            SFT.replace("--max_length 2048 ", ""),
        )
    )
    assert today.configuration.recompute_granularity == "full"
    assert older.configuration.recompute_granularity == "none"
    assert alone.workload.seq_length == 1024
    assert "max_length is not given: 1024 is TRL's default" in alone.notes
