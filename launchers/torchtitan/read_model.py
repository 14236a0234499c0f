"""The model of a torchtitan configuration: a flavor of its own, one next to the file, or a supplied one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from meshwright.launchers.reading.base import refused
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.known import Known
from meshwright.launchers.reading.python_values import SHAPE, flavor_values
from meshwright.launchers.templates import data
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_from_shape

_FLAVOR_FILE = "torchtitan_0_2_model.py"  # of exports for 0.2
_WITHOUT_PREDICTION = ("qwen3_5",)
_NOT_IN_0_3 = ("llama4",)  # commits before it have flavors of the same names with other layers
_NEEDED = {
    "dim": "hidden_size", "n_layers": "num_layers", "n_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
}  # fmt: skip
_MAX_FACTOR = 1_000_000.0


def model_of(fields: Fields, known: Known, *, is_module: bool) -> ModelSpec:
    """Return the model that the configuration trains.

    Args:
        fields: values of the configuration.
        known: values given next to it.
        is_module: whether it is Python of 0.3, not TOML of 0.2.

    Raises:
        InvalidProblemError: no known model is named.
    """
    flavor = fields.word("model.flavor") if fields.has("model.flavor") else ""
    fields.word("model.name")
    if known.overrides.model is not None:
        return known.overrides.model
    if fields.has(f"{SHAPE}dim"):
        return _shape(fields)
    if _FLAVOR_FILE in known.source.files:
        return _shape(Fields(_FLAVOR_FILE, flavor_values(_FLAVOR_FILE, known.source.files[_FLAVOR_FILE])))
    name = fields.word("model.name", "llama3")
    at_release = {
        model: own for model, own in flavors().items() if not (is_module and model in _NOT_IN_0_3)
    }
    if (found := at_release.get(name, {}).get(flavor)) is not None:
        if isinstance(found, str):
            model = find_model(found)
            return replace(model, num_mtp_layers=0) if name in _WITHOUT_PREDICTION else model
        return model_from_shape(found, name=f"{name}-{flavor}".lower())
    if known.header.model is not None:
        return known.header.model
    fields.fault(
        "model.flavor" if name in flavors() else "model.name",
        f'the sizes of flavor "{flavor[:40]}" of "{name[:40]}" are not known; name the model with --model',
        allowed=", ".join(at_release.get(name, ())) or f"models {', '.join(at_release)}",
    )
    fields.stop()
    raise refused("no model is named")


@cache
def flavors() -> Mapping[str, Mapping[str, Any]]:
    """Return torchtitan's models by family and flavor: a name of the catalog, or a shape."""
    return data("torchtitan/flavors.yaml")


def _shape(fields: Fields) -> ModelSpec:
    for name in _NEEDED:
        fields.expect(SHAPE + name)
    fields.stop()
    raw: dict[str, object] = {wanted: fields.integer(SHAPE + name) for name, wanted in _NEEDED.items()}
    heads = fields.integer(f"{SHAPE}n_heads")
    raw |= {
        "num_kv_heads": fields.integer(f"{SHAPE}n_kv_heads", heads),
        "ffn_hidden_size": fields.optional(f"{SHAPE}ffn_hidden_size") or _ffn(fields),
        "rotary_base": max(int(min(fields.number(f"{SHAPE}rope_theta", 10_000.0), 2e9)), 1),
        "norm_epsilon": fields.number(f"{SHAPE}norm_eps", 1e-5),
        "max_position_embeddings": fields.integer(f"{SHAPE}max_seq_len", 131_072),
        "query_key_norm": "per_head" if fields.has(f"{SHAPE}qk_norm") else "none",
        "tied_embeddings": fields.has(f"{SHAPE}enable_weight_tying"),
    }
    if fields.has(f"{SHAPE}head_dim"):
        raw["head_dim"] = fields.integer(f"{SHAPE}head_dim")
    raw |= _scaling_of_shape(fields) | _latent_of_shape(fields)
    if fields.has(f"{SHAPE}num_experts"):
        raw["moe"] = _experts_of_shape(fields)
    fields.stop()
    return model_from_shape(raw, name="launch file")


def _scaling_of_shape(fields: Fields) -> dict[str, object]:
    """Return the rotary scaling: Llama 3.1's, or YaRN's of latent attention."""
    factor, kind = fields.number(f"{SHAPE}scaling_factor", 1.0), fields.word(f"{SHAPE}scaling", "llama")
    scale = fields.number(f"{SHAPE}mscale", 1.0)
    original = fields.integer(f"{SHAPE}original_seq_len", 4096)
    if factor == 1:
        return {}  # with any other values
    if kind != "yarn":
        known: dict[str, object] = {"kind": "llama3", "original_max_position_embeddings": 8192}
    else:
        known = {"kind": "yarn", "original_max_position_embeddings": original}
        known |= {"mscale": scale, "mscale_all_dim": scale}
    return {"rotary_scaling": known | {"factor": factor}}


_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _latent_of_shape(fields: Fields) -> dict[str, object]:
    """Return latent attention, and the layers that predict further tokens."""
    if not fields.has(f"{SHAPE}kv_lora_rank"):
        return {}
    return {
        "mla": {name: fields.integer(SHAPE + name, 0, low=0) for name in _LATENT},
        "num_mtp_layers": fields.integer(f"{SHAPE}num_mtp_layers", 0, low=0),
    }


def _experts_of_shape(fields: Fields) -> dict[str, object]:
    """Return experts and their router, by the number of leading layers without experts and of others."""
    dense = fields.raw(f"{SHAPE}dense_layers")
    dense = dense if isinstance(dense, list) else []
    leading = next((at for at, layer in enumerate(dense) if layer != at), len(dense))
    shared = fields.integer(f"{SHAPE}shared_hidden_size", 0, low=0)
    width = fields.integer(f"{SHAPE}expert_hidden_size")
    return {
        "num_experts": fields.integer(f"{SHAPE}num_experts"),
        "top_k": fields.integer(f"{SHAPE}top_k"),
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": shared,
        "num_shared_experts": -(-shared // width),
        "num_dense_layers": leading,
        "dense_layers": dense[leading:],
        "router_score": fields.word(f"{SHAPE}router_score", "softmax"),
        "normalized_top_k": fields.flag(f"{SHAPE}router_normalized", default=True),
        "router_groups": fields.optional(f"{SHAPE}router_groups") or 0,
        "router_top_groups": fields.optional(f"{SHAPE}router_top_groups") or 0,
        "router_scaling": fields.number(f"{SHAPE}router_scaling", 1.0),
        "selection_bias": fields.flag(f"{SHAPE}router_bias"),
    }


def _ffn(fields: Fields) -> int:
    """Return the width of the MLP: torchtitan 0.2.2, models/llama3/model/model.py FeedForward.

    ``multiple_of * ceil(int(multiplier * int(8 dim / 3)) / multiple_of)``.
    """
    hidden, unit = fields.integer(f"{SHAPE}dim"), fields.integer(f"{SHAPE}multiple_of", 256)
    factor = fields.number(f"{SHAPE}ffn_dim_multiplier", 1.0)
    if not 0 < factor < _MAX_FACTOR:
        fields.fault(f"{SHAPE}ffn_dim_multiplier", "is out of range")
        fields.stop()
    return unit * -(-int(factor * int(2 * 4 * hidden / 3)) // unit)
