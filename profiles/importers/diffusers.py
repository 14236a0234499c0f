"""Reads a diffusion transformer from the ``config.json`` of its ``diffusers`` class.

Field names and defaults are those of ``diffusers`` 0.42 (``models/transformers/transformer_flux.py`` and
``transformer_wan.py``). Every key is known or refused by its name. The configs of text encoders that run
in every step stand next to it, under the names of their folders in a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from meshwright.profiles.errors import UnsupportedModelError
from meshwright.profiles.importers.text_encoders import ENCODERS, encoders_of
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MODEL_LIMITS, DiffusionSpec
from meshwright.profiles.reading import MAX_TEXT, FieldReader
from meshwright.profiles.stored import stored_in_config

CLASS = "_class_name"
_SOFTWARE = (
    CLASS, "_diffusers_version", "_name_or_path", "name", "gradient_checkpointing", "quantization_config",
)  # fmt: skip
_TEXT_TOKENS = 512  # of umT5's and T5's outputs, as both pipelines pad them
_TIME = 256  # sines and cosines of Flux's time step


def diffusion_classes() -> tuple[str, ...]:
    """Return the classes of diffusers that are planned."""
    return tuple(_CLASSES)


def model_from_diffusers(config: Mapping[str, object], *, name: str) -> ModelSpec:
    """Return the diffusion transformer that a config of diffusers describes.

    Raises:
        UnsupportedModelError: a class that is not planned, or a key that nothing here reads.
        InvalidProblemError: a field is missing, garbled or out of range.
    """
    stated = str(config.get(CLASS))[:60]
    if stated not in _CLASSES:
        raise UnsupportedModelError.field(
            CLASS, f"{stated} is not a supported class. Supported: {', '.join(_CLASSES)}"
        )
    defaults, build = _CLASSES[stated]
    reader = FieldReader({**defaults, **config}, "/model")
    facts = build(reader)
    encoders = encoders_of(config, _TEXT_TOKENS)
    facts["diffusion"] = replace(
        facts["diffusion"],
        encoder_weights=sum(one.weights for one in encoders),
        encoder_products=sum(one.products for one in encoders),
    )
    for key in (*_SOFTWARE, *ENCODERS):
        reader.value(key)
    reader.finish()
    for key in reader.unread():
        if key not in defaults:
            raise UnsupportedModelError.field(key[:60], f"{stated} doesn't use this key")
    return ModelSpec(
        name=name[:MAX_TEXT], source=f"config.json of diffusers, {stated}",
        stored_as=stored_in_config(config), **facts,
    )  # fmt: skip


def _size(reader: FieldReader, key: str, field: str = "hidden_size") -> int:
    low, high = MODEL_LIMITS[field]
    return reader.integer(key, low=int(low), high=int(high))


def _optional(reader: FieldReader, key: str) -> int:
    return _size(reader, key) if reader.has(key) else 0


def _common(hidden: int, heads: int, width: int, outputs: int, layers: int) -> dict[str, Any]:
    return {
        "num_layers": layers, "hidden_size": hidden, "ffn_hidden_size": width, "num_attention_heads": heads,
        "num_kv_heads": heads, "head_dim": hidden // heads, "vocab_size": outputs, "gated_mlp": False,
        "qkv_bias": True, "attention_output_bias": True, "mlp_bias": True, "causal": False,
        "normalization": "layernorm_without_weights",
    }  # fmt: skip


def _linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def _ends(inputs: int, outputs: int, hidden: int, further: int) -> int:
    """Return the weights at both ends less the two matrices that embedding and head of a model have."""
    return _linear(inputs, hidden) + _linear(hidden, outputs) + further - 2 * outputs * hidden


def _volume(reader: FieldReader) -> int:
    """Return the latent pixels of a patch, which Wan states by frames, height and width."""
    stated = reader.value("patch_size")
    sides = stated if isinstance(stated, list | tuple) else []
    numbers = [one for one in sides if type(one) is int]
    if len(numbers) != 3 or numbers != [*sides] or min(numbers) < 1:  # noqa: PLR2004 - frames, height and width
        reader.fault("patch_size", "must be three whole numbers: frames, height and width")
        reader.finish()
    return prod(numbers)


def _flux(reader: FieldReader) -> dict[str, Any]:
    """Return Flux: first layers with separate weights for text, then layers that share theirs.

    The latter have one product for attention's and the MLP's outputs together, with one bias.
    """
    head, heads = _size(reader, "attention_head_dim", "head_dim"), _size(reader, "num_attention_heads")
    hidden, double = head * heads, reader.integer("num_layers", low=0, high=5000)
    single = reader.integer("num_single_layers", low=0, high=5000)
    inputs = _size(reader, "in_channels")
    outputs = _size(reader, "patch_size") ** 2 * (_optional(reader, "out_channels") or inputs)
    text, pooled = _size(reader, "joint_attention_dim"), _size(reader, "pooled_projection_dim")
    embedded = 1 + int(reader.flag("guidance_embeds", default=False))
    if not double + single:
        reader.fault(
            "num_layers", "0, and num_single_layers is also 0: the model has no layers", allowed="1 or more"
        )
        reader.finish()
    square = _linear(hidden, hidden)
    further = _linear(text, hidden) + embedded * (_linear(_TIME, hidden) + square)
    further += _linear(pooled, hidden) + square + _linear(hidden, 2 * hidden)
    return _common(hidden, heads, 4 * hidden, outputs, double + single) | {
        "query_key_norm": "per_head",
        "diffusion": DiffusionSpec(
            two_stream_layers=double,
            layer_weights=_linear(hidden, 3 * hidden) - hidden,
            two_stream_weights=2 * _linear(hidden, 6 * hidden),
            end_weights=_ends(inputs, outputs, hidden, further),
        ),
    }


def _wan(reader: FieldReader) -> dict[str, Any]:
    """Return Wan: cross-attention to text in every layer, and a modulation table instead of products.

    Models conditioned on an image also have keys and values for its tokens.
    """
    head, heads = _size(reader, "attention_head_dim", "head_dim"), _size(reader, "num_attention_heads")
    hidden, volume = head * heads, _volume(reader)
    inputs = _size(reader, "in_channels")
    outputs = volume * (_optional(reader, "out_channels") or inputs)
    added, image = _optional(reader, "added_kv_proj_dim"), _optional(reader, "image_dim")
    if reader.value("qk_norm") != "rms_norm_across_heads":
        raise UnsupportedModelError.field("qk_norm", "supported: rms_norm_across_heads")
    square = _linear(hidden, hidden)
    further = _linear(_size(reader, "freq_dim"), hidden) + square + _linear(hidden, 6 * hidden)
    further += _linear(_size(reader, "text_dim"), hidden) + square + 2 * hidden
    if image:
        further += 2 * image + _linear(image, image) + _linear(image, hidden) + 2 * hidden
        further += image * _optional(reader, "pos_embed_seq_len")
    reader.value("pos_embed_seq_len")
    own = 6 * hidden + 2 * hidden * int(reader.flag("cross_attn_norm", default=False))
    own += (2 * _linear(added, hidden) + hidden) * int(added > 0)
    width = _size(reader, "ffn_dim", "ffn_hidden_size")
    layers = _size(reader, "num_layers", "num_layers")
    return _common(hidden, heads, width, outputs, layers) | {
        "query_key_norm": "each_head",
        "diffusion": DiffusionSpec(
            context_tokens=_TEXT_TOKENS,
            layer_weights=own,
            end_weights=_ends(inputs * volume, outputs, hidden, further),
        ),
    }


_FLUX = {
    "patch_size": 1, "in_channels": 64, "out_channels": None, "num_layers": 19, "num_single_layers": 38,
    "attention_head_dim": 128, "num_attention_heads": 24, "joint_attention_dim": 4096,
    "pooled_projection_dim": 768, "guidance_embeds": False, "axes_dims_rope": [16, 56, 56],
}  # fmt: skip
_WAN = {
    "patch_size": [1, 2, 2], "num_attention_heads": 40, "attention_head_dim": 128, "in_channels": 16,
    "out_channels": 16, "text_dim": 4096, "freq_dim": 256, "ffn_dim": 13_824, "num_layers": 40,
    "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "eps": 1e-6, "image_dim": None,
    "added_kv_proj_dim": None, "rope_max_seq_len": 1024, "pos_embed_seq_len": None,
}  # fmt: skip
# Classes: the defaults of their configs, and how they are read.
_CLASSES: Mapping[str, tuple[Mapping[str, object], Callable[[FieldReader], dict[str, Any]]]] = {
    "FluxTransformer2DModel": (_FLUX, _flux),
    "WanTransformer3DModel": (_WAN, _wan),
}
