"""Arguments of ms-swift with which another training runs than the one that is priced."""

from __future__ import annotations

import pytest

from meshwright.launchers.flags import flags_of
from meshwright.launchers.reading.base import Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError
from tests.unit.launchers.reading.test_unknown_values import answer, read
from tests.unit.launchers.reading.written_scripts import SCRIPTS

SCRIPT, FILES = SCRIPTS["ms-swift"]
REFUSED = sorted(
    name for name, flag in flags_of("ms-swift").items() if flag.role == "refused" and flag.needs is None
)


def with_argument(name: str, value: str) -> object:
    assert SCRIPT.count(" --micro_batch_size") == 1
    return answer(SCRIPT.replace(" --micro_batch_size", f" --{name} {value} --micro_batch_size"), FILES)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_table_refuses_is_refused_with_its_reason(name: str) -> None:
    flag = flags_of("ms-swift")[name]
    switched = "false" if flag.default is True else "true"
    found = with_argument(name, switched if flag.kind == "switch" else "7")
    own = not flag.by or "megatron" in flag.by
    assert (flag.why if own else f"--{name}: line 1: is unknown, and megatron sft stops there") in str(
        found
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("rlhf_type", "dpo"), ("num_labels", "2"), ("sft_type", "longlora"), ("quantization_bit", "4")],
)
def test_other_trainings_of_the_trainer_are_refused_on_megatron_core_too(name: str, value: str) -> None:
    assert f"--{name}" in str(with_argument(name, value))


@pytest.mark.parametrize(("name", "value"), [("task_type", "causal_lm"), ("tuner_backend", "peft")])
def test_a_value_that_is_priced_changes_nothing(name: str, value: str) -> None:
    assert with_argument(name, value) == with_argument("seed", "1")


def test_weights_in_4_bits_are_priced_on_the_trainer() -> None:
    script, files = SCRIPTS["swift sft"]
    assert read(script, **files).workload.base_precision == "bf16"
    script = script.replace(" --lora_rank", " --quantization_bit 4 --lora_rank")
    assert read(script, **files).workload.base_precision.startswith("nf4")


@pytest.mark.parametrize(("count", "processes"), [("", 1), ("NPROC_PER_NODE=2 ", 2)])
def test_processes_of_ms_swift_on_several_gpus_each_are_refused(count: str, processes: int) -> None:
    text = f"CUDA_VISIBLE_DEVICES=0,1,2,3 {count}swift sft --model Qwen/Qwen3-8B --max_length 2048 "
    text += "--torch_dtype bfloat16 --per_device_train_batch_size 1"
    with pytest.raises(InvalidProblemError, match=r"NPROC_PER_NODE: \d on 4 visible GPUs"):
        read(f"{text}\n")
    assert read(f"{text} --deepspeed zero3\n").configuration.data_parallel_size == processes


def test_names_of_ms_swift_2_are_read() -> None:
    text = (
        "NPROC_PER_NODE=4 swift sft --model_id_or_path Qwen/Qwen2-7B-Instruct --sft_type full --dtype AUTO "
    )
    found = read(f"{text}--batch_size 4 --gradient_accumulation_steps 8 --deepspeed default-zero3\n")
    assert (found.configuration.zero_stage, found.configuration.micro_batch_size) == (3, 4)
    assert (found.workload.global_batch_size, found.workload.seq_length) == (4 * 4 * 8, 2048)
    assert found.workload.lora_rank == 0


WORDS = "--model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --max_length 2048 --bf16 true"


def test_what_is_no_language_model_is_refused_by_its_task() -> None:
    with pytest.raises(InvalidProblemError, match="task_type: line 1: cannot be read"):
        read(f"swift sft {WORDS} --task_type reranker\n")


def test_a_file_in_ms_swifts_names_has_its_defaults() -> None:
    text = "model: Qwen/Qwen2.5-7B\ntuner_type: lora\nmax_length: 2048\nper_device_train_batch_size: 1\n"
    text += "lora_rank: 8\ntarget_modules: all-linear\ntorch_dtype: bfloat16\n"
    found = read_launch_files(Source(name="a.yaml", text=text), Overrides(num_gpus=2))
    # a batch of 16 is filled: 8 micro-batches of 2 ranks; layers recompute
    assert (found.workload.global_batch_size, found.workload.lora_rank) == (16, 8)
    assert found.configuration.recompute_granularity == "full"


@pytest.mark.parametrize(
    ("more", "evaluates"),
    [
        ("--val_dataset ours", True),
        ("--split_dataset_ratio 0.01", True),
        ("--split_dataset_ratio 0", False),
        ("", False),
        ("--val_dataset ours --eval_strategy no", False),
        ("--val_dataset ours --save_strategy no", False),
        ("--val_dataset ours --save_strategy no --eval_strategy steps", True),
        ("--eval_strategy steps", False),
    ],
)
def test_ms_swift_evaluates_data_that_it_has_as_often_as_it_saves(more: str, evaluates: bool) -> None:
    options = read(f"swift sft {WORDS} {more}\n").workload.framework_options
    assert ("evaluation_batch_size" in options) == evaluates
