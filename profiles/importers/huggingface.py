"""Reads the architecture of a model from a Hugging Face ``config.json``.

Field names and defaults are those of the ``transformers`` configuration classes. Every key is known, or
harmless, or refused as ``unsupported: <key>``; a missing or garbled field is named with its pointer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from meshwright.profiles.documents import FILE, read_json
from meshwright.profiles.errors import InvalidProblemError, UnsupportedModelError
from meshwright.profiles.importers.huggingface_families import (
    FAMILIES,
    FIXED,
    HARMLESS,
    REFUSED_TYPES,
    Family,
    refuse_unsupported,
)
from meshwright.profiles.limits import MLA_LIMITS, MODEL_LIMITS, MOE_LIMITS, ROTARY_SCALING_LIMITS
from meshwright.profiles.model import Activation, MlaSpec, ModelSpec, MoeSpec, RotaryScaling
from meshwright.profiles.reading import MAX_TEXT, FieldReader

# --------------------------------------------------------------------------------------------------
# Which layers have experts and which attend locally, by each Hugging Face family's own rule.
#
# ModelSpec knows two patterns: experts in every n-th layer after some dense ones, and every n-th layer
# global. What fits neither is refused.


_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_ALTERNATING = {
    "gemma2": 2,
    "gpt_oss": 2,
    "gemma3_text": 6,
    "olmo3": 4,
    "cohere2": 4,
}  # every n-th layer is global
_ALWAYS_LOCAL = ("mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral")
_SWITCHED = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")  # use_sliding_window, max_window_layers


def moe_placement(reader: FieldReader, num_layers: int) -> tuple[int, int] | None:
    """Leading dense layers and frequency of the MoE layers after them; None: no MoE layer.

    Raises:
        UnsupportedModelError: the MoE layers are not evenly spaced.
    """
    step = reader.integer("decoder_sparse_step", default=1, high=10_000)
    every = reader.value("moe_layer_freq")
    frequency = 1 if isinstance(every, list) else reader.integer("moe_layer_freq", default=1, high=10_000)
    leading = reader.integer("first_k_dense_replace", low=0, default=0, high=10_000)
    dense = _dense_layers(reader)
    listed = every if isinstance(every, list) else [1] * num_layers
    moe = [
        layer
        for layer in range(num_layers)
        if (layer + 1) % step == 0 and layer >= leading and layer % frequency == 0
        if layer not in dense and layer < len(listed) and listed[layer]
    ]
    if not moe:
        return None
    spacing = moe[1] - moe[0] if len(moe) > 1 else num_layers
    if moe != list(range(moe[0], num_layers, spacing)):
        raise UnsupportedModelError.field(
            "mlp_only_layers" if dense else "moe_layer_freq", "MoE layers that are not evenly spaced"
        )
    return moe[0], spacing


def _dense_layers(reader: FieldReader) -> frozenset[int]:
    layers = reader.value("mlp_only_layers") or []
    if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
        reader.fault("mlp_only_layers", "must be a list of layer numbers")
        return frozenset()
    return frozenset(layers)


def sliding_window(reader: FieldReader, model_type: str, num_layers: int) -> tuple[int | None, int]:
    """The window of the local layers and the distance of the global ones (1: all are local).

    Raises:
        UnsupportedModelError: the global layers are not evenly spaced, or a layer is neither.
    """
    window = reader.optional_integer("sliding_window")
    local = _local_layers(reader, model_type, num_layers)
    if window is None or not any(local):
        return None, 1
    if all(local):
        return window, 1
    every = local.index(False) + 1
    if local != [(layer + 1) % every != 0 for layer in range(num_layers)]:
        field = "layer_types" if reader.has("layer_types") else "max_window_layers"
        raise UnsupportedModelError.field(field, "global layers that are not evenly spaced")
    return window, every


def _local_layers(reader: FieldReader, model_type: str, num_layers: int) -> list[bool]:
    """Whether each layer attends only within the window."""
    kinds = reader.value("layer_types")
    reader.value("_sliding_window_pattern")
    reader.value("sliding_window_pattern")
    reader.value("use_sliding_window")
    if kinds is not None:
        return _stated_layers(reader, kinds, num_layers)
    pattern = reader.first(("sliding_window_pattern", "_sliding_window_pattern"))
    reader.value("sliding_window_pattern")
    every = reader.integer(pattern, default=_ALTERNATING.get(model_type, 0), low=0, high=10_000)
    if every:
        return [(layer + 1) % every != 0 for layer in range(num_layers)]
    switched = reader.flag("use_sliding_window", default=False)
    if model_type in _SWITCHED or reader.has("use_sliding_window"):
        if not switched:
            return [False] * num_layers
        first = reader.integer("max_window_layers", low=0, default=0)
        return [layer >= first for layer in range(num_layers)]
    return [model_type in _ALWAYS_LOCAL] * num_layers


def _stated_layers(reader: FieldReader, kinds: object, num_layers: int) -> list[bool]:
    if not isinstance(kinds, list) or len(kinds) < num_layers:
        reader.fault("layer_types", f"must be a list of {num_layers} kinds of layers")
        return [False] * num_layers
    if not all(kind in (_GLOBAL, _LOCAL) for kind in kinds):
        raise UnsupportedModelError.field("layer_types", f"only {_GLOBAL} and {_LOCAL} are understood")
    return [kind == _LOCAL for kind in kinds[:num_layers]]


def no_rotary_every(reader: FieldReader, num_layers: int) -> int:
    """Every n-th layer has no positions; 0: all have (SmolLM3, ``no_rope_layers``: 1 where there are).

    Raises:
        UnsupportedModelError: the layers without positions are not evenly spaced.
    """
    every = reader.integer("no_rope_layer_interval", low=0, default=0, high=10_000)
    stated = reader.value("no_rope_layers")
    if isinstance(stated, list) and stated:
        layers = [index + 1 for index, rotates in enumerate(stated) if not rotates]
        every = layers[0] if layers else 0
        if layers != [layer for layer in range(1, num_layers + 1) if every and layer % every == 0]:
            raise UnsupportedModelError.field("no_rope_layers", "layers that are not evenly spaced")
    return every


_ROTARY_BASE = 10_000  # of the configuration classes that have no other default
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu", "swish": "silu", "relu": "relu", "relu2": "squared_relu", "quick_gelu": "quick_gelu",
    # approximations of one function that differ by less than bf16 does
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh"), "gelu"),
}  # fmt: skip
_SCALINGS = {"llama3": "llama3", "yarn": "yarn", "linear": "linear", "dynamic": "dynamic",
             "longrope": "longrope", "su": "longrope"}  # fmt: skip


def looks_like_config(raw: Mapping[str, object]) -> bool:
    """Whether a mapping is a Hugging Face config rather than a shape in our own names."""
    return bool({"model_type", "architectures", "transformers_version", "num_hidden_layers"} & set(raw))


def load_config(path: Path | str) -> ModelSpec:
    """The model of a ``config.json``, or of a folder that holds one; named after the folder.

    Raises:
        InvalidProblemError: the file is missing, too large, or not a JSON object; or as
            ``model_from_config``.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        with file.open("rb") as opened:
            raw = read_json(opened.read(FILE.max_bytes + 1))
    except OSError as error:
        raise InvalidProblemError.of("/model", f"no readable {file.name[:MAX_TEXT]} there") from error
    except InvalidProblemError as error:
        first = error.errors[0]
        message = f"{file.name[:MAX_TEXT]}{first.pointer}: {first.message}"
        raise InvalidProblemError.of("/model", message, allowed=first.allowed) from error
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return model_from_config(raw, name=name or "custom")


def model_from_config(config: object, *, name: str) -> ModelSpec:
    """The architecture that a Hugging Face config describes.

    Raises:
        UnsupportedModelError: a model type that is not planned, a feature that cannot be expressed, or a
            key that nothing here reads.
        InvalidProblemError: a field is missing, garbled or out of range.
    """
    reader = FieldReader(config, "/model")
    model_type = reader.text("model_type")
    reader.finish()
    defaults = FAMILIES[model_type].defaults if model_type in FAMILIES else {}
    reader = FieldReader({**defaults, **cast("Mapping[str, object]", config)}, "/model")
    reader.text("model_type")
    refuse_unsupported(reader)
    family = _family(model_type)
    num_layers, hidden_size = (_size(reader, family, key) for key in ("num_layers", "hidden_size"))
    heads, kv_heads = _heads(reader, family)
    mla = _mla(reader)
    head_dim = _head_dim(reader, hidden_size, heads, mla)
    window, every = sliding_window(reader, model_type, num_layers)
    facts: dict[str, Any] = {
        **family.facts,
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "ffn_hidden_size": _ffn_hidden_size(reader, family, hidden_size),
        "num_attention_heads": heads,
        "num_kv_heads": heads if mla else kv_heads,
        "head_dim": head_dim,
        "vocab_size": _integer(reader, "vocab_size"),
        "tied_embeddings": reader.flag("tie_word_embeddings", default=family.tied_embeddings),
        "moe": _moe(reader, family, num_layers),
        "mla": mla,
        "num_mtp_layers": _prediction_layers(reader),
        "sliding_window": window,
        "sliding_window_every": every,
        "max_position_embeddings": reader.optional_integer(
            reader.first(family.keys["max_position_embeddings"])
        ),
    }
    facts |= _positions(reader, family, model_type, head_dim)
    facts |= _stated(reader, family, hidden_size, head_dim)
    facts["no_rotary_every"] = no_rotary_every(reader, num_layers) or facts.get("no_rotary_every", 0)
    if model_type == "falcon":
        facts["shared_norm"] = _falcon_shares_a_norm(reader, facts)
    reader.finish()
    _refuse_unread(reader)
    return ModelSpec(name=name[:MAX_TEXT], source=f"config.json, model_type {model_type}", **facts)


def _family(model_type: str) -> Family:
    """How a model type is read.

    Raises:
        UnsupportedModelError: the type is not planned.
    """
    family = FAMILIES.get(model_type)
    if family is not None:
        return family
    why = REFUSED_TYPES.get(model_type)
    if why is None:
        why = (
            "an unknown type. If its layers are those of a planned type, set model_type to that one "
            f"(llama, qwen3, …); planned: {', '.join(sorted(FAMILIES))}"
        )
    raise UnsupportedModelError.field("model_type", f'"{model_type[:40]}" is {why}')


def _heads(reader: FieldReader, family: Family) -> tuple[int, int]:
    """Attention heads, and kv heads (as many, where the config names none)."""
    heads = _size(reader, family, "num_attention_heads")
    stated = reader.first(("num_key_value_heads", "num_kv_heads"))
    reader.value("num_kv_heads")
    kv_heads = reader.integer(stated, high=2**16, default=heads)
    shares = family.one_kv_head_flag and reader.flag(family.one_kv_head_flag, default=False)
    if shares and not (reader.has("new_decoder_architecture") and reader.value("new_decoder_architecture")):
        kv_heads = 1
    return heads, kv_heads


def _falcon_shares_a_norm(reader: FieldReader, facts: Mapping[str, Any]) -> bool:
    """Falcon's attention and MLP share a norm, but for the newer of its architectures (modeling_falcon)."""
    two = reader.flag("new_decoder_architecture", default=False)
    if two and reader.value("num_ln_in_parallel_attn") == 1:
        two = False
    return bool(facts.get("parallel_residual")) and not two


def _prediction_layers(reader: FieldReader) -> int:
    """Multi-token-prediction layers, under either of their names."""
    if reader.flag("use_mtp", default=True):
        for name in ("num_nextn_predict_layers", "num_mtp_modules"):
            if reader.has(name):
                return _integer(reader, name, limits="num_mtp_layers", default=0)
    reader.value("num_mtp_modules")
    return 0


def _positions(reader: FieldReader, family: Family, model_type: str, head_dim: int) -> dict[str, Any]:
    """Base, share and scaling of rotary positions, in the names of transformers 4 or 5."""
    rope = reader.child("rope_parameters") or FieldReader({}, "/model/rope_parameters")
    local = None
    if rope.has("full_attention"):
        rope, local = rope.child("full_attention") or rope, rope.child("sliding_attention")
    base = _rotary_base(rope, "rope_theta")
    outer = _rotary_base(reader, reader.first(("rope_theta", "rotary_emb_base")))
    base = base or outer
    local_base = _rotary_base(local, "rope_theta") if local else None
    scaling = _rotary_scaling(reader, rope)
    if model_type == "olmo3" and scaling:
        local_base = local_base or base  # Olmo3Model: layers with a window are not scaled
    fraction = _rotary_fraction(reader, rope, head_dim)
    for one in (rope, local):
        _refuse_unread(one, ("rope_type", "type"))
    facts = {
        "rotary_base": base or _ROTARY_BASE,
        "rotary_local_base": _rotary_base(reader, "rope_local_base_freq") or local_base,
        "rotary_fraction": fraction,
        "rotary_scaling": scaling,
    }
    rotates = not ({"learned_position_embeddings", "alibi_positions"} & set(family.facts))
    return facts if rotates else {}


def _rotary_base(reader: FieldReader, name: str) -> int | None:
    """The base of rotary positions, where it is stated."""
    return round(reader.number(name, low=1.0, high=1e12)) if reader.has(name) else None


def _rotary_fraction(reader: FieldReader, rope: FieldReader, head_dim: int) -> float:
    """The share of a head that is rotated: stated as such, or as a number of elements."""
    if reader.has("rotary_dim"):
        return min(_integer(reader, "rotary_dim", limits="head_dim") / head_dim, 1.0)
    holder = rope if rope.has("partial_rotary_factor") else reader
    name = holder.first(("rotary_pct", "partial_rotary_factor"))
    reader.value("partial_rotary_factor")
    return holder.number(name, low=1e-3, high=1.0, default=1.0)


def _rotary_scaling(reader: FieldReader, rope: FieldReader) -> RotaryScaling | None:
    """How frequencies are stretched: ``rope_scaling``, or ``rope_parameters`` of transformers 5.

    Raises:
        UnsupportedModelError: a kind that is not planned, or a key of it that nothing reads.
    """
    whole = reader.optional_integer("original_max_position_embeddings")
    scaling = reader.child("rope_scaling") or rope
    kind = scaling.value(scaling.first(("rope_type", "type")))
    if kind in (None, "default"):
        return None
    if kind not in _SCALINGS:
        raise UnsupportedModelError.field("rope_scaling", f"rotary scaling of type {str(kind)[:40]}")
    original = scaling.optional_integer("original_max_position_embeddings") or whole
    positions = reader.optional_integer("max_position_embeddings") or 1
    values: dict[str, Any] = {"kind": _SCALINGS[str(kind)], "original_max_position_embeddings": original}
    values["factor"] = scaling.number(
        "factor", low=1e-3, high=1e6, default=positions / (original or positions)
    )
    for name, (low, high) in ROTARY_SCALING_LIMITS.items():
        if name not in values and scaling.has(name):
            values[name] = scaling.number(name, low=low, high=high)
    # They follow from the others, or say how a bound is rounded.
    known = (
        "attention_factor",
        "long_factor",
        "short_factor",
        "truncate",
        "rope_type",
        "type",
        "rope_theta",
    )
    _refuse_unread(scaling, (*known, "partial_rotary_factor", "max_position_embeddings"))
    return None if scaling.faults else RotaryScaling(**values)


def _stated(reader: FieldReader, family: Family, hidden_size: int, head_dim: int) -> dict[str, Any]:
    """Facts that single keys state.

    Raises:
        UnsupportedModelError: a key has a value that its model type does not have.
    """
    facts: dict[str, Any] = {}
    for key, (default, wanted) in family.flags.items():
        if reader.flag(key, default=default):
            facts |= wanted
    for key, (fact, follows) in family.numbers.items():
        if reader.value(key) is not None:
            facts[fact] = follows(reader.number(key, low=1e-9, high=1e9))
    if facts.get("attention_scale") == head_dim**-0.5:
        del facts["attention_scale"]
    if family.scales_embeddings:
        facts["embedding_scale"] = hidden_size**0.5
    eps = reader.first(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"))
    if reader.has(eps):
        facts["norm_epsilon"] = reader.number(eps, low=0.0, high=1.0)
    reader.value("norm_epsilon")
    activation = _activation(reader, family)
    if activation:
        facts["activation"] = activation
    _refuse_other_values(reader, family)
    return facts


def _activation(reader: FieldReader, family: Family) -> Activation | None:
    """The MLP's activation; None where it is the usual one.

    Raises:
        UnsupportedModelError: it is not planned.
    """
    names = ("hidden_activation", "hidden_act", "activation_function", "activation")
    stated = [reader.value(name) for name in names]
    if family.has_own_activation:
        return None
    word = next((value for value in stated if value is not None), family.activation)
    found = _ACTIVATIONS.get(word) if isinstance(word, str) else None
    if found is None:
        why = f"the activation {str(word)[:40]}; planned: {', '.join(_ACTIVATIONS)}"
        raise UnsupportedModelError.field(reader.first(names[:3]), why)
    gated = bool(family.facts.get("gated_mlp", True))
    return None if found == ("silu" if gated else "gelu") else found


def _refuse_other_values(reader: FieldReader, family: Family) -> None:
    """Keys of which a model type has one value only.

    Raises:
        UnsupportedModelError: names a key with another value.
    """
    own = {key: (value, "this model type is planned with it only") for key, value in family.fixed.items()}
    unread = {key: FIXED[key] for key in reader.unread() if key in FIXED}
    for key, (value, why) in {**unread, **own}.items():
        if reader.has(key) and reader.value(key) != value:
            found = str(reader.value(key))[:40]
            raise UnsupportedModelError.field(key, f"{found}: {why}; planned: {str(value).lower()}")


def _refuse_unread(reader: FieldReader | None, known: tuple[str, ...] = ()) -> None:
    """Every key with a value is one that was read, or a harmless one.

    Raises:
        UnsupportedModelError: names the first other key.
    """
    for key in reader.unread() if reader else ():
        if key not in HARMLESS and key not in known:
            why = "no code here reads this key; remove it if it changes nothing of the model"
            raise UnsupportedModelError.field(key[:60], why)


def _size(reader: FieldReader, family: Family, field: str) -> int:
    for alias in family.keys[field]:
        reader.value(alias)
    return _integer(reader, reader.first(family.keys[field]), limits=field)


def _integer(
    reader: FieldReader, name: str, *, limits: str | None = None, default: int | None = None
) -> int:
    """A whole number within the limits of a field of ours."""
    low, high = MODEL_LIMITS[limits or name]
    return reader.integer(name, low=int(low), high=int(high), default=default)


def _ffn_hidden_size(reader: FieldReader, family: Family, hidden_size: int) -> int:
    """The MLP's width; GPT-2 and BLOOM default to four times the hidden size."""
    default = 4 * hidden_size if family.ffn_is_four_hidden else None
    stated = reader.first(family.keys["ffn_hidden_size"])
    return _integer(reader, stated, limits="ffn_hidden_size", default=default)


def _head_dim(reader: FieldReader, hidden_size: int, heads: int, mla: MlaSpec | None) -> int:
    """The query/key size of a head: stated, latent attention's sum, or hidden_size / heads."""
    if mla is not None:
        reader.value("head_dim")
        return mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if not reader.has("head_dim") and hidden_size % heads:
        reader.fault("num_attention_heads", f"{heads} does not divide hidden_size = {hidden_size}")
    return _integer(reader, "head_dim", default=max(1, hidden_size // heads))


def _mla(reader: FieldReader) -> MlaSpec | None:
    """Multi-head latent attention, where ``kv_lora_rank`` says so."""
    if not reader.has("kv_lora_rank"):
        return None
    sizes: dict[str, Any] = {
        field: reader.integer(
            field, low=int(low), high=int(high), default=0 if field == "q_lora_rank" else None
        )
        for field, (low, high) in MLA_LIMITS.items()
    }
    reader.finish()
    return MlaSpec(**sizes)


def _moe(reader: FieldReader, family: Family, num_layers: int) -> MoeSpec | None:
    """Experts, where the config names them and at least one layer has them."""
    count = reader.first(("num_local_experts", "num_experts", "n_routed_experts"))
    if not reader.has(count):
        return None
    num_experts = reader.integer(count, low=0, high=int(MOE_LIMITS["num_experts"][1]))
    placement = moe_placement(reader, num_layers)
    if num_experts <= 1 or placement is None:
        return None
    width = reader.first(("moe_intermediate_size", *family.keys["ffn_hidden_size"]))
    ffn_hidden_size = _integer(reader, width, limits="ffn_hidden_size")
    num_shared, shared_width = _shared_experts(reader, ffn_hidden_size)
    top_k = reader.integer(reader.first(("num_experts_per_tok", "experts_per_token")), high=num_experts)
    router: dict[str, Any] = {**family.router, **_router(reader)}
    if not num_shared:
        router.pop("shared_expert_gate", None)
    reader.finish()
    return MoeSpec(
        num_experts=num_experts,
        top_k=top_k,
        ffn_hidden_size=ffn_hidden_size,
        num_shared_experts=num_shared,
        shared_ffn_hidden_size=shared_width,
        num_dense_layers=placement[0],
        frequency=placement[1],
        **router,
    )


def _router(reader: FieldReader) -> dict[str, Any]:
    """What single keys say about the choice of experts."""
    groups = reader.integer("n_group", low=0, default=0, high=65_536)
    chosen = reader.integer("topk_group", low=0, default=0, high=65_536)
    method = reader.value("topk_method")
    grouped = chosen < groups and method != "greedy"
    return {
        "normalized_top_k": reader.flag("norm_topk_prob", default=True),
        "router_groups": groups if grouped else 0,
        "router_top_groups": chosen if grouped else 0,
        "router_scaling": reader.number("routed_scaling_factor", low=1e-6, high=1e6, default=1.0),
    }


def _shared_experts(reader: FieldReader, expert_width: int) -> tuple[int, int]:
    """Number of shared experts and their width together: stated (Qwen) or counted (DeepSeek)."""
    width = reader.integer("shared_expert_intermediate_size", low=0, default=0, high=2**24)
    if width:
        return 1, width
    counted = reader.first(("n_shared_experts", "num_shared_experts"))
    count = reader.integer(counted, low=0, default=0, high=1024)
    return count, count * expert_width
