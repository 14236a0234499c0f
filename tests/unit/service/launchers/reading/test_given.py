"""Faults of values say what is allowed, and say it once."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.launchers.reading.documents import Found
from meshwright.service.launchers.reading.fields import Fields, meant
from meshwright.service.launchers.reading.given import PLAIN_NAMES, given_flags
from meshwright.service.launchers.reading.shell_values import Word


@pytest.mark.parametrize("text", ["--micro-batch-size -1", "--micro-batch-size 0", "--micro-batch-size"])
def test_a_size_begins_at_1_whatever_is_wrong_with_it(text: str) -> None:
    with pytest.raises(InvalidProblemError) as caught:
        given_flags([Word(word, 1) for word in text.split()])
    assert (caught.value.errors[0].allowed or "").startswith("1 to ")


def test_a_value_that_is_asked_for_twice_is_one_fault() -> None:
    fields = Fields("a.yaml", {"num_machines": Found(0, 4)})
    assert [fields.integer("num_machines", 1) for _ in range(2)] == [1, 1]
    assert len(fields.faults) == 1


# Which names were meant.

MEGATRON_LM = Path(__file__).parents[4] / "fixtures" / "megatron_lm_flags.txt"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("tensor_model_parallel_szie", "tensor_model_parallel_size"),  # swapped
        ("num_layres", "num_layers"),
        ("seq_eln", "seq_len"),
        ("micro_batch_siz", "micro_batch_size"),  # one missing
        ("zero_optimmization.stage", "zero_optimization.stage"),  # one too many
        ("per_device_train_batchsize", "per_device_train_batch_size"),
        ("pipelin_model_paralel_size", "pipeline_model_parallel_size"),  # in two words
    ],
)
def test_a_slip_leads_to_the_name_that_was_meant(name: str, known: str) -> None:
    assert meant(name, ["hidden_size", known, "expert_model_parallel_size"]) == known


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("fp4_recipe", "fp8_recipe"),  # a number is another one
        ("parallelism_config_ep_size", "parallelism_config_sp_size"),  # short words are whole
        ("vocab_file", "vocab_size"),  # two letters of a short word
        ("dq", "dp"),
        ("strange_flag", "orange_flag"),
    ],
)
def test_another_name_is_no_slip(name: str, known: str) -> None:
    assert meant(name, [known]) is None


def test_no_flag_of_megatron_lm_is_taken_for_a_slip_of_another() -> None:
    flags = [line.split()[0] for line in MEGATRON_LM.read_text().splitlines() if line.startswith("--")]
    names = {flag[2:].replace("-", "_") for flag in flags} - PLAIN_NAMES.keys()
    assert len(names) > 300
    assert {name: meant(name, PLAIN_NAMES) for name in names if meant(name, PLAIN_NAMES)} == {}
