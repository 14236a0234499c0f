"""FlagScale's files next to the command that overrides some of their values."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.profiles.errors import InvalidProblemError

RUN = "python run.py --config-path ."
TP = "train.system.tensor_model_parallel_size"
PLAN = Path(__file__).parents[3] / "golden" / "flagscale" / "llama-3.1-405b-uneven"


def started(words: str) -> LaunchFile:
    files = {name: (PLAN / name).read_text("utf-8") for name in ("experiment.yaml", "train_plan.yaml")}
    files["run.sh"] = f"{RUN} --config-name experiment action=run {words}\n"
    source = Source(name="experiment.yaml", text=files["experiment.yaml"], files=files)
    return read_launch_files(source, Overrides(num_gpus=1024))


def test_values_of_the_command_override_the_files() -> None:
    assert started("").configuration.tensor_parallel_size == 8
    for more in ("", f"{RUN} --config-name experiment action=stop", f"{RUN} --config-name other {TP}=2"):
        found = started(f"++{TP}=4\n{more}")
        assert found.configuration.tensor_parallel_size == 4
        assert any("tensor_model_parallel_size is 4, not the file's" in note for note in found.notes)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train=other", r"line 1 of run\.sh: train=other is not read"),
        (f"~{TP}", f"~{TP} is not read"),  # deletes it
        ("'train.system={tensor_model_parallel_size: 4}'", r"4} is not one value.* train\.system=VALUE"),
        (f"'{TP}=[4'", rf"line 1 of run\.sh: {TP}=\[4 is not one value"),
        (f"{TP}=4\n{RUN} --config-name experiment.yaml", r"2 different commands use experiment\.yaml"),
        (f"--config-name other {TP}=4", r"line 1 of run\.sh starts other, not experiment\.yaml"),
    ],
)
def test_words_of_the_command_that_are_not_one_value_are_refused(words: str, says: str) -> None:
    with pytest.raises(InvalidProblemError, match=says):
        started(words)


WIDE = (
    "system: {tensor_model_parallel_size: 1, pipeline_model_parallel_size: 1, precision: {bf16: true}}\n"
    "model: {num_layers: 4, hidden_size: 4096, num_attention_heads: 32, seq_length: 512, "
    "max_position_embeddings: 512, micro_batch_size: 1, global_batch_size: 8, vocab_size: 1024, "
    "swiglu: true, %s}\n"
)


def wide(text: str) -> LaunchFile:
    return read_launch_files(Source(name="7b.yaml", text=text), Overrides(num_gpus=8))


@pytest.mark.parametrize(
    ("own", "width"),
    [
        # 4 × 4096 × 2 / 3 = 10,922: the next multiple of 256 is 43 × 256
        ("multiple_of: 256", 11008),
        # 10,922 × 1.3 = 14,198: the next multiple of 4096 is 4 × 4096
        ("multiple_of: 4096, hidden_dim_multiplier: 1.3", 16384),
        ("multiple_of: 4096, ffn_hidden_size: 8192", 8192),
        ("hidden_dim_multiplier: 1.3", 10880),  # does nothing alone: Megatron-LM's 170 × 64
    ],
)
def test_flagscale_rounds_the_width_of_gated_layers_up_to_its_own_multiples(own: str, width: int) -> None:
    found = wide(WIDE % own)
    assert (found.model.ffn_hidden_size, found.unread) == (width, ())


def test_a_missing_hidden_size_is_named_and_not_the_width_that_follows_from_it() -> None:
    with pytest.raises(InvalidProblemError) as fault:
        wide((WIDE % "multiple_of: 256").replace("hidden_size: 4096, ", ""))
    assert ["hidden-size" in one.pointer for one in fault.value.errors] == [True]


@pytest.mark.parametrize("own", ["use_dualpipev: true", "num_mtp_predictor: 2", "multiple_of: 0"])
def test_an_argument_that_flagscale_has_and_no_price_counts_is_refused_in_any_section(own: str) -> None:
    with pytest.raises(InvalidProblemError, match=r"line 2: .*(is not a width|cannot be read)"):
        wide(WIDE % own)
