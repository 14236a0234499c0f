"""Reads the architecture of a model from a Hugging Face ``config.json``.

Field names and defaults are those of the ``transformers`` configuration classes. Every key is known, or
harmless, or refused as ``unsupported: <key>``; a missing or garbled field is named with its pointer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log
from typing import Any, cast

from meshwright.profiles.errors import REQUIRED, InvalidProblemError, UnsupportedModelError
from meshwright.profiles.importers.diffusers import CLASS, model_from_diffusers
from meshwright.profiles.importers.huggingface_families import families
from meshwright.profiles.importers.huggingface_keys import (
    ModelTypeKeys,
    completed,
    config_keys,
    expert_adapters,
    harmless_reason,
    nearest_type,
    of_another_kind,
    refuse_type,
    refuse_unsupported,
    repeats,
    type_of,
    with_own_names,
)
from meshwright.profiles.importers.huggingface_layers import (
    attention_layers,
    layers_that_reuse,
    layers_without_rotary,
    moe_placement,
)
from meshwright.profiles.importers.huggingface_mixers import OF_MAMBA_SSM, mamba_ssm_config
from meshwright.profiles.importers.huggingface_towers import model_from_whole, whole_types
from meshwright.profiles.model import Activation, ModelSpec
from meshwright.profiles.model_parts import (
    MODEL_LIMITS,
    IndexerSpec,
    MlaSpec,
    MoeSpec,
    RotaryScaling,
    spaced,
)
from meshwright.profiles.reading import MAX_TEXT, FieldReader
from meshwright.profiles.stored import stored_in_config

_ROTARY_BASE = 10_000  # of the configuration classes that have no other default
# Keys of rotary scaling that follow from the others, set how a bound is rounded, or are read elsewhere.
_OF_SCALING = (
    "long_factor", "short_factor", "rope_type", "type", "rope_theta",
    "partial_rotary_factor", "max_position_embeddings", "llama_4_scaling_beta", "long_mscale",
    "short_mscale", "alpha", "attn_factor", "extrapolation_factor", "finetuned",
    "mrope_section", "mrope_interleaved",  # axes of positions, which of text are all alike
)  # fmt: skip
_ROUNDING = 1e-4  # of a factor that is written down


_ADAPTER = "peft_type"  # of an adapter_config.json
# Names in other files of a model's folder, which have no sizes, and what such a file is.
_OTHER_FILES = {
    "added_tokens_decoder": "a tokenizer's file", "tokenizer_class": "a tokenizer's file",
    "weight_map": "an index of weights", "image_processor_type": "an image processor's file",
    "do_sample": "a file of generation settings", "log_history": "a trainer's state",
    "n_layers": "Meta's params.json",
}  # fmt: skip
_OF_A_CONFIG = frozenset(
    {"model_type", "architectures", "num_hidden_layers", "hidden_size", CLASS, OF_MAMBA_SSM}
)


def looks_like_config(raw: Mapping[str, object]) -> bool:
    """Return whether a mapping is a Hugging Face config rather than a shape in our own names."""
    names = {"model_type", "architectures", "transformers_version", "num_hidden_layers", CLASS, _ADAPTER,
             OF_MAMBA_SSM}  # fmt: skip
    return bool(names & set(raw)) or bool(_other_file(raw))


def _other_file(raw: Mapping[str, object]) -> str:
    """Return what a file of a model's folder is that has no sizes; empty: it may have some."""
    if _OF_A_CONFIG & set(raw):
        return ""
    return next((what for name, what in _OTHER_FILES.items() if name in raw), "")


def model_from_config(config: object, *, name: str) -> ModelSpec:
    """Return the architecture that a Hugging Face config describes, of transformers or of diffusers.

    Raises:
        UnsupportedModelError: a model type that is not planned, a feature that cannot be expressed, or a
            key that nothing here reads.
        InvalidProblemError: a field is missing, garbled or out of range.
    """
    if isinstance(config, Mapping) and CLASS in config:
        return model_from_diffusers(cast("Mapping[str, object]", config), name=name)
    if isinstance(config, Mapping) and _ADAPTER in config and "model_type" not in config:
        base = str(config.get("base_model_name_or_path") or "its base model")
        allowed = f"{base}, with --lora-rank (workload.lora_rank)"
        raise InvalidProblemError.of("/model", "is an adapter, without a model's sizes", allowed=allowed)
    if isinstance(config, Mapping) and OF_MAMBA_SSM in config and "model_type" not in config:
        config = mamba_ssm_config(cast("Mapping[str, object]", config))
    if isinstance(config, Mapping):
        _require_type(config)
    model = _model_of_transformers(config, name=name)
    stored = stored_in_config(cast("Mapping[str, object]", config))
    return replace(model, stored_as=stored) if stored else model


def _require_type(config: Mapping[str, object]) -> None:
    if what := _other_file(config):
        allowed = "the model's config.json, its name or its Hugging Face id"
        raise InvalidProblemError.of("/model", f"is {what}, without a model's sizes", allowed=allowed)
    if "model_type" not in config:
        raise InvalidProblemError.of(
            "/model/model_type", REQUIRED, allowed="a supported type", nearest=_type_of_class(config)
        )


def _type_of_class(config: Mapping[str, object]) -> str | None:
    """Return the type that a class is named after, as LlamaForCausalLM is; None: there is none."""
    classes = config.get("architectures")
    named = str(classes[0]).partition("For")[0].lower() if isinstance(classes, list) and classes else ""
    return next((one for one in families() if one.replace("_", "") == named), None)


def _model_of_transformers(config: object, *, name: str) -> ModelSpec:
    reader = FieldReader(config, "/model")
    model_type = type_of(reader)
    reader.finish()
    if (towered := whole_types().get(model_type)) is not None and reader.has(towered.part):
        return model_from_whole(
            cast("Mapping[str, object]", config), towered, lambda text: model_from_config(text, name=name)
        )
    if model_type not in families():
        inside = reader.has("text_config") or f"{model_type}_text" in families()
        if model_type not in config_keys().refused_types or (inside and not of_another_kind(model_type)):
            refuse_unsupported(reader, nearest=nearest_type(reader, model_type, tuple(families())))
        refuse_type(reader, model_type, tuple(families()))
    family = with_own_names(model_type, families()[model_type])
    whole, added = completed(model_type, family, cast("Mapping[str, object]", config))
    reader = FieldReader(whole, "/model")
    reader.text("model_type")
    refuse_unsupported(reader, planned=family.plans)
    num_layers, hidden_size = (_size(reader, family, key) for key in ("num_layers", "hidden_size"))
    heads, kv_heads = _heads(reader, family)
    mla = _mla(reader, family, max(1, hidden_size // heads))
    head_dim = _head_dim(reader, family, hidden_size, heads, mla)
    facts: dict[str, Any] = {
        **family.facts,
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "ffn_hidden_size": _ffn_hidden_size(reader, family, hidden_size),
        "num_attention_heads": heads,
        "num_kv_heads": heads if mla else kv_heads,
        "head_dim": head_dim,
        "vocab_size": _integer(reader, "vocab_size"),
        "tied_embeddings": _tied(reader, family),
        "moe": _moe(reader, family, num_layers, expert_adapters(model_type)),
        "mla": mla,
        "indexer": _indexer(reader, family, num_layers) if mla and "index_topk" in family.plans else None,
        "embedding_size": _embedding_size(reader, hidden_size),
        "num_mtp_layers": _prediction_layers(reader),
        "max_position_embeddings": reader.optional_integer(family.keys["max_position_embeddings"]),
    }
    if family.keys["max_position_embeddings"] in added and not facts.get("learned_position_embeddings"):
        facts["max_position_embeddings"] = None  # not stated by any config, and no sequence is as long
    if reader.has("ffn_config.hidden_size") and reader.value("ffn_config.hidden_size") != hidden_size:
        raise UnsupportedModelError.field("ffn_config.hidden_size", f"a value other than {hidden_size}")
    facts |= _positions(reader, model_type, facts, head_dim)
    facts |= _mixed_layers(reader, family, facts) if family.mixer else _layers(reader, family, num_layers)
    facts |= _stated(reader, family, facts, head_dim)
    if facts.get("alibi_positions"):  # also if a switch sets it
        facts = {key: value for key, value in facts.items() if not key.startswith("rotary_")}
    if family.latent_bias_flag and reader.flag(family.latent_bias_flag, default=False):
        facts |= {"attention_output_bias": True}
    if family.follows:
        facts |= family.follows(reader, facts)
    reader.finish()
    source = f"config.json, model_type {model_type}" + _assumed(family, whole, added)
    model = ModelSpec(name=name[:MAX_TEXT], source=source[:MAX_TEXT], **facts)
    if family.local_attention:
        model = replace(model, **family.local_attention(reader, model))
    model = _scored(reader, model)
    reader.finish()
    again = [key for key in reader.unread() if repeats(key, {**whole, "head_dim": head_dim})]
    _refuse_unread(reader, (*added, *family.unused, *again))
    return model


_OF_TOKENS, _OF_SEQUENCES = "ForTokenClassification", "ForSequenceClassification"
_LABELS = 2  # of transformers' configurations that state none


def _scored(reader: FieldReader, model: ModelSpec) -> ModelSpec:
    """Return the model with the labels of its class: rewards, critics and classifiers have no logits."""
    stated, names = reader.value("architectures"), reader.value("id2label")
    built = str(stated[0]) if isinstance(stated, list) and stated else ""
    if not built.endswith((_OF_TOKENS, _OF_SEQUENCES)):
        return model
    low, high = MODEL_LIMITS["num_labels"]
    named = len(names) if isinstance(names, Mapping) and names else _LABELS
    labels = reader.integer("num_labels", low=max(1, int(low)), high=int(high), default=named)
    return model.scored(labels, bias=built.endswith(_OF_TOKENS))


def _tied(reader: FieldReader, family: ModelTypeKeys) -> bool:
    """Return whether the head is tied; the config of a model inside a model may leave it out."""
    if family.head_of_whole and not reader.has("tie_word_embeddings"):
        reader.fault("tie_word_embeddings", "is required: copy it from the config of the whole model")
    return reader.flag("tie_word_embeddings", default=False)


def _assumed(family: ModelTypeKeys, whole: Mapping[str, object], added: frozenset[str]) -> str:
    sizes = [*family.keys.values(), "vocab_size", "head_dim", "num_local_experts", "num_experts_per_tok"]
    words = [f"{key} {whole[key]}" for key in dict.fromkeys(sizes) if key in added]
    return f"; its class's own: {', '.join(words)}" if words else ""


def _heads(reader: FieldReader, family: ModelTypeKeys) -> tuple[int, int]:
    """Return attention heads, and kv heads (as many, where the config names none)."""
    heads = _size(reader, family, "num_attention_heads")
    kv_heads = reader.integer(family.keys["num_kv_heads"], high=2**16, default=heads)
    shares = family.one_kv_head_flag and reader.flag(family.one_kv_head_flag, default=False)
    if shares and not (reader.has("new_decoder_architecture") and reader.value("new_decoder_architecture")):
        kv_heads = 1
    return heads, kv_heads


def _layers(reader: FieldReader, family: ModelTypeKeys, num_layers: int) -> dict[str, Any]:
    unrotated, rope = layers_without_rotary(reader, num_layers), reader.value("rope_parameters")
    facts = attention_layers(reader, family.global_layers, family.global_every, num_layers, unrotated)
    none_on_global = family.null_is_no_rotary and isinstance(rope, Mapping)
    none_on_global = none_on_global and cast("Mapping[str, object]", rope).get("full_attention", 0) is None
    if none_on_global and not facts:
        unrotated = list(range(num_layers))
    elif none_on_global or (family.rotary_on_local_layers and facts):
        every, listed = facts.get("sliding_window_every", 1), facts.get("global_layers", ())
        unrotated = [layer for layer in range(num_layers) if every > 1 and (layer + 1) % every == 0]
        unrotated = unrotated or list(listed)
    distance, listed = spaced(unrotated, num_layers)
    return facts | {"no_rotary_every": distance, "no_rotary_layers": listed}


def _mixed_layers(reader: FieldReader, family: ModelTypeKeys, known: Mapping[str, Any]) -> dict[str, Any]:
    num_layers, hidden_size = known["num_layers"], known["hidden_size"]
    mixer = family.mixer(reader, num_layers, hidden_size) if family.mixer else None
    named = reader.value("position_embedding_type") if family.null_is_no_rotary else "rope"
    return {"mixer": mixer, "no_rotary_every": int(named is None)}


def _prediction_layers(reader: FieldReader) -> int:
    if reader.flag("use_mtp", default=True):
        for name in ("num_nextn_predict_layers", "num_mtp_modules"):
            if reader.has(name):
                return _integer(reader, name, limits="num_mtp_layers", default=0)
    reader.value("num_mtp_modules")
    return 0


def _positions(
    reader: FieldReader, model_type: str, known: Mapping[str, Any], head_dim: int
) -> dict[str, Any]:
    """Return base, share and scaling of rotary positions, in the names of transformers 4 or 5."""
    rope = reader.child("rope_parameters") or FieldReader({}, "/model/rope_parameters")
    local = None
    if rope.has("full_attention") or rope.has("sliding_attention"):
        whole, local = rope.child("full_attention"), rope.child("sliding_attention")
        if whole and known.get("position_scaled_queries"):  # Beam scales those without positions alone
            raise UnsupportedModelError.field("rope_parameters.full_attention", "global layers have none")
        rope, local = (whole, local) if whole else (local or rope, None)
    base = _rotary_base(rope, "rope_theta")
    names = ("rotary_emb_base", "attn_config.rope_theta", "global_rope_theta", "rope_theta")
    outer = _rotary_base(reader, reader.first(names))
    reader.value("rope_theta")
    base = base or outer
    local_base = _rotary_base(local, "rope_theta") if local else None
    outer_local = _rotary_base(
        reader, reader.first(("local_rope_theta", "swa_rope_theta", "rope_local_base_freq"))
    )
    scaling = _rotary_scaling(reader, rope)
    if model_type == "olmo3" and scaling:
        local_base = local_base or base  # Olmo3Model: layers with a window are not scaled
    fraction = _rotary_fraction(reader, rope, head_dim)
    if known.get("mla"):  # with heads that have elements of their own that rotate
        fraction = 1.0
    local_fraction = _rotary_fraction(reader, local, head_dim) if local else fraction
    scaled = bool(rope.value("llama_4_scaling_beta"))  # Ministral 3
    for one in (rope, local):
        _refuse_unread(one, _OF_SCALING)
    facts = {
        "rotary_base": base or _ROTARY_BASE,
        "rotary_local_base": local_base or outer_local,
        "rotary_fraction": fraction,
        "rotary_local_fraction": None if local_fraction == fraction else local_fraction,
        "rotary_scaling": scaling,
        "position_scaled_queries": scaled or bool(known.get("position_scaled_queries")),
    }
    others = {"learned_position_embeddings", "alibi_positions", "sinusoidal_positions"}
    return {} if others & set(known) else facts


def _rotary_base(reader: FieldReader, name: str) -> int | None:
    return round(reader.number(name, low=1.0, high=1e12)) if reader.has(name) else None


def _rotary_fraction(reader: FieldReader, rope: FieldReader, head_dim: int) -> float:
    """Return the share of a head that is rotated: stated as such, or as a number of elements.

    Raises:
        UnsupportedModelError: both are stated, and contradict each other.
    """
    holder = rope if rope.has("partial_rotary_factor") else reader
    reader.value("partial_rotary_factor")
    if reader.has("rotary_dim"):
        share = min(_integer(reader, "rotary_dim", limits="head_dim") / head_dim, 1.0)
        stated = holder.number("partial_rotary_factor", low=1e-3, high=1.0, default=share)
        if round(stated * head_dim) != round(share * head_dim):
            raise UnsupportedModelError.field(
                "partial_rotary_factor",
                f"{stated:g}: rotary_dim states {share:g} of a head of {head_dim}. Leave one of them out",
            )
        return share
    name = holder.first(("rotary_pct", "partial_rotary_factor"))
    return holder.number(name, low=1e-3, high=1.0, default=1.0)


def _rotary_scaling(reader: FieldReader, rope: FieldReader) -> RotaryScaling | None:
    """Return how frequencies are stretched: ``rope_scaling``, or ``rope_parameters`` of transformers 5.

    Raises:
        UnsupportedModelError: a kind that is not planned, or a key of it that nothing reads.
    """
    whole = reader.optional_integer("original_max_position_embeddings")
    scaling = reader.child("rope_scaling") or rope
    kind = scaling.value(scaling.first(("rope_type", "type")))
    if kind in (None, "default", "mrope"):  # of which text has one axis (Qwen2.5-VL's class: the default)
        _refuse_unread(scaling, (*_OF_SCALING, *RotaryScaling.LIMITS))
        return None
    if str(kind) not in config_keys().rotary_scalings:
        raise UnsupportedModelError.field("rope_scaling", f"rotary scaling of type {str(kind)[:40]}")
    original = scaling.optional_integer("original_max_position_embeddings") or whole
    positions = reader.optional_integer("max_position_embeddings") or 1
    values: dict[str, Any] = {
        "kind": config_keys().rotary_scalings[str(kind)],
        "original_max_position_embeddings": original,
    }
    follows = positions / original if original and kind in ("yarn", "longrope", "su") else None
    follows = 1.0 if kind == "proportional" else follows
    values["factor"] = scaling.number("factor", low=1e-3, high=1e6, default=follows)
    for name, (low, high) in RotaryScaling.LIMITS.items():
        if name not in values and scaling.has(name):
            values[name] = scaling.number(name, low=low, high=high)
    whole_dimensions = scaling.flag("truncate", default=True)
    stated = values.pop("attention_factor", None)
    if kind == "yarn":
        values["truncate"] = whole_dimensions
        usual = 0.1 * log(max(values["factor"], 1.0)) + 1.0
        if stated is not None and abs(stated - usual) > _ROUNDING:
            values["attention_factor"] = stated
    _refuse_unread(scaling, _OF_SCALING)
    return None if scaling.faults else RotaryScaling(**values)


def _stated(
    reader: FieldReader, family: ModelTypeKeys, known: Mapping[str, Any], head_dim: int
) -> dict[str, Any]:
    """Return facts that single keys state.

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
    if reader.has("gating"):  # Laguna: anything but these two words is a gate of its own for each element
        heads = reader.value("gating") in (True, "per-head")
        facts["attention_gate"] = "per_head" if heads else "per_element"
    facts |= _scales(reader, family, known)
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    eps = reader.first(names)
    if reader.has(eps):
        facts["norm_epsilon"] = reader.number(eps, low=0.0, high=1.0)
    for name in names:
        reader.value(name)
    activation = _activation(reader, family)
    _refuse_other_values(reader, family)
    return facts | ({"activation": activation} if activation else {})


def _scales(reader: FieldReader, family: ModelTypeKeys, known: Mapping[str, Any]) -> dict[str, float]:
    """Return the scales of embeddings, residuals and logits that follow from sizes (Gemma, MiniCPM)."""
    facts: dict[str, float] = {}
    flag = family.scale_flag
    if flag == "always" or (flag and reader.flag(flag, default=True)):
        facts["embedding_scale"] = known["hidden_size"] ** 0.5
    if reader.has("scale_depth"):
        facts["residual_scale"] = (
            reader.number("scale_depth", low=1e-6, high=1e6) / known["num_layers"] ** 0.5
        )
    if reader.has("dim_model_base"):
        facts["logit_scale"] = reader.integer("dim_model_base", high=2**20) / known["hidden_size"]
    return facts


def _activation(reader: FieldReader, family: ModelTypeKeys) -> Activation | None:
    """Return the MLP's activation; None where it is the usual one.

    Raises:
        UnsupportedModelError: it is not planned.
    """
    names = ("hidden_activation", "hidden_act", "activation_function", "activation", "afn")
    stated = [reader.value(name) for name in names]
    if family.own_activation:
        return None
    word = next((value for value in stated if value is not None), family.activation)
    found = config_keys().activations.get(word) if isinstance(word, str) else None
    if found is None:
        why = f"the activation {str(word)[:40]}; planned: {', '.join(config_keys().activations)}"
        raise UnsupportedModelError.field(reader.first(names), why)
    return None if found == ("silu" if family.facts.get("gated_mlp", True) else "gelu") else found


def _refuse_other_values(reader: FieldReader, family: ModelTypeKeys) -> None:
    """Refuse other values of keys that a model type has only one value of.

    Raises:
        UnsupportedModelError: names a key with another value.
    """
    own = {key: (value, "not supported for this model type") for key, value in family.fixed.items()}
    known = config_keys().fixed
    unread = {key: known[key] for key in reader.unread() if key in known}
    for key, (value, why) in {**unread, **own}.items():
        values = value if isinstance(value, tuple) else (value,)
        if reader.has(key) and reader.value(key) not in values:
            found, planned = str(reader.value(key))[:40], " or ".join(str(one).lower() for one in values)
            raise UnsupportedModelError.field(key, f"{found}: {why}; planned: {planned}")
        reader.value(key)


def _refuse_unread(reader: FieldReader | None, known: tuple[str, ...] = ()) -> None:
    """Refuse a key with a value that was not read, unless it is harmless.

    Raises:
        UnsupportedModelError: names the first other key.
    """
    for key in reader.unread() if reader else ():
        if key not in known and harmless_reason(key) is None:
            why = "Meshwright doesn't know this key. Remove it if it doesn't change the model's shape"
            inside = reader.pointer.removeprefix("/model").replace("/", ".").lstrip(".") if reader else ""
            raise UnsupportedModelError.field(f"{inside}.{key[:60]}".lstrip("."), why)


def _size(reader: FieldReader, family: ModelTypeKeys, field: str) -> int:
    return _integer(reader, family.keys[field], limits=field)


def _integer(
    reader: FieldReader, name: str, *, limits: str | None = None, default: int | None = None
) -> int:
    low, high = MODEL_LIMITS[limits or name]
    return reader.integer(name, low=int(low), high=int(high), default=default)


def _ffn_hidden_size(reader: FieldReader, family: ModelTypeKeys, hidden_size: int) -> int:
    """Return an MLP's width without experts; GPT-2 and its like default to four hidden sizes."""
    key = family.keys["ffn_hidden_size"]
    own = family.dense_ffn_key if family.dense_ffn_key and reader.has(family.dense_ffn_key) else key
    if not reader.has(own) and reader.has("moe_intermediate_size"):  # no layer without experts
        own = "moe_intermediate_size"
    reader.value(key)
    return _integer(
        reader, own, limits="ffn_hidden_size", default=family.ffn_of_hidden * hidden_size or None
    )


def _head_dim(
    reader: FieldReader, family: ModelTypeKeys, hidden_size: int, heads: int, mla: MlaSpec | None
) -> int:
    """Return the query/key size of a head: stated, latent attention's sum, or hidden_size / heads."""
    if mla is not None:
        reader.value("head_dim")
        return mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if not reader.has("head_dim") and hidden_size % heads and not family.rounds_head_dim:
        reader.fault("num_attention_heads", f"{heads} does not divide hidden_size = {hidden_size}")
    head_dim = _integer(reader, "head_dim", default=max(1, hidden_size // heads))
    if family.heads_fill_hidden and heads * head_dim != hidden_size:
        reader.fault("head_dim", f"{heads} heads of {head_dim} are not hidden_size = {hidden_size}")
    return head_dim


def _mla(reader: FieldReader, family: ModelTypeKeys, head_dim: int) -> MlaSpec | None:
    """Return multi-head latent attention if ``kv_lora_rank`` is set; values default to ``head_dim``."""
    if not reader.has("kv_lora_rank"):
        return None
    defaults = {"q_lora_rank": 0, "v_head_dim": head_dim}
    sizes: dict[str, Any] = {
        field: reader.integer(field, low=int(low), high=int(high), default=defaults.get(field))
        for field, (low, high) in MlaSpec.LIMITS.items()
    }
    if reader.value("q_lora_rank") == 0:
        raise UnsupportedModelError.field("q_lora_rank", "0: queries without a latent are null, not 0")
    flag = family.latent_bias_flag
    bias = bool(flag) and reader.flag(flag, default=False)
    reader.finish()
    return MlaSpec(**sizes, latent_bias=bias)


def _indexer(reader: FieldReader, family: ModelTypeKeys, num_layers: int) -> IndexerSpec:
    """Return the indexer of latent attention's keys, and the layers that reuse another layer's choice.

    Raises:
        UnsupportedModelError: there are such, and the type's class builds none.
    """
    names = ("index_n_heads", "index_head_dim", "index_topk")
    sizes: dict[str, Any] = {
        field: reader.integer(key, low=int(low), high=int(high))
        for key, (field, (low, high)) in zip(names, IndexerSpec.LIMITS.items(), strict=True)
    }
    reusing = layers_that_reuse(reader, num_layers)
    if reusing and "indexer_types" not in family.plans:
        key = reader.first(("indexer_types", "index_topk_pattern", "index_topk_freq"))
        raise UnsupportedModelError.field(key, "layers that use another layer's selection of keys")
    reader.finish()
    return IndexerSpec(**sizes, reusing_layers=reusing)


def _embedding_size(reader: FieldReader, hidden_size: int) -> int | None:
    """Return the width of embeddings that are projected to the hidden size (OPT-350M); None: none are."""
    if not reader.has("word_embed_proj_dim"):
        return None
    size = _integer(reader, "word_embed_proj_dim", limits="embedding_size")
    return None if size == hidden_size else size


_SHARED_WIDTH = (
    "shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim",
    "moe_shared_expert_intermediate_size",
)  # fmt: skip
_BALANCE = ("router_aux_loss_coef", "aux_loss_alpha", "ffn_config.moe_loss_weight")
_GROUPS, _NORMALIZED = ("n_group", "num_expert_group"), ("norm_topk_prob", "moe_renormalize")
_SCALE = (
    "routed_scaling_factor", "route_scale", "moe_routed_scaling_factor", "router_scaling_factor",
    "moe_router_scaling_factor",
)  # fmt: skip


def _moe(reader: FieldReader, family: ModelTypeKeys, num_layers: int, adapters: str) -> MoeSpec | None:
    if not family.experts:
        return None
    if family.experts_flag and not reader.flag(family.experts_flag, default=False):
        for key in (family.experts, "moe_intermediate_size", *config_keys().top_k):
            reader.value(key)  # of no layer
        return None
    if not reader.has(family.experts):
        if family.experts_flag:
            reader.fault(family.experts, f"is required with {family.experts_flag}")
        return None
    num_experts = reader.integer(family.experts, low=0, high=int(MoeSpec.LIMITS["num_experts"][1]))
    placement = moe_placement(reader, num_layers)
    if placement is None or (num_experts == 0 and family.dense_without_experts):
        return None
    if num_experts == 0:
        raise UnsupportedModelError.field(
            family.experts,
            "0: the class would build expert layers without experts. Set model_type to a dense type",
        )
    width = reader.first(("moe_intermediate_size", family.keys["ffn_hidden_size"]))
    ffn_hidden_size = _integer(reader, width, limits="ffn_hidden_size")
    num_shared, shared_width = _shared_experts(reader, family, ffn_hidden_size)
    top_k = reader.integer(reader.first(config_keys().top_k), high=num_experts)
    router: dict[str, Any] = {"expert_adapters": adapters, **family.router, **_router(reader, family)}
    if not num_shared and family.needs_shared_experts:
        key = reader.first((*_SHARED_WIDTH, *config_keys().shared_experts))
        raise UnsupportedModelError.field(key, "0: the class would build unused shared experts")
    reader.finish()
    return MoeSpec(
        num_experts=num_experts,
        top_k=top_k,
        ffn_hidden_size=ffn_hidden_size,
        num_shared_experts=num_shared,
        shared_ffn_hidden_size=shared_width,
        **placement,
        **router,
    )


def _router(reader: FieldReader, family: ModelTypeKeys) -> dict[str, Any]:
    groups = reader.integer(reader.first(_GROUPS), low=0, default=0, high=65_536)
    chosen = reader.integer("topk_group", low=0, default=0, high=65_536)
    method = reader.value("topk_method")
    grouped = chosen < groups and method != "greedy"
    normalized = bool(family.router.get("normalized_top_k", True))
    if reader.has(name := reader.first(_NORMALIZED)):
        normalized = reader.flag(name, default=True)
    found: dict[str, Any] = {
        "normalized_top_k": normalized,
        "router_groups": groups if grouped else 0,
        "router_top_groups": chosen if grouped else 0,
        "router_scaling": reader.number(reader.first(_SCALE), low=1e-6, high=1e6, default=1.0),
    }
    if family.balanced_by_loss:
        coefficient = reader.number(reader.first(_BALANCE), low=0.0, high=1e3, default=0.0)
        found["balance_coefficient"] = coefficient
        found["balanced_by_sequence"] = reader.flag("seq_aux", default=False) and coefficient > 0
    if reader.has("use_expert_bias"):  # LFM2
        found["selection_bias"] = reader.flag("use_expert_bias", default=True)
    if reader.has("moe_latent_size"):
        found["latent_size"] = reader.integer(
            "moe_latent_size", low=1, high=int(MoeSpec.LIMITS["latent_size"][1])
        )
    if reader.has("latent_moe_use_norm"):  # Kimi K3
        found["latent_norm"] = reader.flag("latent_moe_use_norm", default=False)
    found |= {"weights_on_input": True} if reader.value("moe_apply_router_weight_on_input") else {}
    if reader.has("expert_selection_fn"):  # Cohere 2
        found["router_score"] = reader.choice(
            "expert_selection_fn", ("softmax", "sigmoid"), default="softmax"
        )
    return found


def _shared_experts(reader: FieldReader, family: ModelTypeKeys, expert_width: int) -> tuple[int, int]:
    """Return number and joint width of shared experts: stated (Qwen), counted (DeepSeek), or the MLP."""
    if family.experts_beside_mlp:
        return 1, _integer(reader, family.keys["ffn_hidden_size"], limits="ffn_hidden_size")
    if family.shared_experts_of_ffn:
        return family.shared_experts_of_ffn, family.shared_experts_of_ffn * expert_width
    width = reader.integer(reader.first(_SHARED_WIDTH), low=0, default=0, high=2**24)
    count = reader.integer(reader.first(config_keys().shared_experts), low=0, default=0, high=1024)
    if width:
        return max(count, 1), width
    return count, count * expert_width
