"""nanotron's YAML: what its trainer makes of values that exported files never have."""

import pytest

from meshwright.launchers.reading.base import LaunchFile, Overrides, Source
from meshwright.launchers.reading.registry import read_launch_files
from meshwright.launchers.registry import export
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from tests.launchers.plans import CASES

CASE = CASES["nanotron"]["llama-3-70b-tensor"]  # tp 8, dp 8; a vocabulary of 128256
YAML = export(CASE.plan, CASE.problem, "nanotron").files["nanotron.yaml"]


def read(old: str, new: str) -> LaunchFile:
    """The file with one value replaced."""
    assert YAML.count(old) == 1
    return read_launch_files(Source(name="nanotron.yaml", text=YAML.replace(old, new)))


@pytest.mark.parametrize(
    ("divisor", "padded"),
    [(1, 128_256), (2, 128_256), (128, 129_024), (1000, 136_000)],
)
def test_the_vocabulary_is_padded_as_nanotron_pads_it(divisor: int, padded: int) -> None:
    """Nanotron's ``_vocab_size_with_padding``: to the next multiple of divisor * tp, here tp = 8."""
    assert padded == -(-128_256 // (8 * divisor)) * 8 * divisor
    found = read("make_vocab_size_divisible_by: 1", f"make_vocab_size_divisible_by: {divisor}")
    assert found.model is not None
    assert found.model.vocab_size == padded
    matrices = 2 * 8192 * padded  # embedding and output head
    layers = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28_672 + 2 * 8192) + 8192
    assert found.model.num_parameters() == layers + matrices
    assert any("is padded to" in note for note in found.notes) == (padded != 128_256)


def test_a_vocabulary_of_a_multiple_of_0_is_refused() -> None:
    with pytest.raises(
        InvalidProblemError, match=r"divisible_by: line \d+: 0 is not a whole number in range"
    ):
        read("make_vocab_size_divisible_by: 1", "make_vocab_size_divisible_by: 0")


def test_a_zero_stage_that_nanotron_cannot_run_is_noted_with_its_place() -> None:
    """optim/gradient_accumulator.py:355 raises NotImplementedError under DDP with a ZeRO optimizer."""
    assert [note for note in read("zero_stage: 0", "zero_stage: 0").notes if "NotImplemented" in note] == []
    (said,) = (note for note in read("zero_stage: 0", "zero_stage: 1").notes if "NotImplemented" in note)
    assert "gradient_accumulator.py:355" in said
    (said,) = read("accumulate_grad_in_fp32: true", "accumulate_grad_in_fp32: false").notes
    assert "fp32 accumulation" in said


def test_a_name_of_the_model_that_only_a_fork_has_is_refused() -> None:
    # matrices of low rank, which were read as whole ones
    with pytest.raises(InvalidProblemError, match=r"attn_rank: line \d+: is none of LlamaConfig's"):
        read("num_key_value_heads: 8", "num_key_value_heads: 8\n    attn_rank: 16")
    assert (
        read("num_key_value_heads: 8", "num_key_value_heads: 8\n    attn_rank: null").model.num_layers == 80
    )
    with pytest.raises(InvalidProblemError, match=r"hidden_act: line \d+: is not supported"):
        read("num_key_value_heads: 8", "num_key_value_heads: 8\n    hidden_act: gelu")


def test_layers_without_rotary_positions_are_read_and_masks_refused() -> None:
    """nanotron's models/qwen.py, ``_forward_packed``: every n-th layer, counted from 1, rotates nothing."""
    key = "num_key_value_heads: 8"
    assert read(key, f"{key}\n    no_rope_layer: 4").model.layers_without_rotary()[:4] == (False,) * 3 + (
        True,
    )
    with pytest.raises(InvalidProblemError, match=r"3 does not divide 80 layers.* Nearest: 2 or 4"):
        read(key, f"{key}\n    no_rope_layer: 3")
    with pytest.raises(InvalidProblemError, match=r"flex_attention_mask: line \d+: .* Allowed: null"):
        read(key, f"{key}\n    flex_attention_mask: document")


def test_a_supplied_model_replaces_the_files_and_what_else_its_section_says_is_listed() -> None:
    text = YAML.replace("num_key_value_heads: 8", "num_key_value_heads: 8\n    z_loss_enabled: true")
    source = Source(name="nanotron.yaml", text=text)
    found = read_launch_files(source, Overrides(model=find_model("llama-2-7b")))
    assert found.model.num_layers == 32
    assert found.unread == ("model.model_config.z_loss_enabled",)
    assert "the model is Llama 2 7B, not model.model_config" in found.notes


@pytest.mark.parametrize(("layers", "stages", "nearest"), [(80, 100, 38), (1, 2, 1)])
def test_more_stages_than_nanotron_fills_are_refused_with_the_most_that_it_does(
    layers: int, stages: int, nearest: int
) -> None:
    text = YAML.replace("num_hidden_layers: 80", f"num_hidden_layers: {layers}")
    text = text.replace("  pp: 1", f"  pp: {stages}")
    with pytest.raises(InvalidProblemError, match=rf"{stages} stages for {layers} .*Nearest: {nearest}$"):
        read_launch_files(Source(name="nanotron.yaml", text=text))


def test_a_section_that_nanotron_refuses_is_not_passed_over() -> None:
    text = f"{YAML}infini_attention:\n  length: 8\n"
    source = Source(name="nanotron.yaml", text=text)
    with pytest.raises(InvalidProblemError, match="infini_attention: is not a section of nanotron"):
        read_launch_files(source)
    assert read_launch_files(source, Overrides(ignored=("infini_attention",))).model.num_layers == 80
