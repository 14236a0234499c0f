"""Diffusion transformers: our counts and FLOPs next to those of diffusers' classes on meta tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers.models.transformers.transformer_flux import FluxSingleTransformerBlock, FluxTransformerBlock
from diffusers.models.transformers.transformer_wan import WanTransformerBlock
from torch.utils.flop_counter import FlopCounterMode
from transformers import CLIPTextModel, PreTrainedModel, T5EncoderModel, UMT5EncoderModel

from meshwright.profiles.importers.huggingface import model_from_config

FIXTURES = Path(__file__).parents[1] / "unit" / "profiles" / "fixtures"
DRAWN = json.loads((FIXTURES / "drawn-diffusers.json").read_text())
HIDDEN, TOKENS, TEXT = 512, 1024, 512
SIZES = {"num_attention_heads": 8, "attention_head_dim": 64}


def _flops(module: torch.nn.Module, *inputs: Any) -> int:  # noqa: ANN401 - torch's tensors
    with FlopCounterMode(display=False) as counter:
        module(*inputs)
    return int(counter.get_total_flops())


@pytest.mark.parametrize("one", DRAWN)
def test_a_drawn_config_has_as_many_parameters_as_the_model_that_diffusers_builds(
    one: dict[str, Any],
) -> None:
    sizes = dict(one["config"])
    with torch.device("meta"):
        model = getattr(diffusers, sizes.pop("_class_name"))(**sizes)
    assert sum(each.numel() for each in model.parameters()) == one["parameters"]


def test_a_layer_of_wan_multiplies_as_much_as_its_class() -> None:
    with torch.device("meta"):
        module = WanTransformerBlock(HIDDEN, 1536, 8, cross_attn_norm=True)
        hidden, text, time = (torch.empty(1, size, HIDDEN) for size in (TOKENS, TEXT, 6))
        turns = torch.empty(1, TOKENS, 1, 64), torch.empty(1, TOKENS, 1, 64)
    config = {"_class_name": "WanTransformer3DModel", **SIZES, "ffn_dim": 1536, "num_layers": 2}
    model = model_from_config(config, name="x")
    ours = TOKENS * model.forward_flops_of(model.shapes()[0], TOKENS)
    assert _flops(module, hidden, text, time, turns) == ours


def test_layers_of_flux_multiply_as_much_as_their_classes() -> None:
    with torch.device("meta"):
        single, double = FluxSingleTransformerBlock(HIDDEN, 8, 64), FluxTransformerBlock(HIDDEN, 8, 64)
        image, text = torch.empty(1, TOKENS, HIDDEN), torch.empty(1, TEXT, HIDDEN)
        time, turns = torch.empty(1, HIDDEN), (torch.empty(TOKENS + TEXT, 64),) * 2
    config = {"_class_name": "FluxTransformer2DModel", **SIZES, "num_layers": 1, "num_single_layers": 1}
    model = model_from_config(config, name="x")
    for module, shape, vectors in zip((single, double), model.shapes(), (3, 12), strict=True):
        modulated = 2 * vectors * HIDDEN**2  # of one token a sample
        ours = (TOKENS + TEXT) * model.forward_flops_of(shape, TOKENS + TEXT) + modulated
        assert _flops(module, image, text, time, turns) == ours


@pytest.mark.parametrize(
    ("encoder", "built", "tokens"),
    [
        ({"model_type": "t5", "feed_forward_proj": "gated-gelu", "d_ff": 1000}, T5EncoderModel, TEXT),
        ({"model_type": "umt5", "num_heads": 8}, UMT5EncoderModel, TEXT),
        ({"model_type": "clip_text_model", "num_hidden_layers": 3}, CLIPTextModel, 77),
    ],
)
def test_a_text_encoder_has_the_weights_and_flops_of_its_class(
    encoder: dict[str, Any], built: type[PreTrainedModel], tokens: int
) -> None:
    sizes = {key: value for key, value in encoder.items() if key != "model_type"}
    config = built.config_class(**sizes)
    config._attn_implementation = "eager"  # torch counts its FLOPs
    with torch.device("meta"):
        module = built(config)
        text = torch.zeros(1, tokens, dtype=torch.long)
    flux = {"_class_name": "FluxTransformer2DModel", "text_encoder": encoder}
    diffusion = model_from_config(flux, name="x").diffusion
    assert diffusion is not None
    assert diffusion.encoder_weights == sum(one.numel() for one in module.parameters())
    assert 2 * diffusion.encoder_products == _flops(module, text)
