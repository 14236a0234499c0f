"""Every field of a model is accounted for where a list says which fields count."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from meshwright.profiles import model as models
from meshwright.profiles.library import find_model
from meshwright.profiles.measure.layer import _has_bias
from meshwright.profiles.model import ModelSpec

FIELDS = {one.name for one in fields(ModelSpec)}
HUGGING_FACE = Path(__file__).parents[3] / "service" / "verify" / "inside" / "hugging_face.py"


def _words(text: str) -> set[str]:
    return set(text.split())


# What a layer with a mixer has as the model's other layers do: sizes, MLP, norms, residuals, ends.
SHARED = _words(
    """name layer_names num_layers hidden_size ffn_hidden_size vocab_size gated_mlp fused_gate_up activation
    activation_clamp gate_offset tied_embeddings embedding_size layer_embedding_size layer_vocab_size
    borrowing_layers borrowing_ffn_hidden_size moe streams hyper_streams residual_block_layers tower
    diffusion layer_pattern layer_ffn_sizes layer_kv_heads num_mtp_layers causal
    learned_position_embeddings max_position_embeddings learned_position_offset sinusoidal_positions
    normalization norm_position norm_epsilon
    zero_centered_norm parallel_residual shared_norm embedding_norm early_first_norm final_norm inner_norms
    mlp_bias mlp_output_bias head_bias normalized_head head_transform logit_softcap embedding_scale
    num_labels residual_scale depth_scaled_residuals logit_scale stored_as source display_name"""
)
# What only attention reads, so that it may stay where a mixer replaces attention.
UNREAD_BY_MIXERS = _words(
    """keys_are_values fused_qkv fused_kv indexer compression chunked_attention local_attention
    alibi_positions rotary_base rotary_local_base rotary_fraction rotary_local_fraction rotary_scaling
    no_rotary_every no_rotary_layers differential_attention value_norm value_scale last_attention_bias
    attention_softcap attention_scale attention_clip position_scaled_queries"""
)
# What changes no matrix and no kernel of the classes that verify builds, or only refines another field.
SAME_CLASS = _words(
    """name layer_names fused_qkv fused_kv fused_gate_up activation_clamp gate_offset layer_vocab_size
    borrowing_ffn_hidden_size sliding_window_every global_layers chunked_attention learned_position_offset
    rotary_base rotary_local_base rotary_fraction rotary_local_fraction rotary_scaling no_rotary_every
    no_rotary_layers norm_epsilon zero_centered_norm value_scale gate_bias gate_in_queries
    attention_softcap logit_softcap attention_scale attention_clip position_scaled_queries embedding_scale
    residual_scale depth_scaled_residuals logit_scale stored_as source display_name"""
)


def test_a_layer_with_a_mixer_replaces_a_field_or_shares_it() -> None:
    mixer = find_model("qwen3-next-80b-a3b").mixer
    assert mixer is not None
    replaced = set(models._of_mixer_layers(mixer))
    assert replaced | SHARED | UNREAD_BY_MIXERS == FIELDS
    assert not replaced & (SHARED | UNREAD_BY_MIXERS)


def _fixed() -> tuple[dict[str, Any], set[str]]:
    """Return the facts that are fixed for the classes of transformers, and those that they state."""
    tree = ast.parse(HUGGING_FACE.read_text(encoding="utf-8"))
    (fixed,) = (
        ast.literal_eval(one.value)
        for one in tree.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "_FIXED"
    )
    stated = {
        ast.literal_eval(one.slice)
        for one in ast.walk(tree)
        if isinstance(one, ast.Subscript) and ast.unparse(one.value) == "model"
    }
    return fixed, stated


def test_a_field_is_fixed_stated_or_the_same_for_transformers_classes() -> None:
    fixed, stated = _fixed()
    assert fixed.keys() | stated | SAME_CLASS == FIELDS
    assert fixed.keys() & stated == {"activation"}  # whose default depends on the MLP


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "mixtral-8x7b", "qwen3-30b-a3b"]
)
def test_models_of_these_classes_have_every_fixed_fact(name: str) -> None:
    model = json.loads(json.dumps(asdict(find_model(name))))
    model["activation"] = model["activation"] or "silu"
    assert {fact: model[fact] for fact in _fixed()[0]} == _fixed()[0]


def test_a_matrix_whose_bias_nothing_states_is_refused() -> None:
    model = find_model("qwen2.5-7b")
    assert [_has_bias(model, name) for name in ("qkv", "attention_out", "mlp_up")] == [True, False, False]
    with pytest.raises(KeyError, match="mixer_in"):
        _has_bias(model, "mixer_in")
