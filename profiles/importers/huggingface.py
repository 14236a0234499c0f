"""Reads the shape of a model from a Hugging Face ``config.json``.

Field names and defaults are those of the ``transformers`` configuration classes. What the cost
model cannot express is refused as ``unsupported: <field>``; a missing or garbled field is named
with its pointer. Small terms are left out on purpose, all below 0.1 % of the weights: norms on
queries and keys, biases of a single projection, routing biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from profiles.documents import FILE, read_json
from profiles.errors import InvalidProblemError, UnsupportedModelError
from profiles.importers.huggingface_families import FAMILIES, LLAMA_LIKE, Family
from profiles.importers.huggingface_layers import moe_placement, sliding_window
from profiles.importers.huggingface_refusals import refuse_unsupported
from profiles.limits import MLA_LIMITS, MODEL_LIMITS, MOE_LIMITS
from profiles.model import MlaSpec, ModelSpec, MoeSpec
from profiles.reading import MAX_TEXT, FieldReader


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


def _heads(reader: FieldReader, family: Family) -> tuple[int, int]:
    """Attention heads, and kv heads (as many, where the config names none)."""
    heads = _size(reader, family, "num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", high=MODEL_LIMITS["num_kv_heads"][1], default=heads)
    return heads, kv_heads


def _rotary_base(reader: FieldReader) -> int | None:
    """The base of rotary positions, where the config states one."""
    return round(reader.number("rope_theta", low=1.0, high=1e12)) if reader.has("rope_theta") else None


def model_from_config(config: object, *, name: str) -> ModelSpec:
    """The shape that a Hugging Face config describes.

    Raises:
        UnsupportedModelError: a feature that the cost model cannot express.
        InvalidProblemError: a field is missing, garbled or out of range.
    """
    reader = FieldReader(config, "/model")
    model_type = reader.text("model_type")
    reader.finish()
    refuse_unsupported(reader)
    family = FAMILIES.get(model_type) or _llama_like(reader, model_type)
    num_layers = _size(reader, family, "num_layers")
    hidden_size = _size(reader, family, "hidden_size")
    heads, kv_heads = _heads(reader, family)
    mla = _mla(reader)
    head_dim = _head_dim(reader, hidden_size, heads, mla)
    moe = _moe(reader, family, num_layers)
    window, every = sliding_window(reader, model_type, num_layers)
    model = partial(
        ModelSpec,
        name=name[:MAX_TEXT],
        num_layers=num_layers,
        hidden_size=hidden_size,
        ffn_hidden_size=_ffn_hidden_size(reader, family, hidden_size),
        num_attention_heads=heads,
        num_kv_heads=heads if mla else kv_heads,
        head_dim=head_dim,
        vocab_size=reader.integer("vocab_size", high=MODEL_LIMITS["vocab_size"][1]),
        gated_mlp=family.gated_mlp,
        tied_embeddings=reader.flag("tie_word_embeddings", default=family.tied_embeddings),
        moe=moe,
        mla=mla,
        num_mtp_layers=reader.integer("num_nextn_predict_layers", low=0, high=64, default=0),
        sliding_window=window,
        sliding_window_every=every,
        learned_position_embeddings=family.learned_positions,
        max_position_embeddings=reader.optional_integer(
            reader.first(family.keys["max_position_embeddings"])
        ),
        rotary_base=_rotary_base(reader),
        normalization=family.normalization,
        linear_bias=family.linear_bias,
        source=f"config.json, model_type {model_type}",
    )
    reader.finish()
    return model()


def _llama_like(reader: FieldReader, model_type: str) -> Family:
    """The Llama family for a model type we do not know but whose fields are Llama's."""
    needed = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
    )
    missing = [field for field in needed if not reader.has(field)]
    if missing:
        raise UnsupportedModelError.field(
            "model_type", f'"{model_type[:40]}" is unknown and has no {", ".join(missing)} as Llama has'
        )
    activation = reader.value(reader.first(("hidden_act", "hidden_activation")))
    if activation not in (None, "silu"):
        raise UnsupportedModelError.field(
            "hidden_act", "of an unknown model type only silu, with a gated MLP as in Llama, is understood"
        )
    for field in reader.names():
        if any(part in field for part in ("expert", "moe", "lora_rank")) and reader.value(field) not in (
            None,
            0,
        ):
            raise UnsupportedModelError.field(field[:60], "experts or low ranks of an unknown model type")
    return LLAMA_LIKE


def _size(reader: FieldReader, family: Family, field: str) -> int:
    low, high = MODEL_LIMITS[field]
    return reader.integer(reader.first(family.keys[field]), low=low, high=high)


def _ffn_hidden_size(reader: FieldReader, family: Family, hidden_size: int) -> int:
    """The MLP's width; GPT-2 and BLOOM default to four times the hidden size."""
    default = 4 * hidden_size if family.ffn_is_four_hidden else None
    high = MODEL_LIMITS["ffn_hidden_size"][1]
    return reader.integer(reader.first(family.keys["ffn_hidden_size"]), high=high, default=default)


def _head_dim(reader: FieldReader, hidden_size: int, heads: int, mla: MlaSpec | None) -> int:
    """The query/key size of a head: stated, latent attention's sum, or hidden_size / heads."""
    if mla is not None:
        return mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if not reader.has("head_dim") and hidden_size % heads:
        reader.fault("num_attention_heads", f"{heads} does not divide hidden_size = {hidden_size}")
    return reader.integer(
        "head_dim", high=MODEL_LIMITS["head_dim"][1], default=max(1, hidden_size // heads)
    )


def _mla(reader: FieldReader) -> MlaSpec | None:
    """Multi-head latent attention, where ``kv_lora_rank`` says so."""
    if not reader.has("kv_lora_rank"):
        return None
    sizes = {
        field: reader.integer(field, low=low, high=high, default=0 if field == "q_lora_rank" else None)
        for field, (low, high) in MLA_LIMITS.items()
    }
    reader.finish()
    return MlaSpec(**sizes)


def _moe(reader: FieldReader, family: Family, num_layers: int) -> MoeSpec | None:
    """Experts, where the config names them and at least one layer has them."""
    count = reader.first(("num_local_experts", "num_experts", "n_routed_experts"))
    if not reader.has(count):
        return None
    num_experts = reader.integer(count, low=0, high=MOE_LIMITS["num_experts"][1])
    placement = moe_placement(reader, num_layers)
    if num_experts <= 1 or placement is None:
        return None
    width = reader.first(("moe_intermediate_size", *family.keys["ffn_hidden_size"]))
    ffn_hidden_size = reader.integer(width, high=MOE_LIMITS["ffn_hidden_size"][1])
    num_shared, shared_width = _shared_experts(reader, ffn_hidden_size)
    top_k = reader.integer(reader.first(("num_experts_per_tok", "experts_per_token")), high=num_experts)
    reader.finish()
    return MoeSpec(
        num_experts=num_experts,
        top_k=top_k,
        ffn_hidden_size=ffn_hidden_size,
        num_shared_experts=num_shared,
        shared_ffn_hidden_size=shared_width,
        num_dense_layers=placement[0],
        frequency=placement[1],
    )


def _shared_experts(reader: FieldReader, expert_width: int) -> tuple[int, int]:
    """Number of shared experts and their width together: stated (Qwen) or counted (DeepSeek)."""
    width = reader.integer("shared_expert_intermediate_size", low=0, default=0, high=2**24)
    if width:
        return 1, width
    counted = reader.first(("n_shared_experts", "num_shared_experts"))
    count = reader.integer(counted, low=0, default=0, high=1024)
    return count, count * expert_width
