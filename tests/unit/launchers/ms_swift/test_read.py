"""Arguments of ms-swift with which another training runs than the one that is priced."""

from __future__ import annotations

import pytest

from meshwright.launchers.flags import flags_of
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
