"""Keys of Hugging Face configs: how a type reads them, and those that change nothing or are not planned.

A key of a config is *known* (a model type reads it: ``catalog/model_families.yaml``), *harmless*
(``catalog/model_keys.yaml``), or refused by its name. Types that are not planned are refused with the
reason and what to do next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cache
from itertools import takewhile
from typing import Any, NoReturn

import yaml

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, UnsupportedModelError
from meshwright.profiles.importers.huggingface_layers import GlobalRule, LocalRule
from meshwright.profiles.importers.huggingface_mixers import MixerRule
from meshwright.profiles.model import Activation
from meshwright.profiles.reading import FieldReader

Facts = Mapping[str, object]  # fields of ModelSpec

KEYS: dict[str, str] = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "max_position_embeddings": "max_position_embeddings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTypeKeys:
    """How one model type is read.

    ``flags``: a key, its default, and the facts that hold where it is true. ``numbers``: a key, the fact
    that it states, and how the fact follows from it. ``fixed``: the only value that a key may have.
    """

    keys: Mapping[str, str] = field(default_factory=dict)  # our name: theirs, if not in ``attribute_map``
    names: Mapping[str, str] = field(default_factory=dict)  # other names of keys: theirs
    like: str = ""  # the type that it takes its defaults from, if not transformers' own
    defaults: Mapping[str, object] = field(default_factory=dict)  # that the class derives, or no class has
    facts: Facts = field(default_factory=dict)
    experts: str = ""  # the key that counts experts, where the class has no default of one
    experts_flag: str = ""  # a key without which there are none
    experts_beside_mlp: bool = False  # each layer has both: the MLP is the shared expert
    router: Facts = field(default_factory=dict)  # fields of MoeSpec
    balanced_by_loss: bool = True  # whether its trainers add the loss with the weight in the config
    flags: Mapping[str, tuple[bool, Facts]] = field(default_factory=dict)
    follows: Callable[[FieldReader, Facts], Facts] | None = None  # facts of several keys, and those known
    latent_bias_flag: str = ""  # latent attention: a key that gives its down-projections biases
    numbers: Mapping[str, tuple[str, Callable[[float], float]]] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)  # a tuple: any of these
    as_built: Callable[[dict[str, object]], dict[str, object]] | None = None  # an older config's keys anew
    each_layer: tuple[str, ...] = ()  # keys that may list a value for each layer
    plans: tuple[str, ...] = ()  # keys that other types are refused for
    of_published: tuple[str, ...] = ()  # lists of published configs that replace the class's own
    unused: tuple[str, ...] = ()  # of published configs; the class builds nothing by them
    parts: tuple[str, ...] = ()  # objects inside the config with keys read as ``part.key``
    global_layers: GlobalRule = "all"
    global_every: int = 0
    rotary_on_local_layers: bool = False  # global layers have no positions
    null_is_no_rotary: bool = False  # nor have they where the config's rope_parameters of them are null
    local_attention: LocalRule | None = None  # what global and local layers have each
    mixer: MixerRule | None = None  # what layers that do not attend have
    activation: str = "silu"  # where the config names none
    own_activation: bool = False  # the class does not use the one that the config names
    ffn_of_hidden: int = 0  # the MLP's width in hidden sizes, where the config states none
    dense_ffn_key: str = ""  # the width of layers without experts, where it has a key of its own
    dense_without_experts: bool = False  # 0 experts are an MLP, not experts of which there are none
    shared_experts_of_ffn: int = 0  # shared experts that no key counts, each as wide as the MLP
    rounds_head_dim: bool = False  # if hidden_size / heads is not a whole number
    heads_fill_hidden: bool = False  # attention's output is as wide as the hidden size
    needs_shared_experts: bool = False  # the class is not made for none
    one_kv_head_flag: str = ""  # a key that leaves one key/value head
    scale_flag: str = ""  # a key that scales embeddings by the root of the hidden size; "always"
    head_of_whole: bool = False  # a model inside a model with a config that sets whether the head is tied


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKeys:
    """The rows of ``catalog/model_keys.yaml``, by name."""

    harmless: Mapping[str, str]  # keys that change nothing, and why
    harmless_endings: Mapping[str, str]
    harmless_beginnings: Mapping[str, str]
    fixed: Mapping[str, tuple[object, str]]  # keys that a type does not read: value, and why
    features: Mapping[str, str]  # keys of what no decoder-only transformer has
    feature_beginnings: Mapping[str, str]
    other_kinds: Sequence[str]  # reasons of refused_types to which no type is near
    refused_types: Mapping[str, str]
    nearest_types: Mapping[str, str]
    renamed: Mapping[str, str]
    of_class: Mapping[str, Mapping[str, str]]
    of_key: Mapping[str, Mapping[str, str]]
    names_of_one: Sequence[Sequence[str]]
    num_experts: Sequence[str]
    top_k: Sequence[str]
    shared_experts: Sequence[str]
    activations: Mapping[str, Activation]
    rotary_scalings: Mapping[str, str]


# Parts with names under what is common to them: a reason, or our word.
_GROUPED = ("harmless", "harmless_endings", "harmless_beginnings", "features", "feature_beginnings",
            "refused_types", "activations", "rotary_scalings")  # fmt: skip


@cache
def config_keys() -> ConfigKeys:
    """Return the keys and types of configs that no model type reads or that several spell differently."""
    raw = yaml.load((CATALOG / "model_keys.yaml").read_text("utf-8"), Loader=yaml.CSafeLoader)
    for part in _GROUPED:
        raw[part] = {name: common for common, names in raw[part].items() for name in names}
    return ConfigKeys(**raw)


def type_of(reader: FieldReader) -> str:
    """Return the model type of a config, by its class or by a key if types share a name."""
    return named_type(reader.text("model_type"), reader)


def named_type(stated: str, reader: FieldReader) -> str:
    """Return the type that a config's ``model_type`` names, which others may share."""
    classes, known = reader.value("architectures"), config_keys()
    named = classes[0] if isinstance(classes, list) and classes else None
    by_key = (own for key, own in known.of_key.get(stated, {}).items() if reader.has(key))
    by_class = known.of_class.get(stated, {}).get(str(named))
    return next(by_key, by_class or known.renamed.get(stated, stated))


def harmless_reason(key: str) -> str | None:
    """Return why a key changes nothing that is planned; None where it may."""
    known = config_keys()
    inner = key.rsplit(".", 1)[-1]  # of an object inside the config
    named = known.harmless.get(key) or known.harmless.get(inner)
    return (
        named
        or next((why for end, why in known.harmless_endings.items() if key.endswith(end)), None)
        or next((why for start, why in known.harmless_beginnings.items() if key.startswith(start)), None)
    )


def refuse_type(reader: FieldReader, model_type: str, planned: Sequence[str]) -> NoReturn:
    """Refuse a type that is not planned, with the nearest one that is.

    Raises:
        UnsupportedModelError: always.
    """
    what = config_keys().refused_types.get(model_type)
    why = "is an unknown type" if what is None else f"is not supported yet: {what}"
    fault = FieldError(
        pointer="/model/model_type",
        message=f'"{shown(model_type[:40])}" {why}',
        allowed=_INSTEAD.get(what or "", _PLANNED),
        nearest=None if of_another_kind(model_type) else nearest_type(reader, model_type, planned),
    )
    raise UnsupportedModelError([fault])


def of_another_kind(model_type: str) -> bool:
    """Return whether a type is no decoder: an encoder, a model of images, speech or time series."""
    known = config_keys()
    return known.refused_types.get(model_type) in known.other_kinds


_PLANNED = "a supported decoder-only type, or the model's sizes as a shape (docs/howto/own-model.md)"
_INSTEAD = {
    "an encoder": "a supported decoder-only type, or the encoder's sizes as a shape with causal: false "
    "(docs/howto/own-model.md)",
    "an encoder-decoder model": "a supported decoder-only type. A shape has one stack of layers",
    "a vision model": "a supported decoder-only type, also with a vision tower (docs/reference/models.md)",
    "a speech model": "a supported decoder-only type",
    "a model of time series": "a supported decoder-only type",
}
_ALIKE = 4  # letters at the beginning of two types of one family
_TYPO = 0.8  # least difflib ratio of a typo: one letter in five is wrong


def nearest_type(reader: FieldReader, model_type: str, planned: Sequence[str]) -> str:
    """Return the planned type of the same family, or the one that a typo meant; else a common one."""
    plain = model_type.lower().removesuffix("_text")
    alike = [
        (_alike_from_the_start(plain, other), SequenceMatcher(None, plain, other).ratio(), one)
        for one, other in ((one, one.removesuffix("_text")) for one in planned)
    ]
    family = max((one for one in alike if one[0] >= _ALIKE), default=None)
    known = config_keys()
    least = 1.0 if model_type in known.refused_types else _TYPO
    typo = max((one[1:] for one in alike if one[1] >= least), default=None)
    usual = "mixtral" if any(reader.has(key) for key in known.num_experts) else "llama"
    return known.nearest_types.get(model_type) or (family or typo or (usual,))[-1]


def _alike_from_the_start(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


# --------------------------------------------------------------------------------------------------
# Features of Hugging Face configs that a decoder-only transformer's shape cannot express.


_TOWERS = ("vision_config", "visual", "audio_config")
_ATTENTION = {"attn_type_list": "1"}  # the entry of a list of kinds for a layer with attention


def _language_model(reader: FieldReader, name: str) -> str:
    inside, own = reader.value("text_config"), f"{str(reader.value('model_type'))[:40]}_text"
    if name in _TOWERS and not inside and own in _types():  # an older config, of both in one
        return f'. To plan its language model, remove {name} and set model_type to "{own}"'
    if name not in (*_TOWERS, "text_config") or not isinstance(inside, Mapping) or not inside:
        return ""
    model_type = str(inside.get("model_type", ""))[:40]
    refused = config_keys().refused_types.get(model_type)
    if refused:
        return f'. Its language model ("{model_type}") isn\'t supported either: {refused}'
    of_type = f' (model_type "{model_type}")' if model_type else ""
    return f". To plan its language model, save text_config{of_type} as a separate config"


def refuse_unsupported(
    reader: FieldReader, planned: tuple[str, ...] = (), *, nearest: str | None = None
) -> None:
    """Refuse the keys of features that are not planned, except the type's own ``planned`` keys.

    ``nearest``: the type to plan instead, where that is not the config's language model.

    Raises:
        UnsupportedModelError: a key is of such a feature.
    """
    for name, why in config_keys().features.items():
        value = reader.value(name)
        alike = (
            isinstance(value, list) and name in _ATTENTION and set(map(str, value)) == {_ATTENTION[name]}
        )
        if name not in planned and not alike and value not in (None, False, 0, [], {}, ""):
            inside = _language_model(reader, name)
            raise _unsupported(name, why + inside, None if inside else nearest)
    for name in reader.names():
        for prefix, why in config_keys().feature_beginnings.items():
            if name.startswith(prefix) and reader.has(name) and name not in planned:
                raise _unsupported(name[:60], why, nearest)


def _unsupported(name: str, why: str, nearest: str | None) -> UnsupportedModelError:
    return UnsupportedModelError.field(name, why, allowed=_PLANNED if nearest else None, nearest=nearest)


# --------------------------------------------------------------------------------------------------
# Defaults of transformers' classes, and keys that they do not read: data that
# ``benchmarks/catalog/model_types.py`` writes.


_OF_HEADS = ("num_key_value_heads", "head_dim")  # tools write them next to the sizes that they repeat
_NULL_IS_READ = ("num_shared_experts", "head_dim")  # as none, and as hidden_size / heads
_NEUTRAL: Mapping[str, object] = dict.fromkeys(
    ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"), 1
)


@cache
def _types() -> Mapping[str, Mapping[str, Any]]:
    return dict(json.loads((CATALOG / "model_types.json").read_text("utf-8"))["types"])


def repeats(key: str, config: Mapping[str, object]) -> bool:
    """Return whether a key repeats the value of the config under another name of the same size."""
    names = {other for one in config_keys().names_of_one if key in one for other in one} - {key}
    return any(other in config and config[other] == config[key] for other in names)


def with_own_names(model_type: str, family: ModelTypeKeys) -> ModelTypeKeys:
    """Return the family with the names that its class has of every size and of the number of experts."""
    entry = _types().get(family.like or model_type, {"defaults": {}, "names": {}})
    own = next(
        (key for key in config_keys().num_experts if key in {*entry["defaults"], *entry["names"].values()}),
        "",
    )
    keys = {ours: str(entry["names"].get(theirs, theirs)) for ours, theirs in KEYS.items()}
    return replace(family, experts=family.experts or own, keys={**keys, **family.keys})


def expert_adapters(model_type: str) -> str:
    """Return how peft finds a type's experts (``ExpertAdapters``); in remote code they are layers."""
    return str(_types().get(model_type, {"expert_adapters": "linear"})["expert_adapters"])


def completed(
    model_type: str, family: ModelTypeKeys, config: Mapping[str, object]
) -> tuple[dict[str, object], frozenset[str]]:
    """Return the config under its class's own names with all defaults, and which keys are defaults.

    Raises:
        UnsupportedModelError: a key that transformers' class does not read has another value than the class
        implies.
    """
    entry = _types().get(family.like or model_type, {"defaults": {}, "names": {}})
    names = {**{str(key): str(value) for key, value in entry["names"].items()}, **family.names}
    stated: dict[str, object] = {}
    for key, value in config.items():
        part = value if key in family.parts and isinstance(value, Mapping) else None
        if part is not None:
            stated |= {f"{key}.{inner}": inside for inner, inside in part.items()}
        elif names.get(key, key) == key or names[key] not in config:
            stated[names.get(key, key)] = value
        elif value is not None and value != config[names[key]]:
            other = shown(str(config[names[key]]))
            raise UnsupportedModelError.field(
                key, f"another name of {names[key]}, which is {other}. Remove one of them"
            )
    if family.as_built:
        stated = family.as_built({**entry["defaults"], **family.defaults, **stated})
    stated |= {key: _one_value(key, stated[key]) for key in family.each_layer if key in stated}
    read = {family.experts, *(key for key in family.of_published if isinstance(stated.get(key), list))}
    for key in [key for key in entry.get("unread", ()) if key in stated and key not in read]:
        known = key == "moe_intermediate_size" and stated[key] == stated.get("intermediate_size")
        if not (known or repeats(key, {**entry["defaults"], **stated})):
            _refuse_unread(key, stated[key], family)
        del stated[key]
    derived = {**entry.get("derived", {}), **family.defaults}
    defaults = {**entry["defaults"], **derived}
    off = {key: False for key, value in stated.items() if value is None and defaults.get(key) is True}
    stated |= off  # a switch that is null is off, whatever its default is
    own = {key for key in derived if stated.get(key) is None}  # the class derives it of null, too
    own -= {key for key in _NULL_IS_READ if key in stated}
    added = {key: value for key, value in defaults.items() if key not in stated or key in own}
    return {**stated, **added}, frozenset(added)


def _one_value(key: str, value: object) -> object:
    """Return the value that a list states for every layer; return anything else unchanged.

    Raises:
        UnsupportedModelError: layers differ.
    """
    if not isinstance(value, list) or not value:
        return value
    if any(one != value[0] for one in value):
        raise UnsupportedModelError.field(key, "layers of different sizes")
    return value[0]


def _refuse_unread(key: str, value: object, family: ModelTypeKeys) -> None:
    """Refuse keys of other types, unless they change nothing: a size of heads that have their own.

    Raises:
        UnsupportedModelError: the config means a model that transformers' class does not build.
    """
    width = family.experts and key == "intermediate_size"  # of dense layers, which this type has none of
    one_expert = key in config_keys().num_experts and value == 1 and not family.experts  # the MLP
    harmless = key in _OF_HEADS or width or one_expert or (not family.experts and harmless_reason(key))
    neutral = value in (None, False, 0, [], {}, family.defaults.get(key), _NEUTRAL.get(key))
    if not (harmless or neutral):
        raise UnsupportedModelError.field(
            key, "transformers' class for this type ignores this key. Remove it, or correct model_type"
        )
