"""What transformers' classes take where a Hugging Face config says nothing, and what they do not read.

The data is ``catalog/model_types.json``, written by ``benchmarks/catalog/model_types.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import UnsupportedModelError
from meshwright.profiles.importers.huggingface_families import FAMILIES, Family
from meshwright.profiles.importers.huggingface_keys import harmless_reason

_OF_HEADS = ("num_key_value_heads", "head_dim")  # tools write them beside the sizes that they repeat
_NEUTRAL: Mapping[str, object] = dict.fromkeys(
    ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"), 1
)


@cache
def _types() -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    """What transformers' classes take where a config says nothing, and the other names of keys."""
    raw = json.loads((CATALOG / "model_types.json").read_text("utf-8"))
    return dict(raw["types"])


def completed(model_type: str, config: Mapping[str, object]) -> tuple[dict[str, object], frozenset[str]]:
    """The config under its class's own names, with all that it leaves out; and which keys are defaults.

    Raises:
        UnsupportedModelError: a key that says otherwise what transformers' class does not read.
    """
    family = FAMILIES[model_type]
    entry = _types().get(family.like or model_type, {"defaults": {}, "names": {}})
    names = {**{str(key): str(value) for key, value in entry["names"].items()}, **family.names}
    stated: dict[str, object] = {}
    for key, value in config.items():
        part = value if key in family.parts and isinstance(value, Mapping) else None
        if part is not None:
            stated |= {f"{key}.{inner}": inside for inner, inside in part.items()}
        elif names.get(key, key) == key or names[key] not in config:
            stated[names.get(key, key)] = value
    unread = [key for key in entry.get("unread", ()) if key in stated]
    for key in unread:
        _refuse_unread(key, stated.pop(key), family)
    defaults = {**entry["defaults"], **family.defaults}
    added = {key: value for key, value in defaults.items() if key not in stated}
    return {**stated, **added}, frozenset(added)


def _refuse_unread(key: str, value: object, family: Family) -> None:
    """A key of other types is harmless where it changes nothing: a size of heads that have their own.

    Raises:
        UnsupportedModelError: the config means a model that transformers' class does not build.
    """
    harmless = key in _OF_HEADS or (not family.experts and harmless_reason(key))
    neutral = value in (None, False, 0, [], {}, family.defaults.get(key), _NEUTRAL.get(key))
    if not (harmless or neutral):
        why = "transformers' class of this type does not read this key; remove it, or correct model_type"
        raise UnsupportedModelError.field(key, why)
