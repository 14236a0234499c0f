"""A model's shape as a mapping, with ModelSpec's own field names, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import (
    CompressionSpec,
    DiffusionSpec,
    IndexerSpec,
    Limits,
    LocalAttention,
    MlaSpec,
    MoeSpec,
    RotaryScaling,
    StreamsSpec,
)
from meshwright.profiles.reading import FieldReader, PartRules, values_of
from meshwright.profiles.towers import TowerSpec

Json = str | int | float | bool | list["Json"] | dict[str, "Json"] | None

_PARTS: Mapping[type, Limits] = {
    part: part.LIMITS
    for part in (
        ModelSpec, MoeSpec, MlaSpec, IndexerSpec, CompressionSpec, StreamsSpec, LocalAttention, MixerSpec,
        TowerSpec, DiffusionSpec, RotaryScaling,
    )
}  # fmt: skip
_IN_ORDER = ("layer_ffn_sizes", "layer_kv_heads", "rates")  # lists of sizes, one of each layer
_BIASES = ("qkv_bias", "attention_output_bias", "mlp_bias")


def model_from_shape(raw: Mapping[str, object], *, name: str | None = None) -> ModelSpec:
    """Return a model from ModelSpec's field names; ``moe``, ``mla``, ``rotary_scaling`` are nested.

    ``num_kv_heads`` defaults to the heads, ``head_dim`` to hidden_size / heads (for latent
    attention to its query/key size). ``linear_bias`` sets all three biases of a layer at once.

    Raises:
        InvalidProblemError: unknown fields, wrong types, sizes out of range or contradicting;
            pointers start at ``/model``.
    """
    reader = FieldReader(raw, "/model")
    biased = reader.flag("linear_bias", default=False)
    # None: follows from other sizes, below
    follow: dict[str, object] = {"name": "custom", "num_kv_heads": None, "head_dim": None}
    values = values_of(reader, ModelSpec, _RULES, follow | dict.fromkeys(_BIASES, biased))
    hidden, heads, mla = values["hidden_size"], values["num_attention_heads"], values.get("mla")
    if values["num_kv_heads"] is None:
        values["num_kv_heads"] = heads
    if values["head_dim"] is None:
        if mla is None and hidden % heads:
            reader.fault("num_attention_heads", f"{heads} does not divide hidden_size: set head_dim")
        values["head_dim"] = mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else max(1, hidden // heads)
    reader.refuse_unknown()
    reader.finish()
    model = ModelSpec(**values | ({"name": name} if name else {}))
    if model.indexer and not model.chooser:
        raise InvalidProblemError.of("/model/indexer/reusing_layers", "no layer is left to choose keys")
    if model.borrows:
        most = f"0 to {model.num_layers - 1}"
        raise InvalidProblemError.of(
            "/model/borrowing_layers", "no layer is left to borrow keys from", allowed=most
        )
    return model


def model_to_mapping(model: ModelSpec) -> dict[str, Json]:
    """Return the mapping that ``model_from_shape`` reads back to an equal model; defaults are left out."""
    return _without_defaults(model)


def _without_defaults(part: Any) -> dict[str, Json]:  # noqa: ANN401 - one of the dataclasses above
    raw: dict[str, Json] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if field.default is MISSING or value != field.default:
            inner = list(value) if isinstance(value, tuple) else value
            raw[field.name] = _without_defaults(value) if type(value) in _PARTS else inner
    return raw


def _layers(reader: FieldReader, name: str) -> tuple[int, ...]:
    value = reader.value(name)
    if not isinstance(value, list) or not all(type(layer) is int and layer >= 0 for layer in value):
        each = "sizes, one for each layer" if name in _IN_ORDER else "layers, counted from 0"
        reader.fault(name, f"must be a list of {each}")
        return ()
    return tuple(value) if name in _IN_ORDER else tuple(sorted(set(value)))


_RULES = PartRules(limits=_PARTS, lists=_layers)
