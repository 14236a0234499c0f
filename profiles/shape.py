"""A model's shape as a mapping, with ModelSpec's own field names, in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from functools import partial

from profiles.limits import MLA_LIMITS, MODEL_LIMITS, MOE_LIMITS
from profiles.model import MlaSpec, ModelSpec, MoeSpec
from profiles.reading import FieldReader

Json = str | int | float | bool | list["Json"] | dict[str, "Json"] | None


def model_from_shape(raw: Mapping[str, object], *, name: str | None = None) -> ModelSpec:
    """A model from ModelSpec's field names; ``moe`` and ``mla`` are nested objects.

    ``num_kv_heads`` defaults to the heads, ``head_dim`` to hidden_size / heads (for latent
    attention to its query/key size).

    Raises:
        InvalidProblemError: unknown fields, wrong types, sizes out of range or contradicting;
            pointers start at ``/model``.
    """
    reader = FieldReader(raw, "/model")
    given_name = reader.text("name", default="custom")
    sizes = {key: _size(reader, key) for key in _REQUIRED_SIZES}
    heads = sizes["num_attention_heads"]
    mla = _mla(reader.child("mla"))
    normalization = reader.choice("normalization", ("rmsnorm", "layernorm"), default="rmsnorm")
    model = partial(
        ModelSpec,
        **sizes,
        name=name or given_name,
        num_kv_heads=_size(reader, "num_kv_heads", heads),
        head_dim=_head_dim(reader, sizes["hidden_size"], heads, mla),
        gated_mlp=reader.flag("gated_mlp", default=True),
        tied_embeddings=reader.flag("tied_embeddings", default=False),
        moe=_moe(reader.child("moe")),
        mla=mla,
        num_mtp_layers=_size(reader, "num_mtp_layers", 0),
        sliding_window=reader.optional_integer("sliding_window"),
        sliding_window_every=_size(reader, "sliding_window_every", 1),
        learned_position_embeddings=reader.flag("learned_position_embeddings", default=False),
        max_position_embeddings=reader.optional_integer("max_position_embeddings"),
        rotary_base=reader.optional_integer("rotary_base"),
        normalization="layernorm" if normalization == "layernorm" else "rmsnorm",
        linear_bias=reader.flag("linear_bias", default=False),
        source=reader.text("source", default=""),
        display_name=reader.text("display_name", default=""),
    )
    reader.refuse_unknown()
    reader.finish()
    return model()


def model_to_mapping(model: ModelSpec) -> dict[str, Json]:
    """The mapping that ``model_from_shape`` reads back to an equal model; defaults are left out."""
    raw: dict[str, Json] = asdict(model)
    for field in fields(ModelSpec):
        if field.default is not MISSING and raw[field.name] == field.default:
            del raw[field.name]
    return raw


_REQUIRED_SIZES = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "vocab_size")
_MOE_DEFAULTS = {
    "num_shared_experts": 0,
    "shared_ffn_hidden_size": 0,
    "num_dense_layers": 0,
    "frequency": 1,
}


def _size(reader: FieldReader, key: str, default: int | None = None) -> int:
    low, high = MODEL_LIMITS[key]
    return reader.integer(key, low=low, high=high, default=default)


def _head_dim(reader: FieldReader, hidden_size: int, heads: int, mla: MlaSpec | None) -> int:
    if mla is not None:
        return _size(reader, "head_dim", mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    if hidden_size % heads and not reader.has("head_dim"):
        reader.fault("num_attention_heads", f"{heads} does not divide hidden_size; state head_dim")
    return _size(reader, "head_dim", max(1, hidden_size // heads))


def _moe(reader: FieldReader | None) -> MoeSpec | None:
    if reader is None:
        return None
    sizes = {
        key: reader.integer(key, low=low, high=high, default=_MOE_DEFAULTS.get(key))
        for key, (low, high) in MOE_LIMITS.items()
    }
    reader.refuse_unknown()
    reader.finish()
    return MoeSpec(**sizes)


def _mla(reader: FieldReader | None) -> MlaSpec | None:
    if reader is None:
        return None
    sizes = {key: reader.integer(key, low=low, high=high) for key, (low, high) in MLA_LIMITS.items()}
    reader.refuse_unknown()
    reader.finish()
    return MlaSpec(**sizes)
