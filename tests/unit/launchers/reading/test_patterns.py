"""Patterns of peft's target modules: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from meshwright.launchers.reading.patterns import is_pattern, targets_in

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LAYERS = r"model.language_model.layers.[\d]+."


@pytest.mark.parametrize(
    ("pattern", "targets", "others"),
    [
        (LAYERS + "(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj", ALL, ()),
        (LAYERS + "(_checkpoint_wrapped_module.)?self_attn.(q|v)_proj", ("q_proj", "v_proj"), ()),
        (r"model\.layers\.\d+\.self_attn\.[qv]_proj", ("q_proj", "v_proj"), ()),
        (r"^model\.layers\.\d+\.mlp\.(?:up|down)_proj$", ("up_proj", "down_proj"), ()),
        (
            r"(model\.layers\.\d+\.self_attn\.q_proj|model\.visual\.blocks\.\d+\.attn\.qkv)",
            ("q_proj",),
            ("model.visual.blocks.0.attn.qkv",),
        ),
    ],
)
def test_a_pattern_means_layers_of_the_language_model_and_paths_of_a_tower(
    pattern: str, targets: tuple[str, ...], others: tuple[str, ...]
) -> None:
    assert is_pattern(pattern)
    assert targets_in(pattern) == (targets, others)


@pytest.mark.parametrize(
    "pattern",
    [".*(q|v)_proj", "(q|v", "q_proj)", "layers.4[4-9].mlp", "(a|b)" * 12, "a" * 2001],
)
def test_a_pattern_that_takes_more_than_alternatives_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        targets_in(pattern)
