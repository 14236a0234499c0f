"""Layers of a Hugging Face model that have a mixer with a state: each type's keys and its rule.

The classes are those of ``transformers`` 5.23: ``Qwen3NextGatedDeltaNet``, ``Qwen3_5GatedDeltaNet``,
``GraniteMoeHybridMambaLayer``, ``BambaMixer``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshwright.profiles.errors import UnsupportedModelError
from meshwright.profiles.mixers import MIXER_LIMITS, MixerSpec
from meshwright.profiles.model_parts import spaced
from meshwright.profiles.reading import FieldReader

_ATTENDS, _MIXES = "full_attention", "linear_attention"
# Kinds as configs of transformers 4 name them.
_OTHER_NAMES = {"attention": _ATTENDS, "mamba": _MIXES}
_EVERY = "full_attention_interval"

# Of a config's reader, its layers and its hidden size: the mixer, or None where all layers attend.
MixerRule = Callable[[FieldReader, int, int], MixerSpec | None]


def _size(reader: FieldReader, key: str, field: str, default: int | None = None) -> int:
    low, high = MIXER_LIMITS[field]
    return reader.integer(key, low=int(low), high=int(high), default=default)


def _stated(reader: FieldReader, num_layers: int) -> list[int] | None:
    """Return the layers that attend as ``layer_types`` lists them; None where the config has no list."""
    listed, allowed = reader.value("layer_types"), f"{_ATTENDS}, {_MIXES}"
    if listed is None:
        return None
    kinds = [_OTHER_NAMES.get(str(kind), kind) for kind in listed] if isinstance(listed, list) else []
    wrong = [kind for kind in kinds if kind not in (_ATTENDS, _MIXES)]
    if len(kinds) != num_layers or wrong:
        found = f"{str(wrong[0])[:40]} is not a kind" if wrong else f"{len(kinds)} kinds"
        why = f"{found}: must be a list of num_hidden_layers = {num_layers} kinds"
        reader.fault("layer_types", why, allowed=allowed)
        return []
    return [layer for layer, kind in enumerate(kinds) if kind == _ATTENDS]


def _attending(reader: FieldReader, num_layers: int, every: int) -> list[int]:
    """Return the layers that attend: listed, or every n-th, which a list must not contradict."""
    by_rule = reader.integer(_EVERY, high=int(MIXER_LIMITS["attention_every"][1]), default=every or 1)
    rule = [layer for layer in range(num_layers) if every and (layer + 1) % by_rule == 0]
    stated = _stated(reader, num_layers)
    if stated is not None and reader.has(_EVERY) and stated != rule and not reader.faults:
        raise UnsupportedModelError.field(_EVERY, f"{by_rule}: layer_types lists other layers")
    return rule if stated is None else stated


def _placed(mixer: MixerSpec, attending: list[int], num_layers: int) -> MixerSpec | None:
    if len(attending) == num_layers:
        return None
    every, listed = spaced(attending, num_layers)
    return replace(mixer, attention_every=every, attention_layers=listed)


def delta_net(*, split_projections: bool) -> MixerRule:
    """Return the rule of gated delta nets; ``split_projections``: the class has four linear layers."""

    def rule(reader: FieldReader, num_layers: int, hidden_size: int) -> MixerSpec | None:  # noqa: ARG001
        attending = _attending(reader, num_layers, 4)
        sizes: dict[str, Any] = {
            "num_heads": _size(reader, "linear_num_value_heads", "num_heads"),
            "num_key_heads": _size(reader, "linear_num_key_heads", "num_key_heads"),
            "key_head_dim": _size(reader, "linear_key_head_dim", "key_head_dim"),
            "value_head_dim": _size(reader, "linear_value_head_dim", "value_head_dim"),
            "convolution": _size(reader, "linear_conv_kernel_dim", "convolution"),
        }
        reader.finish()
        mixer = MixerSpec(kind="gated_delta_net", split_projections=split_projections, **sizes)
        return _placed(mixer, attending, num_layers)

    return rule


def _listed(reader: FieldReader, num_layers: int) -> list[int]:
    """Return the layers that attend by their numbers (Bamba), or by kinds; without either none does.

    Raises:
        UnsupportedModelError: both are stated, and differ.
    """
    name, stated = "attn_layer_indices", _stated(reader, num_layers)
    listed = reader.value(name)
    if listed is None:
        return stated or []
    if not isinstance(listed, list) or not all(
        type(one) is int and 0 <= one < num_layers for one in listed
    ):
        reader.fault(name, "must be a list of layers", allowed=f"0 to {num_layers - 1}")
        return []
    attending = sorted(set(listed))
    if stated is not None and stated != attending:
        raise UnsupportedModelError.field(name, "layer_types lists other layers")
    return attending


def _mamba_head_dim(reader: FieldReader, hidden_size: int, heads: int) -> int:
    """Return the values of a head: stated, or what ``mamba_expand`` hidden sizes leave to each."""
    expand = _size(reader, "mamba_expand", "convolution", 2)
    inner, stated = expand * hidden_size, reader.value("mamba_d_head")
    head_dim = (
        max(1, inner // heads)
        if stated in (None, "auto")
        else _size(reader, "mamba_d_head", "value_head_dim")
    )
    if heads * head_dim != inner:
        why = f"{heads} heads of {head_dim} are not mamba_expand * hidden_size = {inner}"
        near = str(inner // head_dim) if inner % head_dim == 0 else None
        reader.fault("mamba_n_heads", why, **({"nearest": near} if near else {}))
    return head_dim


def mamba_2(reader: FieldReader, num_layers: int, hidden_size: int) -> MixerSpec | None:
    """Return the state-space layers of Granite 4 H and Bamba."""
    attending = _listed(reader, num_layers)
    heads = _size(reader, "mamba_n_heads", "num_heads")
    sizes: dict[str, Any] = {
        "num_heads": heads,
        "num_key_heads": _size(reader, "mamba_n_groups", "num_key_heads"),
        "key_head_dim": _size(reader, "mamba_d_state", "key_head_dim"),
        "value_head_dim": _mamba_head_dim(reader, hidden_size, heads),
        "convolution": _size(reader, "mamba_d_conv", "convolution"),
        "chunk": _size(reader, "mamba_chunk_size", "chunk", 256),
    }
    sizes |= {
        "convolution_bias": reader.flag("mamba_conv_bias", default=True),
        "projection_bias": reader.flag("mamba_proj_bias", default=False),
    }
    reader.finish()
    return _placed(MixerSpec(kind="mamba2", **sizes), attending, num_layers)
