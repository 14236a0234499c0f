"""Layers of a Hugging Face model that have a mixer with a state: each type's keys and its rule.

The classes are those of ``transformers`` 5.23: ``Qwen3NextGatedDeltaNet``, ``Qwen3_5GatedDeltaNet``,
``GraniteMoeHybridMambaLayer``, ``BambaMixer``, ``NemotronHMamba2Mixer``, ``Mamba2Mixer``,
``JambaMambaMixer``, ``MambaMixer``, ``FalconMambaMixer``, ``KimiLinearDeltaAttention``,
``MiniMaxLightningAttention``, ``Lfm2ShortConv``, ``FalconH1Mixer``, ``OlmoHybridGatedDeltaNet``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model_parts import spaced
from meshwright.profiles.reading import FieldReader

_ATTENDS, _MIXES = "full_attention", "linear_attention"
# Kinds as configs of transformers 4 name them.
_OTHER_NAMES = {"attention": _ATTENDS, "mamba": _MIXES, "conv": _MIXES}
_EVERY = "full_attention_interval"

# Of a config's reader, its layers and its hidden size: the mixer, or None where all layers attend.
MixerRule = Callable[[FieldReader, int, int], MixerSpec | None]


def _size(reader: FieldReader, key: str, field: str, default: int | None = None) -> int:
    low, high = MixerSpec.LIMITS[field]
    return reader.integer(key, low=max(1, int(low)), high=int(high), default=default)


def _stated(reader: FieldReader, num_layers: int) -> list[int] | None:
    """Return the layers that attend as ``layer_types`` lists them; None where the config has no list."""
    listed, allowed = reader.value("layer_types"), f"{_ATTENDS}, {_MIXES}"
    if listed is None:
        return None
    kinds = [_OTHER_NAMES.get(str(kind), kind) for kind in listed] if isinstance(listed, list) else []
    wrong = [kind for kind in kinds if kind not in (_ATTENDS, _MIXES)]
    if len(kinds) != num_layers or wrong:
        found = f"{str(wrong[0])[:40]} is not a kind" if wrong else f"{len(kinds)} kinds"
        reader.fault(
            "layer_types",
            f"{found}: must be a list of num_hidden_layers = {num_layers} kinds",
            allowed=allowed,
        )
        return []
    return [layer for layer, kind in enumerate(kinds) if kind == _ATTENDS]


def _attending(reader: FieldReader, num_layers: int, every: int) -> list[int]:
    """Return the layers that attend: listed, or every n-th, which a list must not contradict."""
    by_rule = reader.integer(_EVERY, high=int(MixerSpec.LIMITS["attention_every"][1]), default=every or 1)
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


def olmo_hybrid_config(config: dict[str, object]) -> dict[str, object]:
    """Return OLMo Hybrid's config with the layers and sizes of delta nets that its class derives."""
    found: dict[str, Any] = dict(config)
    layers, heads = found.get("num_hidden_layers"), found.get("num_attention_heads")
    if found.get("layer_types") is None and type(layers) is int:
        kinds = [_ATTENDS if layer % 4 == 3 else _MIXES for layer in range(layers)]  # noqa: PLR2004
        found["layer_types"] = kinds if _ATTENDS in kinds else [*kinds[:-1], _ATTENDS]
    for key in ("linear_num_key_heads", "linear_num_value_heads"):
        found[key] = heads if found.get(key) is None else found[key]
    keys, hidden = found["linear_num_key_heads"], found.get("hidden_size")
    if found.get("linear_key_head_dim") is None and type(keys) is int and type(hidden) is int and keys > 0:
        found["linear_key_head_dim"] = int(0.75 * hidden / keys)
    size = found.get("linear_key_head_dim")
    if found.get("linear_value_head_dim") is None and type(size) is int:
        found["linear_value_head_dim"] = 2 * size
    return found


def delta_net_of_olmo(reader: FieldReader, num_layers: int, hidden_size: int) -> MixerSpec | None:
    """Return OLMo Hybrid's gated delta nets, with a linear layer for each width."""
    mixer = delta_net(split_projections=False)(reader, num_layers, hidden_size)
    return replace(mixer, single_projections=True) if mixer else None


def kimi_linear_config(config: dict[str, object]) -> dict[str, object]:
    """Return Kimi-Linear's config with ``linear_attn_config`` in the keys of its class.

    Raises:
        InvalidProblemError: its lists leave a layer out, or state one twice or beyond the last.
    """
    found: dict[str, Any] = dict(config)
    layers = found["num_hidden_layers"] if type(found.get("num_hidden_layers")) is int else 0
    first = found.pop("first_k_dense_replace", None)
    _dense_first(found, first if type(first) is int else 1, layers)
    found |= {own: found.pop(key) for key, own in _KIMI.items() if key in found}
    attending, mixing = (found.pop(f"{_OF_KIMI}.{key}", None) for key in ("full_attn_layers", "kda_layers"))
    if found.get("layer_types") is None and (attending is not None or mixing is not None):
        attending, others = (one if isinstance(one, list) else [] for one in (attending, mixing))
        if sorted((*attending, *others), key=str) != sorted(range(1, layers + 1), key=str):
            raise InvalidProblemError.of(
                f"/model/{_OF_KIMI}",
                f"full_attn_layers and kda_layers must name each layer once, counted from 1 to {layers}",
            )
        found["layer_types"] = [_ATTENDS if one + 1 in attending else _MIXES for one in range(layers)]
    if found.get("layer_types") is None:
        found["layer_types"] = [_ATTENDS if one and one % 4 == 0 else _MIXES for one in range(layers)]
    return found


_OF_KIMI = "linear_attn_config"
_KIMI = {f"{_OF_KIMI}.head_dim": "linear_head_dim", f"{_OF_KIMI}.num_heads": "linear_num_heads",
         f"{_OF_KIMI}.short_conv_kernel_size": "linear_conv_kernel_dim"}  # fmt: skip


def kimi_delta(reader: FieldReader, num_layers: int, hidden_size: int) -> MixerSpec | None:  # noqa: ARG001
    """Return Kimi-Linear's delta attention; its low rank is a head's size. Kimi K3's gate has full rank."""
    mixer = _delta(reader, num_layers, "linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    whole = reader.flag(f"{_OF_KIMI}.use_full_rank_gate", default=False)
    return replace(mixer, gate_rank=mixer.key_head_dim, full_gate=whole) if mixer else None


def _delta(reader: FieldReader, num_layers: int, heads: str, size: str, kernel: str) -> MixerSpec | None:
    """Return Kimi's delta attention with decays of full rank; its sizes are named by their keys."""
    number, width = _size(reader, heads, "num_heads"), _size(reader, size, "key_head_dim")
    convolution = _size(reader, kernel, "convolution")
    attending = _stated(reader, num_layers) or []
    reader.finish()
    mixer = MixerSpec(
        kind="kimi_delta_attention", num_heads=number, num_key_heads=number, key_head_dim=width,
        value_head_dim=width, convolution=convolution,
    )  # fmt: skip
    return _placed(mixer, attending, num_layers)


def bailing_hybrid_config(config: dict[str, object]) -> dict[str, object]:
    """Return the config of Ling's hybrids with its layers and MLPs as lists of kinds.

    Configs that its class has written state sizes of mixers by names of their own; it never ties the head.
    """
    found: dict[str, Any] = {**config, "tie_word_embeddings": False}
    found |= {own: found.pop(other) for other, own in _LING.items() if found.get(other) is not None}
    layers = found["num_hidden_layers"] if type(found.get("num_hidden_layers")) is int else 0
    group, first = found.pop("layer_group_size", None), found.pop("first_k_dense_replace", None)
    for key, value, low in (("layer_group_size", group, 1), ("first_k_dense_replace", first, 0)):
        if type(value) is not int or value < low:
            raise InvalidProblemError.of(
                f"/model/{key}", f"{shown(str(value))} is not a whole number", allowed=f"{low} or more"
            )
    if found.get("layer_types") is None:
        found["layer_types"] = [
            _ATTENDS if (layer + 1) % cast("int", group) == 0 else _MIXES for layer in range(layers)
        ]
    _dense_first(found, cast("int", first), layers)
    return found


def _dense_first(found: dict[str, Any], dense: int, layers: int) -> None:
    """Add the list of MLP kinds to a config without one: dense layers come first."""
    if found.get("mlp_layer_types") is None:
        found["mlp_layer_types"] = ["dense" if layer < dense else "sparse" for layer in range(layers)]


_LING = {"linear_head_dim": "head_dim", "linear_conv_kernel_dim": "short_conv_kernel_size"}


def kimi_delta_of_ling(reader: FieldReader, num_layers: int, hidden_size: int) -> MixerSpec | None:  # noqa: ARG001
    """Return Kimi's delta attention of Ling's hybrids: heads as attention has, decays of full rank."""
    heads = reader.first(("linear_num_heads", "num_attention_heads"))
    return _delta(reader, num_layers, heads, "head_dim", "short_conv_kernel_size")


def minimax_config(config: dict[str, object]) -> dict[str, object]:
    """Return MiniMax's config with its layers as a list of kinds; published ones list ones and zeros."""
    found: dict[str, Any] = dict(config)
    layers = found["num_hidden_layers"] if type(found.get("num_hidden_layers")) is int else 0
    listed, whole = found.pop("attn_type_list", None), range(layers)
    if listed is not None and not (
        isinstance(listed, list) and len(listed) == layers and all(one in (0, 1) for one in listed)
    ):
        many = f"{len(listed)} kinds" if isinstance(listed, list) else shown(str(listed))
        raise InvalidProblemError.of(
            "/model/attn_type_list",
            f"{many}: must be a list of num_hidden_layers = {layers} kinds",
            allowed="1 (attention), 0 (lightning attention)",
        )
    if found.get("layer_types") is None:
        kinds = [int(layer % 2 == 0) for layer in whole] if listed is None else listed
        found["layer_types"] = [_ATTENDS if one else _MIXES for one in kinds]
    return found


def lightning(reader: FieldReader, num_layers: int, hidden_size: int) -> MixerSpec | None:
    """Return MiniMax's lightning attention, with as many heads of the same size as attention has."""
    heads = _size(reader, "num_attention_heads", "num_heads")
    size = _size(reader, "head_dim", "key_head_dim", max(1, hidden_size // heads))
    chunk = _size(reader, "block_size", "chunk", 256)
    attending = _stated(reader, num_layers) or []
    reader.finish()
    mixer = MixerSpec(
        kind="lightning_attention", num_heads=heads, num_key_heads=heads, key_head_dim=size,
        value_head_dim=size, convolution=0, chunk=chunk,
    )  # fmt: skip
    return _placed(mixer, attending, num_layers)


def lfm2_config(config: dict[str, object]) -> dict[str, object]:
    """Return LFM2's config with the MLP's width that its class makes of the stated one, and its layers."""
    found: dict[str, Any] = dict(config)
    layers = found["num_hidden_layers"] if type(found.get("num_hidden_layers")) is int else 0
    for other, own in (("block_ff_dim", "intermediate_size"), ("tie_embedding", "tie_word_embeddings")):
        if other in found:
            found[own] = found.pop(other)
    width, multiple = found.get("intermediate_size"), found.get("block_multiple_of")
    factor = found.get("block_ffn_dim_multiplier")
    whole = all(type(one) is int and one > 0 for one in (width, multiple))
    if found.get("block_auto_adjust_ff_dim") and whole and isinstance(factor, int | float | None):
        width = int(2 * cast("int", width) / 3)
        if factor is not None:
            width = -(-int(factor * width) // cast("int", multiple)) * cast("int", multiple)
        found["intermediate_size"] = width
    listed = found.pop("full_attn_idxs", None)
    if listed is not None and not (
        isinstance(listed, list) and all(type(one) is int and 0 <= one < layers for one in listed)
    ):
        raise InvalidProblemError.of(
            "/model/full_attn_idxs",
            f"{shown(str(listed))} is not a list of layers",
            allowed=f"0 to {layers - 1}",
        )
    if found.get("layer_types") is None:
        attending = range(layers) if listed is None else listed
        found["layer_types"] = [_ATTENDS if layer in attending else "conv" for layer in range(layers)]
    return found


def short_convolution(reader: FieldReader, num_layers: int, hidden_size: int) -> MixerSpec | None:
    """Return LFM2's short convolutions; one key gives convolution and projections their biases."""
    attending, bias = _stated(reader, num_layers) or [], reader.flag("conv_bias", default=False)
    mixer = MixerSpec(
        kind="short_convolution", num_heads=hidden_size, num_key_heads=hidden_size, key_head_dim=1,
        value_head_dim=1, convolution=_size(reader, "conv_L_cache", "convolution"),
        convolution_bias=bias, projection_bias=bias,
    )  # fmt: skip
    return _placed(mixer, attending, num_layers)


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
    _heads_that_fill(reader, ("mamba_n_heads", "mamba_expand"), head_dim, inner)
    return head_dim


def _heads_that_fill(reader: FieldReader, names: tuple[str, str], head_dim: int, inner: int) -> None:
    """Refuse heads that are not as wide as ``names[1]`` hidden sizes; ``names[0]`` counts them."""
    key, expand = names
    heads = _size(reader, key, "num_heads")
    if heads * head_dim != inner:
        why = f"{heads} heads of {head_dim} are not {expand} * hidden_size = {inner}"
        near = str(inner // head_dim) if inner % head_dim == 0 else None
        reader.fault(key, why, **({"nearest": near} if near else {}))


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


def falcon_h1(reader: FieldReader, num_layers: int, hidden_size: int) -> MixerSpec | None:  # noqa: ARG001
    """Return Falcon-H1's state-space model, which every layer has next to its attention."""
    heads, expand = (
        _size(reader, "mamba_n_heads", "num_heads"),
        _size(reader, "mamba_expand", "convolution"),
    )
    inner = _size(reader, "mamba_d_ssm", "num_heads", expand * hidden_size)
    width = (
        max(1, inner // heads)
        if reader.value("mamba_d_head") in (None, "auto")
        else _size(reader, "mamba_d_head", "value_head_dim")
    )
    if heads * width != inner:
        near = str(inner // width) if inner % width == 0 else None
        reader.fault(
            "mamba_n_heads",
            f"{heads} heads of {width} are not mamba_d_ssm = {inner}",
            **({"nearest": near} if near else {}),
        )
    read, written = (reader.flag(key, default=False) for key in ("mamba_proj_bias", "projectors_bias"))
    sizes: dict[str, Any] = {
        "num_heads": heads,
        "num_key_heads": _size(reader, "mamba_n_groups", "num_key_heads"),
        "key_head_dim": _size(reader, "mamba_d_state", "key_head_dim"),
        "value_head_dim": width,
        "convolution": _size(reader, "mamba_d_conv", "convolution"),
        "chunk": _size(reader, "mamba_chunk_size", "chunk"),
        "convolution_bias": reader.flag("mamba_conv_bias", default=True),
        "projection_bias": read,
        "output_bias": None if written == read else written,
        "output_norm": reader.flag("mamba_rms_norm", default=False),
    }
    reader.finish()
    return MixerSpec(kind="mamba2", with_attention=True, **sizes)


_JAMBA = {
    "expand": "mamba_expand", "state": "mamba_d_state", "convolution": "mamba_d_conv",
    "rank": "mamba_dt_rank", "convolution_bias": "mamba_conv_bias", "bias": "mamba_proj_bias",
}  # fmt: skip
_MAMBA = {
    "expand": "expand", "state": "state_size", "convolution": "conv_kernel", "rank": "time_step_rank",
    "convolution_bias": "use_conv_bias", "bias": "use_bias",
}  # fmt: skip


def mamba_1(reader: FieldReader, num_layers: int, hidden_size: int) -> MixerSpec | None:
    """Return the selective scans of Jamba, between layers that attend at an offset of every period."""
    period = reader.integer("attn_layer_period", high=int(MixerSpec.LIMITS["attention_every"][1]))
    offset = reader.integer("attn_layer_offset", low=0, high=period - 1)
    mixer = replace(_selective_scan(reader, hidden_size, _JAMBA), inner_norms=True)
    return _placed(mixer, list(range(offset, num_layers, period)), num_layers)


def _selective_scan(reader: FieldReader, hidden_size: int, keys: Mapping[str, str]) -> MixerSpec:
    rank, high = -(-hidden_size // 16), int(MixerSpec.LIMITS["time_step_rank"][1])
    if reader.value(keys["rank"]) not in (None, "auto"):
        rank = reader.integer(keys["rank"], high=high)
    sizes: dict[str, Any] = {
        "num_heads": _size(reader, keys["expand"], "convolution") * hidden_size,
        "key_head_dim": _size(reader, keys["state"], "key_head_dim"),
        "convolution": _size(reader, keys["convolution"], "convolution"),
        "convolution_bias": reader.flag(keys["convolution_bias"], default=True),
        "projection_bias": reader.flag(keys["bias"], default=False),
    }
    reader.finish()
    return MixerSpec(kind="mamba1", num_key_heads=1, value_head_dim=1, time_step_rank=rank, **sizes)


# --------------------------------------------------------------------------------------------------
# Nemotron-H, Mamba 2 and Mamba: every layer is one block.

_LETTERS = {_MIXES: "M", "moe": "E", _ATTENDS: "*", "mlp": "-"}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}
_BLOCKS, _PATTERN, _INNER = "layers_block_type", "hybrid_override_pattern", "intermediate_size"
_DEFAULT_BLOCKS = (_MIXES, "moe", _ATTENDS, "mlp")


def nemotron_h_config(config: dict[str, object]) -> dict[str, object]:
    """Return Nemotron-H's config with its layers as a list of kinds, whichever way they are stated.

    Raises:
        InvalidProblemError: a kind of layer that the class does not build, or another number of them than
            ``num_hidden_layers``, which the class ignores.
    """
    found = dict(config)
    pattern, listed = found.pop(_PATTERN, None), found.get(_BLOCKS)
    name, kinds = _BLOCKS, list(listed) if isinstance(listed, list) else list(_DEFAULT_BLOCKS)
    if listed is None and isinstance(pattern, str):
        name, kinds = _PATTERN, [_KINDS.get(letter, letter) for letter in pattern]
    kinds = [_OTHER_NAMES.get(str(kind), kind) for kind in kinds]
    wrong = [str(kind)[:40] for kind in kinds if kind not in _LETTERS]
    if wrong or not kinds:
        raise InvalidProblemError.of(
            f"/model/{name}",
            f"{wrong[0]!r} is not a kind of layer" if wrong else "states no layers",
            allowed=", ".join(f"{letter} ({kind})" for letter, kind in _KINDS.items()),
        )
    stated = found.get("num_hidden_layers")
    if stated is not None and stated != len(kinds):
        raise InvalidProblemError.of(
            f"/model/{name}",
            f"{len(kinds)} layers, but num_hidden_layers = {str(stated)[:20]}",
            allowed="a kind for each layer",
        )
    own = {"num_hidden_layers": len(kinds), "hidden_act": found.pop("mlp_hidden_act", "relu2")}
    return {**found, **own, _BLOCKS: kinds}


def _block(reader: FieldReader, heads: str, head_dim: str, state: str) -> MixerSpec:
    found, groups = _size(reader, heads, "num_heads"), _size(reader, "n_groups", "num_key_heads")
    if found % groups:
        reader.fault(
            "n_groups",
            f"{groups} does not divide {heads} = {found}",
            allowed=f"a divisor of {heads}",
            nearest=str(next(one for one in range(groups, 0, -1) if found % one == 0)),
        )
    sizes: dict[str, Any] = {
        "num_heads": found,
        "num_key_heads": groups,
        "key_head_dim": _size(reader, state, "key_head_dim"),
        "value_head_dim": _size(reader, head_dim, "value_head_dim"),
        "convolution": _size(reader, "conv_kernel", "convolution"),
        "chunk": _size(reader, "chunk_size", "chunk"),
        "convolution_bias": reader.flag("use_conv_bias", default=True),
        "projection_bias": reader.flag("use_bias", default=False),
    }
    reader.finish()
    return MixerSpec(kind="mamba2", **sizes)


def single_blocks(reader: FieldReader, facts: Mapping[str, object]) -> dict[str, object]:
    """Return Nemotron-H's pattern and mixer; experts only where a layer has them, positions nowhere."""
    listed = reader.value(_BLOCKS)
    pattern = "".join(_LETTERS[str(kind)] for kind in listed) if isinstance(listed, list) else ""
    mixer = _block(reader, "mamba_num_heads", "mamba_head_dim", "ssm_state_size")
    return {
        "layer_pattern": pattern,
        "mixer": mixer if "M" in pattern else None,
        "moe": facts["moe"] if "E" in pattern else None,
        "no_rotary_every": 1,
        "no_rotary_layers": (),
    }


def mamba_2_config(config: dict[str, object]) -> dict[str, object]:
    """Return Mamba 2's config without the inner size, which the class takes from ``expand``.

    Raises:
        InvalidProblemError: an inner size is stated, and is another one.
    """
    found = dict(config)
    stated, expand, hidden = found.pop(_INNER, None), found.get("expand"), found.get("hidden_size")
    inner = expand * hidden if type(expand) is int and type(hidden) is int else 0
    if stated is not None and inner > 0 and stated != inner:
        raise InvalidProblemError.of(
            f"/model/{_INNER}",
            f"{str(stated)[:20]} is not expand * hidden_size, which the class builds",
            allowed=str(inner),
            nearest=str(inner),
        )
    return found


def mixers_alone(reader: FieldReader, facts: Mapping[str, object]) -> dict[str, object]:
    """Return Mamba 2's layers, each a mixer and nothing else; its heads fill the inner size exactly."""
    hidden_size, num_layers = cast("int", facts["hidden_size"]), cast("int", facts["num_layers"])
    expand = _size(reader, "expand", "convolution", 2)
    head_dim = _size(reader, "head_dim", "value_head_dim")
    _heads_that_fill(reader, ("num_heads", "expand"), head_dim, expand * hidden_size)
    mixer = _block(reader, "num_heads", "head_dim", "state_size")
    return {"layer_pattern": "M" * num_layers, "mixer": mixer, "no_rotary_every": 1}


def mamba_1_config(config: dict[str, object]) -> dict[str, object]:
    """Return Mamba's config with its channels as heads, which it does not name.

    A stated inner size overrides ``expand`` (transformers 5.23, ``MambaConfig``), as in Falcon Mamba 7B.
    """
    found = dict(config)
    stated, sizes = found.pop(_INNER, None), (found.get("expand"), found.get("hidden_size"))
    if stated is not None:
        return {**found, "num_heads": stated}
    whole = all(type(one) is int and one > 0 for one in sizes)
    return {**found, **({"num_heads": cast("int", sizes[0]) * cast("int", sizes[1])} if whole else {})}


# Keys of mamba_ssm's own config.json, and of its mixers: transformers' (mamba_ssm at e9594ce
# models/config_mamba.py, modules/mamba_simple.py, modules/mamba2.py).
OF_MAMBA_SSM = "ssm_cfg"
_SSM_SIZES = {
    "d_model": "hidden_size", "n_layer": "num_hidden_layers", "tie_embeddings": "tie_word_embeddings",
}  # fmt: skip
_SSM_MIXER = {
    "d_state": "state_size", "d_conv": "conv_kernel", "expand": "expand", "conv_bias": "use_conv_bias",
    "bias": "use_bias",
}  # fmt: skip
_SSM_LAYERS: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, object]]] = {
    "Mamba1": ("mamba", {"dt_rank": "time_step_rank"}, {}),
    "Mamba2": (
        "mamba2", {"headdim": "head_dim", "ngroups": "n_groups", "chunk_size": "chunk_size"},
        {"d_state": 128, "headdim": 64, "ngroups": 1, "chunk_size": 256},
    ),
}  # fmt: skip
_PADDED = "pad_vocab_size_multiple"
_SSM_DEFAULTS: Mapping[str, object] = {
    "d_model": 2560, "n_layer": 64, "vocab_size": 50_277, _PADDED: 8, "tie_embeddings": True,
}  # fmt: skip
_SSM_UNUSED = (
    "dt_min",
    "dt_max",
    "dt_init",
    "dt_scale",
    "dt_init_floor",
    "use_fast_path",
    "use_mem_eff_path",
)
_SSM_FIXED: Mapping[str, object] = {
    "d_intermediate": 0,
    "attn_layer_idx": [],
    "attn_cfg": {},
    "rms_norm": True,
}


def mamba_ssm_config(config: Mapping[str, object]) -> dict[str, object]:
    """Return the config of transformers' class for one of mamba_ssm's own (state-spaces/mamba-2.8b).

    Raises:
        UnsupportedModelError: layers of attention, of an MLP or of another mixer, or an unknown key.
        InvalidProblemError: a part is no object, or a size no whole number.
    """
    whole = {**_SSM_DEFAULTS, **config}
    parts = whole.pop(OF_MAMBA_SSM) or {}
    if not isinstance(parts, Mapping):
        raise InvalidProblemError.of(
            f"/model/{OF_MAMBA_SSM}", "is not an object", allowed="the mixer's sizes"
        )
    mixer = dict(parts)
    layer = str(mixer.pop("layer", "Mamba1"))
    if layer not in _SSM_LAYERS:
        raise UnsupportedModelError.field(
            f"{OF_MAMBA_SSM}.layer", f"{shown(layer)}; planned: {', '.join(_SSM_LAYERS)}"
        )
    model_type, own, defaults = _SSM_LAYERS[layer]
    for key, value in _SSM_FIXED.items():
        if (stated := whole.pop(key, value)) != value:
            planned = str(value).lower() if value or value == 0 else "none"
            raise UnsupportedModelError.field(key, f"{shown(str(stated))}; planned: {planned}")
    found: dict[str, object] = {"model_type": model_type, "vocab_size": _padded_vocabulary(whole)}
    names = {**_SSM_MIXER, **own}
    if other := next((key for key in mixer if key not in names and key not in _SSM_UNUSED), ""):
        raise UnsupportedModelError.field(
            f"{OF_MAMBA_SSM}.{shown(str(other))}", f"is not of {layer}; known: {', '.join(names)}"
        )
    found |= {_SSM_SIZES.get(key, key): value for key, value in whole.items() if key not in found}
    found |= {names[key]: value for key, value in {**defaults, **mixer}.items() if key in names}
    if model_type == "mamba2":
        found["num_heads"] = _heads_of_mamba_2(found)
    return found


def _padded_vocabulary(whole: dict[str, object]) -> object:
    """Return the rows of the embedding, which a multiple rounds up; what is no size is refused later."""
    size, multiple = whole["vocab_size"], whole.pop(_PADDED)
    if type(multiple) is not int or multiple < 1:
        raise InvalidProblemError.of(
            f"/model/{_PADDED}", f"{shown(str(multiple))} is out of range", allowed="a whole number from 1"
        )
    return -(-size // multiple) * multiple if type(size) is int else size


def _heads_of_mamba_2(found: Mapping[str, object]) -> object:
    hidden, expand, width = (found.get(key, 2) for key in ("hidden_size", "expand", "head_dim"))
    if not (type(hidden) is int and type(expand) is int and type(width) is int and width > 0):
        return hidden
    return expand * hidden // width


def selective_scans_alone(reader: FieldReader, facts: Mapping[str, object]) -> dict[str, object]:
    """Return the layers of Mamba and Falcon Mamba, each a selective scan and nothing else."""
    mixer = _selective_scan(reader, cast("int", facts["hidden_size"]), _MAMBA)
    mixer = replace(mixer, num_heads=cast("int", facts["num_attention_heads"]))
    return {"layer_pattern": "M" * cast("int", facts["num_layers"]), "mixer": mixer, "no_rotary_every": 1}
