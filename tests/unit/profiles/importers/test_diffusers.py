"""Diffusion transformers from the configs of diffusers' classes."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.importers.huggingface import looks_like_config, model_from_config
from meshwright.profiles.model_parts import DiffusionSpec
from meshwright.profiles.model_shapes import model_from_shape, model_to_mapping

DRAWN = json.loads((Path(__file__).parents[1] / "fixtures" / "drawn-diffusers.json").read_text())
GARBAGE: tuple[object, ...] = (None, -1, 0, "x", [], {}, True, 1e400, [[]], 10**30, [1, 2, "x"])
FLUX, WAN = {"_class_name": "FluxTransformer2DModel"}, {"_class_name": "WanTransformer3DModel"}


def test_every_drawn_config_has_the_parameters_that_diffusers_builds() -> None:
    for one in DRAWN:
        assert looks_like_config(one["config"])
        model = model_from_config(one["config"], name="x")
        assert model.num_parameters() == one["parameters"], one["config"]
        assert model_from_shape(model_to_mapping(model)) == model


def test_wan_2_1_and_flux_1_have_their_published_sizes() -> None:
    assert model_from_config(WAN, name="x").num_parameters() == 14_288_491_584
    guided = model_from_config({**FLUX, "guidance_embeds": True}, name="x")
    assert guided.num_parameters() == 11_901_408_320
    assert [shape.two_streams for shape in guided.layer_shapes()].count(True) == 19


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"_class_name": "UNet2DConditionModel"},
            "Supported: FluxTransformer2DModel, WanTransformer3DModel",
        ),
        ({**FLUX, "attn_bias": True}, "attn_bias .FluxTransformer2DModel doesn't use this key"),
        ({**WAN, "qk_norm": None}, "qk_norm .supported: rms_norm_across_heads"),
        ({**WAN, "patch_size": 2}, "patch_size: must be three whole numbers"),
        ({**WAN, "patch_size": [1, 0, 2]}, "patch_size: must be three whole numbers"),
        ({**WAN, "patch_size": [1, 2, 2, "2"]}, "patch_size: must be three whole numbers"),
        ({**FLUX, "num_layers": 0, "num_single_layers": 0}, "the model has no layers"),
        ({**FLUX, "num_attention_heads": 0}, "num_attention_heads"),
        ({**FLUX, "text_encoder": "t5"}, "text_encoder: .t5. is not an object with the encoder's fields"),
        (
            {**FLUX, "text_encoder": {"model_type": "bert"}},
            "text_encoder.model_type: .bert. is not planned. Allowed: t5, umt5, clip_text_model",
        ),
        (
            {**FLUX, "text_encoder_2": {"model_type": "t5", "experts": 8}},
            "text_encoder_2.experts: Meshwright doesn't know",
        ),
        ({**FLUX, "text_encoder": {"model_type": "t5", "d_model": 0}}, "text_encoder.d_model"),
    ],
)
def test_what_is_not_planned_is_refused_with_the_key(config: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidProblemError, match=words):
        model_from_config(config, name="x")


def test_text_encoders_that_are_stated_run_in_every_step() -> None:
    clip = {"model_type": "clip_text_model", "hidden_size": 768, "intermediate_size": 3072}
    t5 = {"model_type": "t5", "d_model": 4096, "d_ff": 10_240, "num_layers": 24, "num_heads": 64,
          "feed_forward_proj": "gated-gelu"}  # fmt: skip
    model = model_from_config({**FLUX, "text_encoder": clip, "text_encoder_2": t5}, name="x")
    assert model.diffusion is not None
    # CLIP-L's text model and T5-XXL's encoder as transformers builds them
    assert model.diffusion.encoder_weights == 123_060_480 + 4_762_310_656
    # products of a layer's matrices, and two of attention: 77 tokens of CLIP, 512 of T5 with 64 heads of 64
    of_clip = 77 * 12 * (4 * 768**2 + 2 * 768 * 3072 + 2 * 77 * 768)
    of_t5 = 512 * 24 * (4 * 4096 * 4096 + 3 * 4096 * 10_240 + 2 * 512 * 4096)
    assert model.diffusion.encoder_products == of_clip + of_t5
    assert model.num_parameters() == model_from_config(FLUX, name="x").num_parameters()
    assert model_from_shape(model_to_mapping(model)) == model
    # umT5 has the relative positions of 32 buckets and 64 heads in each of its 24 layers, T5 in the first
    umt5 = model_from_config({**FLUX, "text_encoder_2": t5 | {"model_type": "umt5"}}, name="x").diffusion
    assert umt5 is not None
    further_tokens = (250_112 - 32_128) * 4096
    assert umt5.encoder_weights == 4_762_310_656 + further_tokens + 23 * 32 * 64
    assert model_from_config({**FLUX, "text_encoder": None}, name="x").diffusion == DiffusionSpec(
        **{
            field.name: getattr(model.diffusion, field.name)
            for field in fields(DiffusionSpec)
            if not field.name.startswith("encoder")
        }
    )


def test_a_key_that_the_class_reads_and_that_changes_no_size_is_accepted() -> None:
    known = {"_diffusers_version": "0.42.1", "rope_max_seq_len": 512, "eps": 1e-5}
    assert model_from_config({**WAN, **known}, name="x") == model_from_config(WAN, name="x")


@pytest.mark.parametrize("config", [DRAWN[1]["config"], DRAWN[9]["config"]])
def test_a_field_changed_in_a_config_never_crashes(config: dict[str, object]) -> None:
    refused = 0
    for field in {**DRAWN[9]["config"], **config, "qk_norm": None, "axes_dims_rope": None}:
        for value in GARBAGE:
            try:
                model_from_config({**config, field: value}, name="x")
            except InvalidProblemError:
                refused += 1
    assert refused > 50


def test_text_is_read_or_part_of_the_sequence_not_both() -> None:
    with pytest.raises(InvalidProblemError, match="two_stream_layers"):
        DiffusionSpec(context_tokens=512, two_stream_layers=1)


def test_parts_of_language_models_are_refused_in_a_diffusion_transformer() -> None:
    shape = model_to_mapping(model_from_config(FLUX, name="x"))
    for part in ({"num_mtp_layers": 1}, {"sliding_window": 512}, {"causal": True}):
        with pytest.raises(InvalidProblemError, match="is not supported in a diffusion transformer"):
            model_from_shape({**shape, **part})
    with pytest.raises(UnsupportedModelError):
        model_from_config({**FLUX, "model_type": "llama"}, name="x")
