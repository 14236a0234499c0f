"""A plan's vision tower as the class of transformers, and how many of its weights a launcher trains."""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig, Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import (
    Qwen3VLForConditionalGeneration,
    Qwen3VLVisionModel,
)

PIXELS = 3 * 2  # numbers of a patch for each of its pixels: channels and frames


def shape_in(text: str) -> dict[str, Any] | None:
    """The shape in a file's comment, of a model with a tower."""
    named = text.partition("# Model shape: ")[2].partition("\n")[0]
    shape: dict[str, Any] = json.loads(named) if named else {}
    return shape if "tower" in shape else None


def vision_of(shape: dict[str, Any]) -> Qwen3VLVisionConfig:
    """The class's config of such a tower."""
    tower = shape["tower"]
    if tower["patch_inputs"] != PIXELS * tower["patch_size"] ** 2:
        raise ValueError(f"{tower['patch_inputs']} numbers of a patch")
    return Qwen3VLVisionConfig(
        depth=tower["num_layers"],
        hidden_size=tower["hidden_size"],
        intermediate_size=tower["ffn_hidden_size"],
        num_heads=tower["num_attention_heads"],
        patch_size=tower["patch_size"],
        spatial_merge_size=round(tower["merged_patches"] ** 0.5),
        temporal_patch_size=2,
        out_hidden_size=shape["hidden_size"],
        num_position_embeddings=tower["position_rows"],
        deepstack_visual_indexes=list(range(tower["inner_outputs"])),
    )


def tower_of(shape: dict[str, Any]) -> Qwen3VLVisionModel:
    """The tower, without values."""
    with torch.device("meta"):
        return Qwen3VLVisionModel._from_config(vision_of(shape))


def small_model(shape: dict[str, Any]) -> Qwen3VLForConditionalGeneration:
    """The tower in a model with a language model of one narrow layer."""
    text = {
        "vocab_size": 64, "hidden_size": shape["hidden_size"], "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32,
        "rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5]},
    }  # fmt: skip
    config = Qwen3VLConfig(text_config=text, vision_config=vision_of(shape).to_dict())
    return Qwen3VLForConditionalGeneration(config)


def trained(module: torch.nn.Module) -> int:
    """How many weights of a module are trained."""
    return sum(one.numel() for one in module.parameters() if one.requires_grad)
