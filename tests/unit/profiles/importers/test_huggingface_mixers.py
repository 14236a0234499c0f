"""Layers with a mixer: configs that name layers which a model does not have, and published ones."""

from __future__ import annotations

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.library import find_model

KIMI = {"model_type": "kimi_linear", "num_hidden_layers": 4}
MINIMAX = {"model_type": "minimax", "num_hidden_layers": 4}
LFM2 = {"model_type": "lfm2", "num_hidden_layers": 4}
# state-spaces/mamba-2.8b and mamba2-2.7b, in the keys of mamba_ssm
SSM = {"d_model": 2560, "n_layer": 64, "vocab_size": 50_277, "ssm_cfg": {}, "rms_norm": True,
       "residual_in_fp32": True, "fused_add_norm": True, "pad_vocab_size_multiple": 8}  # fmt: skip
SSM_2 = SSM | {"ssm_cfg": {"layer": "Mamba2"}, "d_intermediate": 0, "attn_layer_idx": [], "attn_cfg": {},
               "pad_vocab_size_multiple": 16, "tie_embeddings": True}  # fmt: skip


def _lists(*layers: object) -> dict[str, object]:
    return {"linear_attn_config": dict(zip(("full_attn_layers", "kda_layers"), layers, strict=True))}


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        (
            {**KIMI, **_lists([4], [1, 2])},
            "linear_attn_config",
            "name each layer once, counted from 1 to 4",
        ),
        ({**KIMI, **_lists([4], "all")}, "linear_attn_config", "name each layer once"),
        ({**KIMI, **_lists(["4"], [1, 2, 3])}, "linear_attn_config", "name each layer once"),
        ({**KIMI, "layer_types": ["full_attention"] * 3}, "layer_types", "num_hidden_layers = 4"),
        ({**MINIMAX, "attn_type_list": [1, 0, 1]}, "attn_type_list", "3 kinds: .* num_hidden_layers = 4"),
        ({**MINIMAX, "attn_type_list": [1, 0, 1, 2]}, "attn_type_list", "must be a list"),
        ({**LFM2, "full_attn_idxs": [4]}, "full_attn_idxs", "is not a list of layers"),
        ({**LFM2, "full_attn_idxs": "all"}, "full_attn_idxs", "is not a list of layers"),
        ({**LFM2, "conv_L_cache": 0}, "conv_L_cache", "out of range"),
        ({"model_type": "falcon_h1", "mamba_d_ssm": 1000}, "mamba_n_heads", "128 heads of 7 are not"),
        (SSM | {"ssm_cfg": {"layer": "Mamba3"}}, "ssm_cfg.layer", "Mamba3; planned: Mamba1, Mamba2"),
        (SSM | {"ssm_cfg": {"d_stat": 16}}, "ssm_cfg.d_stat", "is not of Mamba1; known: d_state, d_conv"),
        (SSM | {"ssm_cfg": [16]}, "ssm_cfg", "is not an object"),
        (SSM | {"d_intermediate": 2048}, "d_intermediate", "2048; planned: 0"),
        (SSM_2 | {"attn_layer_idx": [9]}, "attn_layer_idx", "planned: none"),
        (SSM | {"rms_norm": False}, "rms_norm", "planned: true"),
        (SSM | {"pad_vocab_size_multiple": 0}, "pad_vocab_size_multiple", "out of range"),
    ],
)
def test_layers_and_sizes_that_do_not_fit_are_refused_with_their_field(
    config: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidProblemError, match=words) as caught:
        model_from_config(config, name="x")
    assert [one.pointer for one in caught.value.errors] == [f"/model/{field}"]


def test_the_first_minimax_has_the_size_that_its_card_states() -> None:
    # Every eighth of 80 layers attends, 32 experts in each: 456B parameters, 45.9B of them active.
    # Embedding and head are not among the latter.
    config = {
        "model_type": "minimax_text_01", "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1] * 10, "head_dim": 128,
        "hidden_size": 6144, "intermediate_size": 9216, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 2, "postnorm": True,
        "rotary_dim": 64, "rope_theta": 10_000_000, "vocab_size": 200_064,
    }  # fmt: skip
    model = model_from_config(config, name="minimax-text-01")
    assert model.num_parameters() == 456_089_655_296
    assert round((model.num_active_parameters() - 2 * 200_064 * 6144) / 1e9, 1) == 45.9
    assert model.layer_shapes()[7].mixes is False
    assert sum(shape.mixes for shape in model.layer_shapes()) == 70
    assert model.rotary_fraction == 0.5


def test_kimi_linear_has_neither_positions_nor_a_mixer_in_its_attending_layers() -> None:
    model = model_from_config({**KIMI, **_lists([4], [1, 2, 3])}, name="x")
    assert all(model.layers_without_rotary())
    assert [shape.mixes for shape in model.layer_shapes()] == [True, True, True, False]
    assert [one.mla is None for one in map(model.shaped, model.layer_shapes())] == [True, True, True, False]


def test_mamba_ssms_own_config_is_that_of_transformers_classes() -> None:
    # 50280 rows (a multiple of 8) and 64 selective scans of 5120 channels with a norm each, h = 2560: a
    # latent of 160 for time steps, B and C of 16 states, a convolution of 4, two biases, and skip.
    model = model_from_config(SSM, name="x")
    scan = 3 * 2560 * 5120 + 5120 * (160 + 32 + 160 + 4 + 16 + 3)
    assert model.num_parameters() == 50_280 * 2560 + 64 * (scan + 2560) + 2560 == 2_768_345_600
    assert find_model("state-spaces/mamba-2.8b").num_parameters() == 2_768_345_600
    # 50288 rows; 80 heads of 64 with B and C of 128 states: gate, values, B, C and a time step of each head
    # are projected, values, B and C convolved; decay, skip and time step of each head, a norm of values
    second = model_from_config(SSM_2, name="x")
    projected, convolved = 2 * 5120 + 2 * 128 + 80, 5120 + 2 * 128
    space = 2560 * (projected + 5120) + 5 * convolved + 3 * 80 + 5120
    assert second.num_parameters() == 50_288 * 2560 + 64 * (space + 2560) + 2560 == 2_702_599_680
