"""Layers of a Hugging Face model that attend locally, have experts, or lack positions: each type's rule.

A rule yields a list of layers, which becomes "every n-th" where that is equivalent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import (
    CompressionSpec,
    IndexerSpec,
    LocalAttention,
    StreamsSpec,
    expert_placement,
    spaced,
)
from meshwright.profiles.reading import FieldReader

_GLOBAL, _LOCAL, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_INDEXED = ("indexed_attention", "deepseek_sparse_attention")  # reads what an indexer chooses of all tokens
MAX_LAYERS = 10_000

# Which layers attend to all tokens without ``layer_types``; the others attend within the window.
GlobalRule = Literal[
    "all",
    "none",
    "every_last",  # the last of every n layers
    "every_last_and_the_last",  # the same, and the last of all, whatever kind it has
    "first_and_every_last",  # the same, and the first of all
    "every_last_after_dense",  # the same after leading layers without experts, all global
    "every_first",  # the first of every n layers
    "before_max_window_layers",
    "odd_or_from_max_window_layers",  # Qwen2Moe
    "without_rotary",  # Llama 4: layers without positions
    "with_rotary",  # SmolLM3: the others
    "flint",  # the first two, every fourth, and the last
]


# --------------------------------------------------------------------------------------------------
# Experts.


def moe_placement(reader: FieldReader, num_layers: int) -> dict[str, Any] | None:
    """Return the fields of MoeSpec that set which layers have experts; None: no layer has."""
    moe = _moe_layers(reader, num_layers)
    return expert_placement(moe, num_layers) if moe else None


def _moe_layers(reader: FieldReader, num_layers: int) -> list[int]:
    rule = _moe_layers_by_rule(reader, num_layers)  # read first: its keys are known either way
    kinds, listed = reader.value("mlp_layer_types"), reader.value("moe_layers")
    if kinds is not None:
        listed_kinds = kinds if isinstance(kinds, list) else [None]
        if len(listed_kinds) < num_layers or any(kind not in ("dense", "sparse") for kind in listed_kinds):
            reader.fault("mlp_layer_types", f"must be a list of {num_layers} kinds: dense, sparse")
            return []
        return [layer for layer, kind in enumerate(listed_kinds[:num_layers]) if kind == "sparse"]
    if listed is not None:
        return [layer for layer in _numbers(reader, "moe_layers") if layer < num_layers]
    return rule


def _moe_layers_by_rule(reader: FieldReader, num_layers: int) -> list[int]:
    every = reader.value("moe_layer_freq")
    listed = every if isinstance(every, list) else [1] * num_layers
    frequency = 1 if isinstance(every, list) else _step(reader, "moe_layer_freq")
    step = _step(reader, reader.first(("decoder_sparse_step", "interleave_moe_layer_step")))
    interval = _step(reader, "moe_layer_interval")
    period = _step(reader, "expert_layer_period")
    offset = reader.integer("expert_layer_offset", low=0, default=0, high=period - 1)
    leading = reader.integer(
        reader.first(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")),
        low=0, default=0, high=MAX_LAYERS,
    )  # fmt: skip
    last = reader.integer("moe_layer_end_index", low=-1, default=-1, high=MAX_LAYERS)
    dense = frozenset(_numbers(reader, "mlp_only_layers"))
    return [
        layer
        for layer in range(num_layers)
        if layer >= leading and (layer <= last or last < 0) and layer not in dense
        if (layer + 1) % step == 0 and layer % frequency == 0 and (layer + 1) % interval == 0
        if layer % period == offset
        if layer < len(listed) and listed[layer]
    ]


def _step(reader: FieldReader, name: str) -> int:
    return reader.integer(name, default=1, high=MAX_LAYERS)


def _numbers(reader: FieldReader, name: str) -> list[int]:
    layers = reader.value(name) or []
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        reader.fault(name, "must be a list of whole numbers")
        return []
    return layers


# --------------------------------------------------------------------------------------------------
# Local attention.


def attention_layers(
    reader: FieldReader, rule: GlobalRule, every: int, num_layers: int, without_rotary: list[int]
) -> dict[str, Any]:
    """Return the fields of ModelSpec that set which layers attend locally, and to how many tokens.

    ``rule`` selects the global layers if the config lists no kinds, ``every`` is its n where it has
    one that the config does not state, ``without_rotary`` are the layers without rotary positions.

    Raises:
        UnsupportedModelError: a layer is of another kind.
    """
    kinds = _stated_kinds(reader, num_layers)
    by_rule = _global_layers(reader, rule, every, num_layers, without_rotary)
    chunked = rule == "without_rotary" if kinds is None else _CHUNKED in kinds
    name = "attention_chunk_size" if chunked else reader.first(("sliding_window", "window_size"))
    reader.value("sliding_window")
    window = reader.integer(name, low=0, default=0)
    if reader.has("local_attention"):  # ModernBERT: to both sides
        window = reader.integer("local_attention", low=0) // 2
    if kinds is not None and rule == "every_last_and_the_last":
        kinds = [*kinds[:-1], _GLOBAL]
    layers = by_rule if kinds is None else [layer for layer in range(num_layers) if kinds[layer] == _GLOBAL]
    if not window or len(layers) == num_layers:
        return {}
    distance, listed = spaced(layers, num_layers)
    found: dict[str, Any] = {"sliding_window": window, "chunked_attention": chunked}
    return found | ({"global_layers": listed} if listed else {"sliding_window_every": distance or 1})


def _stated_kinds(reader: FieldReader, num_layers: int) -> list[str] | None:
    kinds = reader.value("layer_types")
    reader.value("attention_types")
    if kinds is None and reader.has("attention_layers"):  # GPT-Neo
        listed = reader.value("attention_layers")
        kinds = [{"global": _GLOBAL, "local": _LOCAL}.get(kind) for kind in listed]  # type: ignore[attr-defined]
    elif kinds is None and reader.has("attention_types"):
        kinds = _expanded(reader)
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) < num_layers:
        reader.fault("layer_types", f"must be a list of {num_layers} kinds of layers")
        return None
    kinds = [_GLOBAL if kind in _INDEXED and reader.has("index_topk") else kind for kind in kinds]
    if not all(kind in (_GLOBAL, _LOCAL, _CHUNKED) for kind in kinds):
        raise UnsupportedModelError.field(
            "layer_types", f"only {_GLOBAL}, {_LOCAL} and {_CHUNKED} are understood"
        )
    return list(kinds[:num_layers])


def _expanded(reader: FieldReader) -> list[str]:
    """Return GPT-Neo's ``[[["global", "local"], 12]]`` one by one."""
    names = {"global": _GLOBAL, "local": _LOCAL}
    try:
        pairs: Any = reader.value("attention_types")
        repeated = [(kinds, min(count, MAX_LAYERS)) for kinds, count in pairs]
        return [names[kind] for kinds, count in repeated for _ in range(count) for kind in kinds]
    except (TypeError, ValueError, KeyError):
        reader.fault("attention_types", 'must be a list such as [[["global", "local"], 12]]')
        return []


def _global_layers(
    reader: FieldReader, rule: GlobalRule, every: int, num_layers: int, without_rotary: list[int]
) -> list[int]:
    """Return the global layers by the type's own rule; what it reads is known from then on."""
    layers, every = range(num_layers), _pattern(reader, every)
    switch = reader.flag("use_sliding_window", default=True)
    dense = reader.integer("first_k_dense_replace", low=0, default=0) if rule.endswith("dense") else 0
    first = reader.integer("max_window_layers", low=0, default=num_layers) if "max_window" in rule else 0
    is_local: Mapping[GlobalRule, Callable[[int], bool]] = {
        "all": lambda _layer: False,
        "none": lambda _layer: True,
        "every_last": lambda layer: (layer + 1) % every > 0,
        "every_last_and_the_last": lambda layer: layer < num_layers - 1 and (layer + 1) % every > 0,
        "first_and_every_last": lambda layer: layer > 0 and (layer + 1) % every > 0,
        "every_last_after_dense": lambda layer: layer >= dense and (layer - dense + 1) % every > 0,
        "every_first": lambda layer: layer % every > 0,
        "before_max_window_layers": lambda layer: layer >= first,
        "odd_or_from_max_window_layers": lambda layer: layer < first and layer % 2 == 0,
        "without_rotary": lambda layer: layer not in without_rotary,
        "with_rotary": lambda layer: layer in without_rotary,
        "flint": lambda layer: 1 < layer < num_layers - 1 and layer % 4 != 1,
    }
    return [layer for layer in layers if not (switch and is_local[rule](layer))]


def _pattern(reader: FieldReader, every: int) -> int:
    """Return the n of "every n-th": a number, or EXAONE's ``LLLG``; 1 where it is 0: every layer."""
    names = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
    stated = reader.first(names)
    for name in names:
        word = reader.value(name)
    word = reader.value(stated)
    if isinstance(word, str) and re.fullmatch("L+G", word):
        return len(word)
    return reader.integer(stated, default=every, low=0, high=MAX_LAYERS) or 1


# --------------------------------------------------------------------------------------------------
# Attention that global and local layers have each: from the config's values for all layers, and more keys.

LocalRule = Callable[[FieldReader, ModelSpec], dict[str, Any]]
_HEADS = "num_attention_heads_per_layer"


def _each(model: ModelSpec, of_global: Mapping[str, Any], of_local: Mapping[str, Any]) -> dict[str, Any]:
    kinds = set(model.local_layers())
    own = {name: value for name, value in of_local.items() if value != of_global[name]}
    if len(kinds) == 1:
        return dict(of_local if True in kinds else of_global)
    return {**of_global, "local_attention": LocalAttention(**own) if own else None}


def heads_by_layer(reader: FieldReader, model: ModelSpec) -> dict[str, Any]:
    """Return attention heads that are listed layer by layer (Laguna).

    Raises:
        UnsupportedModelError: layers that attend alike have other numbers of heads.
    """
    counts = _numbers(reader, _HEADS)
    if not counts:
        return {}
    if len(counts) != model.num_layers:
        reader.fault(_HEADS, f"must be a list of {model.num_layers} numbers of heads")
        return {}
    found: dict[bool, set[int]] = {False: set(), True: set()}
    for is_local, heads in zip(model.local_layers(), counts, strict=True):
        found[is_local].add(heads)
    if max(map(len, found.values())) > 1:
        raise UnsupportedModelError.field(
            _HEADS, "layers with the same attention have different numbers of heads"
        )
    whole, local = ({"num_attention_heads": next(iter(found[kind]), 1)} for kind in (False, True))
    return _each(model, whole, local)


# As transformers' ``PreTrainedConfig.per_layer_config`` writes them where a config is saved, and ours.
_OF_A_LAYER = {"num_attention_heads": "num_attention_heads", "num_key_value_heads": "num_kv_heads",
               "head_dim": "head_dim"}  # fmt: skip


def _by_layer(reader: FieldReader, model: ModelSpec) -> dict[str, Any] | None:
    """Return the values of ``per_layer_config`` for all global layers; None if the config has none.

    Raises:
        UnsupportedModelError: global layers differ, local ones are stated, or another key is.
    """
    name, listed = "per_layer_config", reader.value("per_layer_config")
    if listed is None:
        return None
    wanted = {str(layer) for layer, local in enumerate(model.local_layers()) if not local}
    if not isinstance(listed, Mapping) or not all(isinstance(one, Mapping) for one in listed.values()):
        reader.fault(name, "must map layers to their own settings")
        return None
    stated = [dict(one) for one in listed.values()]
    if {*map(str, listed)} != wanted or any(one != stated[0] for one in stated):
        raise UnsupportedModelError.field(name, "layers other than all global ones have different sizes")
    if any(key not in _OF_A_LAYER or type(value) is not int for key, value in stated[0].items()):
        raise UnsupportedModelError.field(name, f"supported for numbers of {', '.join(_OF_A_LAYER)}")
    return {_OF_A_LAYER[key]: value for key, value in stated[0].items()}


def gemma_4_attention(reader: FieldReader, model: ModelSpec) -> dict[str, Any]:
    """Return Gemma 4: the plain keys are of local layers; global ones have keys of their own.

    Raises:
        UnsupportedModelError: as ``_by_layer``.
    """
    same = reader.flag("attention_k_eq_v", default=False)
    head_dim = reader.integer("global_head_dim", default=512, high=2**14)
    kv_heads = reader.integer("num_global_key_value_heads", default=model.num_kv_heads, high=2**16)
    of_local = {"num_kv_heads": model.num_kv_heads, "head_dim": model.head_dim, "keys_are_values": False}
    of_global = {"num_kv_heads": kv_heads if same else model.num_kv_heads, "head_dim": head_dim}
    saved, of_layers = _by_layer(reader, model), _of_layers(reader, model)
    if reader.flag("use_double_wide_mlp", default=False) and of_layers["borrowing_layers"]:
        of_layers["borrowing_ffn_hidden_size"] = 2 * model.ffn_hidden_size
    return of_layers | _each(
        model, {**of_local, **(of_global if saved is None else saved), "keys_are_values": same}, of_local
    )


def _of_layers(reader: FieldReader, model: ModelSpec) -> dict[str, Any]:
    """Return the embeddings of each layer, and the last layers that read the keys of earlier ones."""
    size = reader.integer("hidden_size_per_layer_input", low=0, default=0)
    rows = reader.integer("vocab_size_per_layer_input", default=model.vocab_size)
    return {
        "layer_embedding_size": size,
        "layer_vocab_size": rows if size and rows != model.vocab_size else None,
        "borrowing_layers": reader.integer(
            "num_kv_shared_layers", low=0, high=model.num_layers - 1, default=0
        ),
    }


_SPARSE = "activation_sparsity_pattern"


def gemma_3n_streams(reader: FieldReader, model: ModelSpec) -> dict[str, Any]:
    """Return Gemma 3n: several hidden states of a token, and sparse gates of the first layers' MLPs.

    Raises:
        UnsupportedModelError: no embeddings of each layer, although the class has their norm.
    """
    layers, given = model.num_layers, reader.value(_SPARSE)
    if given is None:  # of ``Gemma3nTextConfig``
        given = [0.95 if layer < 10 < layers else 0.0 for layer in range(layers)]  # noqa: PLR2004
    listed = given if isinstance(given, list) else []
    shares = [one for one in listed if isinstance(one, int | float) and 0 <= one < 1]
    if not len(shares) == len(listed) == layers:
        reader.fault(_SPARSE, f"must be a list of {layers} shares, one per layer", allowed="0 to below 1")
        return {}
    if not reader.integer("hidden_size_per_layer_input", low=0, default=0):
        raise UnsupportedModelError.field("hidden_size_per_layer_input", "0: only the class has this norm")
    streams = StreamsSpec(
        count=reader.integer("altup_num_inputs", high=64),
        low_rank=reader.integer("laurel_rank", high=2**20),
        sparse_layers=sum(one > 0 for one in shares),
    )
    return _of_layers(reader, model) | {"streams": streams}


# Keys of MiMo's published config that repeat what its class takes of others, and what they repeat.
_MIMO = {
    "swa_num_attention_heads": "num_attention_heads", "swa_head_dim": "head_dim",
    "swa_v_head_dim": "v_head_dim",
}  # fmt: skip


def mimo_attention(reader: FieldReader, model: ModelSpec) -> dict[str, Any]:
    """MiMo-V2-Flash: local layers have twice the key/value heads, and sinks; values are narrower than keys.

    Raises:
        UnsupportedModelError: a key of the published config has another value.
    """
    repeats: dict[str, object] = {own: reader.value(other) for own, other in _MIMO.items()}
    repeats |= {
        "swa_num_key_value_heads": 2 * model.num_kv_heads,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "hybrid_layer_pattern": [int(local) for local in model.local_layers()],
    }
    for key, value in repeats.items():
        if reader.has(key) and reader.value(key) != value:
            raise UnsupportedModelError.field(
                key, f"transformers' class builds a model with {str(value)[:40]} and ignores this key"
            )
    width = reader.integer("v_head_dim", default=model.head_dim, high=2**14)
    of_global = {"num_kv_heads": model.num_kv_heads, "attention_sinks": False}
    of_local = {"num_kv_heads": 2 * model.num_kv_heads, "attention_sinks": True}
    found = {"value_head_dim": None if width == model.head_dim else width}
    if reader.has("sliding_window_size") and model.sliding_window:
        found["sliding_window"] = reader.integer("sliding_window_size", low=0) + 1  # and the query's own
    return {**found, **_each(model, of_global, of_local)}


# Lists of Step 3.5's published configs, which have an item for each prediction layer, too.
_STEP_LISTS = ("layer_types", "mlp_layer_types", "rope_theta", "partial_rotary_factors")
# What its class does not build, or reads in ``rope_parameters`` then: no training has prediction layers.
_STEP_UNREAD = ("rope_theta", "partial_rotary_factors", "rope_scaling", "num_nextn_predict_layers")


def step_config(config: dict[str, object]) -> dict[str, object]:
    """Step 3.5: the keys of its published config in those of transformers' ``Step3p7TextConfig``.

    Raises:
        UnsupportedModelError: layers that attend alike rotate otherwise, or local ones have sizes of their
            own that the class does not build.
    """
    found: dict[str, Any] = dict(config)
    layers = found["num_hidden_layers"] if type(found["num_hidden_layers"]) is int else 0
    found |= {key: found[key][:layers] for key in _STEP_LISTS if isinstance(found.get(key), list)}
    kinds = found.setdefault("layer_types", None) or [_GLOBAL] * layers
    listed = found.pop("moe_layers_enum", None)
    listed = range(3, layers) if listed is None else listed
    words = listed.split(",") if isinstance(listed, str) else listed
    experts = {int(word) for word in words if str(word).strip().isdigit()}
    if found.get("mlp_layer_types") is None:
        found["mlp_layer_types"] = ["sparse" if layer in experts else "dense" for layer in range(layers)]
    other = found.pop("attention_other_setting", None) or {}
    if isinstance(other, Mapping) and found.get("num_sliding_attention_heads") is None:
        found["num_sliding_attention_heads"] = other.get("num_attention_heads")
        for key, same in (("num_attention_groups", "num_key_value_heads"), ("head_dim", "head_dim")):
            if other.get(key, found[same]) != found[same]:
                raise UnsupportedModelError.field(
                    "attention_other_setting", f"another {same} of local layers"
                )
    if not isinstance(found.get("rope_parameters"), Mapping):
        found["rope_parameters"] = _step_positions(found, kinds)
    return {key: value for key, value in found.items() if key not in _STEP_UNREAD}


def _step_positions(config: Mapping[str, Any], kinds: list[Any]) -> dict[str, dict[str, Any]]:
    """Return rotary positions of global layers, which alone are scaled, and of local ones."""
    found: dict[str, dict[str, Any]] = {}
    for name, key in (("rope_theta", "rope_theta"), ("partial_rotary_factors", "partial_rotary_factor")):
        stated = config.get(name)
        each = stated if isinstance(stated, list) else [stated] * len(kinds)
        for kind, value in zip(kinds, each, strict=False):
            if found.setdefault(str(kind), {}).setdefault(key, value) != value:
                raise UnsupportedModelError.field(name, f"another one in some layers of {str(kind)[:40]}")
    if isinstance(config.get("rope_scaling"), Mapping) and _GLOBAL in found:
        found[_GLOBAL] |= config["rope_scaling"]
    return {kind: {key: one for key, one in of.items() if one is not None} for kind, of in found.items()}


def step_attention(reader: FieldReader, model: ModelSpec) -> dict[str, Any]:
    """Step 3.5: local layers have a number of heads of their own.

    Raises:
        UnsupportedModelError: ``per_layer_config`` does not match the layers of the class.
    """
    of_global = {"num_attention_heads": model.num_attention_heads}
    of_local = {
        "num_attention_heads": reader.integer(
            "num_sliding_attention_heads", default=model.num_attention_heads, high=2**16
        )
    }
    local = {str(layer) for layer, local in enumerate(model.local_layers()) if local}
    saved = reader.value("per_layer_config") or dict.fromkeys(local, of_local)
    if saved != dict.fromkeys(local, of_local):
        raise UnsupportedModelError.field(
            "per_layer_config", "other heads than num_sliding_attention_heads"
        )
    return _each(model, of_global, of_local)


# --------------------------------------------------------------------------------------------------
# Keys that an indexer chooses.


def layers_that_reuse(reader: FieldReader, num_layers: int) -> tuple[int, ...]:
    """Return the layers that read keys chosen by an earlier indexer: listed, or all but every n-th.

    The rule is that of transformers' ``GlmMoeDsaConfig`` (GLM-5.2): the first ``index_skip_topk_offset``
    choose, too.
    """
    every = reader.integer("index_topk_freq", low=0, default=1, high=MAX_LAYERS) or 1
    offset = reader.integer("index_skip_topk_offset", low=0, default=2, high=MAX_LAYERS)
    kinds = ["F" if max(layer - offset + 1, 0) % every == 0 else "S" for layer in range(num_layers)]
    pattern, stated = reader.value("index_topk_pattern"), reader.value("indexer_types")
    for name, listed in (("index_topk_pattern", pattern), ("indexer_types", stated)):
        if listed is None:
            continue
        words = listed if isinstance(listed, list | str) else ""
        kinds = [{"full": "F", "shared": "S"}.get(str(word), str(word)) for word in words]
        if len(kinds) < num_layers or not {*kinds} <= {"F", "S"}:
            reader.fault(name, f"must state full or shared for each of {num_layers} layers")
            return ()
    if kinds[0] == "S":
        stated_by = ("indexer_types", "index_topk_pattern", "index_skip_topk_offset")
        reader.fault(reader.first(stated_by), "the first layer must be full: it has none to reuse")
        return ()
    return tuple(layer for layer in range(num_layers) if kinds[layer] == "S")


_BLOCKS = "minimax_m3_sparse"  # kind of layers that read the blocks of keys that an indexer chooses
_OF_BLOCKS = {
    "index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}  # fmt: skip


def minimax_3_config(config: dict[str, object]) -> dict[str, object]:
    """Return MiniMax-M3's config with its layers of chosen blocks as a list, and their sizes as keys."""
    found: dict[str, Any] = dict(config)
    nested, kinds = found.pop("sparse_attention_config", None) or {}, found.pop("layer_types", None)
    if isinstance(nested, Mapping):
        found |= {key: nested[old] for key, old in _OF_BLOCKS.items() if old in nested}
        chooses = nested.get("use_sparse_attention", True)
        if kinds is None and chooses and isinstance(nested.get("sparse_attention_freq"), list):
            kinds = [_BLOCKS if one else _GLOBAL for one in nested["sparse_attention_freq"]]
    if found.get("n_shared_experts") == 1:  # as many as the class always builds
        del found["n_shared_experts"]
    listed = kinds if isinstance(kinds, list) else []
    if any(one not in (_BLOCKS, _GLOBAL) for one in listed):
        raise InvalidProblemError.of(
            "/model/layer_types", "has another kind of layer", allowed=f"{_BLOCKS}, {_GLOBAL}"
        )
    return found | {"indexed_layers": [layer for layer, kind in enumerate(listed) if kind == _BLOCKS]}


def chosen_blocks(reader: FieldReader, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return MiniMax-M3's indexer, and the layers without it."""
    heads, size, block, chosen, _local = (reader.integer(key, low=0, high=2**20) for key in _OF_BLOCKS)
    layers = _numbers(reader, "indexed_layers")
    reader.finish()
    if not layers:
        return {}
    every = range(int(facts["num_layers"]))
    return {
        "indexer": IndexerSpec(
            num_heads=heads, head_dim=size, top_k=chosen * block, block_size=block,
            whole_layers=tuple(layer for layer in every if layer not in layers),
        )
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Compressed entries of all tokens next to a window (DeepSeek-V4; transformers 5.24, ``DeepseekV4Config``).

_RATES, _CHOSEN, _OTHER = "compress_ratios", "compressed_sparse_attention", "heavily_compressed_attention"
_USUAL_RATES = {_CHOSEN: 4, _OTHER: 128}
_EXPERT_KINDS = ("hash_moe", "moe")  # by the token's number, or by its scores
# What becomes another key below, or changes neither sizes nor work.
_V4_READ = ("layer_types", "mlp_layer_types", "compress_rates", "compress_rate_csa", "compress_rate_hca",
            "num_hash_layers", "compress_rope_theta", "rope_scaling", "rope_theta", "qk_rope_head_dim",
            "hc_eps", "hc_sinkhorn_iters")  # fmt: skip


def deepseek_4_config(config: dict[str, object]) -> dict[str, object]:
    """Return DeepSeek-V4's config with the rate of each layer's entries, and positions by kinds of layers.

    Raises:
        InvalidProblemError: ``layer_types`` has another kind of layers.
    """
    found: dict[str, Any] = dict(config)
    layers = found["num_hidden_layers"] if type(found.get("num_hidden_layers")) is int else 0
    rates = {**_USUAL_RATES, **(found.get("compress_rates") or {})}
    for key, kind in (("compress_rate_csa", _CHOSEN), ("compress_rate_hca", _OTHER)):
        rates[kind] = rates[kind] if found.get(key) is None else found[key]
    own_rates = {_LOCAL: 0, **rates}
    kinds, ratios = found.get("layer_types"), found.get(_RATES)
    if kinds is None and ratios is not None:  # by the usual rates, whatever others are stated
        named = {0: _LOCAL, **{rate: kind for kind, rate in _USUAL_RATES.items()}}
        kinds = [named.get(one) for one in ratios[:layers]] if isinstance(ratios, list) else [None]
    if kinds is None:
        kinds = [_CHOSEN if layer % 2 and layer > 1 else _OTHER for layer in range(layers)]
    wrong = not isinstance(kinds, list) or len(kinds) < layers or any(one not in own_rates for one in kinds)
    experts = found.get("mlp_layer_types") or []
    if wrong or any(one not in _EXPERT_KINDS for one in experts):
        key = "layer_types" if found.get("layer_types") else _RATES
        raise InvalidProblemError.of(
            f"/model/{key if wrong else 'mlp_layer_types'}",
            f"must list a kind for each of {layers} layers",
            allowed=", ".join(own_rates if wrong else _EXPERT_KINDS),
        )
    share: dict[str, Any] = {}
    if found.get("partial_rotary_factor") is None and isinstance(found.get("head_dim"), int):
        size = found.get("qk_rope_head_dim") or 64 / 512 * found["head_dim"]
        share = {"partial_rotary_factor": size / found["head_dim"]}
    positions = found.get("rope_parameters") or {}
    whole = {**(positions.get("compress") or {"rope_theta": found.get("compress_rope_theta"),
             **(found.get("rope_scaling") or positions)})}  # fmt: skip
    local = positions.get("main") or {"rope_theta": found.get("rope_theta")}
    found = {key: value for key, value in found.items() if key not in _V4_READ}
    return found | share | {
        _RATES: [own_rates[one] for one in kinds[:layers]],
        "chosen_rate": rates[_CHOSEN],
        "rope_parameters": {_GLOBAL: whole, _LOCAL: local},
    }  # fmt: skip


def compressed_entries(reader: FieldReader, _known: Mapping[str, object]) -> dict[str, Any]:
    """Return DeepSeek-V4's attention and streams; all of its layers attend within the window."""
    names = {
        "q_lora_rank": "q_lora_rank", "output_groups": "o_groups", "output_rank": "o_lora_rank",
        "index_heads": "index_n_heads", "index_head_dim": "index_head_dim", "top_k": "index_topk",
    }  # fmt: skip
    sizes: dict[str, Any] = {}
    for name, key in names.items():
        low, high = CompressionSpec.LIMITS[name]
        sizes[name] = reader.integer(key, low=int(low), high=int(high))
    rates, chosen = tuple(_numbers(reader, _RATES)), reader.integer("chosen_rate", low=0)
    window = reader.integer("sliding_window", high=2**31 - 1)
    streams = reader.integer("hc_mult", low=1, high=64)
    reader.finish()
    if chosen not in rates:
        sizes |= {"index_heads": 1, "index_head_dim": 1, "top_k": 1}
    return {
        "compression": CompressionSpec(**sizes, rates=rates, chosen_rate=chosen if chosen in rates else 0),
        "hyper_streams": streams if streams > 1 else 0,
        "sliding_window": window,
    }


# --------------------------------------------------------------------------------------------------
# Positions.


def without_positions(_reader: FieldReader, _known: Mapping[str, object]) -> dict[str, object]:
    """Return that no layer has positions, although a config may state those of heads (Kimi-Linear)."""
    return {"no_rotary_every": 1, "no_rotary_layers": ()}


def attention_residuals(reader: FieldReader, _known: Mapping[str, object]) -> dict[str, object]:
    """Return Kimi K3's blocks of layers with a sum each; no layer has positions."""
    size = reader.integer("attn_res_block_size", high=MAX_LAYERS)
    return {"residual_block_layers": size, "no_rotary_every": 1, "no_rotary_layers": ()}


def layers_without_rotary(reader: FieldReader, num_layers: int) -> list[int]:
    """Return the layers that do not rotate queries and keys (``no_rope_layers``: 1 if rotated).

    Raises:
        UnsupportedModelError: layers rotate with different bases.
    """
    every = reader.integer("no_rope_layer_interval", low=0, default=0, high=MAX_LAYERS)
    stated, bases = reader.value("no_rope_layers"), reader.value("layer_rope_theta")
    if isinstance(bases, list) and bases:
        if len({base for base in bases if base}) > 1:
            raise UnsupportedModelError.field("layer_rope_theta", "layers of different rotary bases")
        stated = bases
    if isinstance(stated, list) and stated:
        return [layer for layer, rotates in enumerate(stated[:num_layers]) if not rotates]
    return [layer for layer in range(num_layers) if every and (layer + 1) % every == 0]


# --------------------------------------------------------------------------------------------------
# Layers of unlike sizes (Nemotron Super and Ultra: modeling_decilm.py and block_config.py of
# nvidia/Llama-3_3-Nemotron-Super-49B-v1; Megatron-Core d98e8a64 heterogeneous_config.py reads the same).

_BLOCKS_OF_LAYERS = "block_configs"
_FFN_MULTIPLE = 256
_READ_IN_BLOCKS = {"attention": ("n_heads_in_group", "no_op"), "ffn": ("ffn_mult", "no_op")}
_OF_SINKS = ("unshifted_sink", "use_prefill_window_in_sink_attention")  # of sinks, which must be none


def nemotron_nas_config(config: dict[str, object]) -> dict[str, object]:
    """Return the config with the largest of its layers' sizes, which its class leaves unset.

    Raises:
        InvalidProblemError: ``block_configs`` is not a list of as many layers, or a layer is garbled.
        UnsupportedModelError: a layer that the plan cannot express.
    """
    widths, heads = _block_sizes(FieldReader(config, "/model"))
    return {
        **config,
        "intermediate_size": max(widths, default=1),
        "num_key_value_heads": max(heads, default=1),
    }


def unlike_layers(reader: FieldReader, _known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sizes of each layer, where they differ."""
    widths, heads = _block_sizes(reader)
    if len({*zip(widths, heads, strict=True)}) == 1 and widths[0] and heads[0]:
        return {}
    return {"layer_ffn_sizes": widths, "layer_kv_heads": heads}


def _block_sizes(reader: FieldReader) -> tuple[tuple[int, ...], tuple[int, ...]]:
    layers, listed = reader.integer("num_hidden_layers", high=MAX_LAYERS), reader.value(_BLOCKS_OF_LAYERS)
    hidden = reader.integer("hidden_size", high=2**20)
    attention_heads = reader.integer("num_attention_heads", high=2**16)
    if not isinstance(listed, list) or len(listed) != layers:
        reader.fault(_BLOCKS_OF_LAYERS, f"must be a list of {layers} layers, as num_hidden_layers states")
        reader.finish()
    widths, heads = list[int](), list[int]()
    for number, layer in enumerate(listed if isinstance(listed, list) else []):
        pointer = f"{reader.pointer}/{_BLOCKS_OF_LAYERS}/{number}"
        one = FieldReader(layer, pointer, reader.faults)
        attention, ffn = (
            FieldReader(one.value(part), f"{pointer}/{part}", reader.faults) for part in _READ_IN_BLOCKS
        )
        reader.finish()
        for part, inner in zip(_READ_IN_BLOCKS, (attention, ffn), strict=True):
            known = (*_READ_IN_BLOCKS[part], *_OF_SINKS)
            for key in inner.names():
                if key not in known and inner.value(key) not in (None, False):
                    raise UnsupportedModelError.field(
                        f"{_BLOCKS_OF_LAYERS}[{number}].{part}.{key[:40]}",
                        "not supported. Supported: null, false",
                    )
        widths.append(0 if ffn.flag("no_op", default=False) else _width_of(ffn, hidden))
        group = 0
        if not attention.flag("no_op", default=False):
            group = attention.integer("n_heads_in_group", high=attention_heads)
            if attention_heads % group:
                attention.fault(
                    "n_heads_in_group", f"{group} does not divide num_attention_heads = {attention_heads}"
                )
        heads.append(attention_heads // group if group else 0)
        reader.finish()
    return tuple(widths), tuple(heads)


def _width_of(ffn: FieldReader, hidden: int) -> int:
    """Return an MLP's width: two thirds of so many hidden sizes, up to a whole multiple."""
    width = int(2 * ffn.number("ffn_mult", low=1e-3, high=1e3) * hidden / 3)
    return -(-width // _FFN_MULTIPLE) * _FFN_MULTIPLE
