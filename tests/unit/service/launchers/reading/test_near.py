"""Which names were meant."""

from pathlib import Path

import pytest

from meshwright.service.launchers.reading.fields import meant
from meshwright.service.launchers.reading.given import PLAIN_NAMES

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
