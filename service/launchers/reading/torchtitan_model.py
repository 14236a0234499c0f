"""The model of a torchtitan configuration: a flavor of its own, one beside the file, or a told one."""

from __future__ import annotations

from profiles.library import find_model
from profiles.model import ModelSpec
from profiles.shape import model_from_shape
from service.launchers.reading.base import refused
from service.launchers.reading.fields import Fields
from service.launchers.reading.known import Known
from service.launchers.reading.torchtitan_python import SHAPE, flavor_values
from service.launchers.torchtitan_toml import FLAVOR_FILE

# torchtitan 0.2.2 and 0.3.0, models/llama3/__init__.py.
_FLAVORS = {"8B": "llama-3.1-8b", "70B": "llama-3.1-70b", "405B": "llama-3.1-405b"}
_NEEDED = {
    "dim": "hidden_size", "n_layers": "num_layers", "n_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
}  # fmt: skip
_MAX_FACTOR = 1_000_000.0


def model_of(fields: Fields, known: Known) -> ModelSpec:
    """The model.

    Raises:
        InvalidProblemError: neither the files nor anybody names one that is known.
    """
    flavor = fields.word("model.flavor") if fields.has("model.flavor") else ""
    fields.word("model.name")
    if known.told.model is not None:
        return known.told.model
    if fields.has(f"{SHAPE}dim"):
        return _shape(fields)
    if FLAVOR_FILE in known.source.files:
        text = known.source.files[FLAVOR_FILE]
        return _shape(Fields(FLAVOR_FILE, flavor_values(FLAVOR_FILE, text)))
    name = fields.word("model.name", "llama3")
    if name == "llama3" and flavor in _FLAVORS:
        return find_model(_FLAVORS[flavor])
    if known.header.model is not None:
        return known.header.model
    fields.fault(
        "model.flavor",
        f'"{flavor[:40]}" is no flavor of Llama 3 that is known; name the model with --model',
        allowed=", ".join(_FLAVORS),
    )
    fields.stop()
    raise refused("no model is named")


def _shape(fields: Fields) -> ModelSpec:
    """A shape in torchtitan's own names.

    Raises:
        InvalidProblemError: a size is missing, or the shape is none that can be priced.
    """
    for name in _NEEDED:
        fields.expect(SHAPE + name)
    fields.stop()
    raw: dict[str, object] = {wanted: fields.integer(SHAPE + name, 1) for name, wanted in _NEEDED.items()}
    heads = fields.integer(f"{SHAPE}n_heads", 1)
    raw |= {
        "num_kv_heads": fields.integer(f"{SHAPE}n_kv_heads", heads),
        "ffn_hidden_size": fields.optional(f"{SHAPE}ffn_hidden_size") or _ffn(fields),
        "rotary_base": max(int(min(fields.number(f"{SHAPE}rope_theta", 10_000.0), 2e9)), 1),
        "norm_epsilon": fields.number(f"{SHAPE}norm_eps", 1e-5),
        "max_position_embeddings": fields.integer(f"{SHAPE}max_seq_len", 131_072),
    }
    factor = fields.number(f"{SHAPE}scaling_factor", 1.0)
    if factor != 1:
        raw["rotary_scaling"] = {
            "kind": "llama3", "factor": factor, "original_max_position_embeddings": 8192,
        }  # fmt: skip
    fields.stop()
    return model_from_shape(raw, name="launch file")


def _ffn(fields: Fields) -> int:
    """Width of the MLP: torchtitan 0.2.2, models/llama3/model/model.py FeedForward.

    ``multiple_of * ceil(int(multiplier * int(8 dim / 3)) / multiple_of)``.
    """
    hidden, unit = fields.integer(f"{SHAPE}dim", 1), fields.integer(f"{SHAPE}multiple_of", 256)
    factor = fields.number(f"{SHAPE}ffn_dim_multiplier", 1.0)
    if not 0 < factor < _MAX_FACTOR:
        fields.fault(f"{SHAPE}ffn_dim_multiplier", "is out of range")
        fields.stop()
    plain = int(factor * int(2 * 4 * hidden / 3))
    return unit * -(-plain // unit)
