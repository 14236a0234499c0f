"""Arguments of ms-swift with which another training runs than the one that is priced."""

from __future__ import annotations

import pytest

from meshwright.launchers.flags import flags_of
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
    assert flag.why in str(found)


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
