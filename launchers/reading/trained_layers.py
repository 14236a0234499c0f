"""Which layers a run trains where it freezes the others: patterns of weights' names, and freeze-tuning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from meshwright.launchers.reading.fields import Fields
from meshwright.profiles.adapters import EMBEDDING, HEAD
from meshwright.profiles.documents import shown
from meshwright.profiles.layer_names import class_name, end_names, layers_path
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.trained_layers import NONE, counted_layers, ranges_of

# How transformers names a language model's weights: alone, and next to a tower (5 and 4).
LANGUAGES = ("model.", "model.language_model.", "language_model.")
HEADS = ("lm_head.weight", "language_model.lm_head.weight")
# Parts of paths that a class had in transformers 4, which match nothing in 5, where it renames them as it
# loads (5.14.1 ``conversion_mapping.py``: mixtral, minimax).
_RENAMED = "block_sparse_moe."
# Operators of a pattern that is run: no group is repeated, so that no name takes long.
_PLAIN = re.compile(r"\^?(?:(?:[\w.-]|\[[\w-]+\]|\\d)\+?|\((?:[\w-]+\|)*[\w-]+\)(?!\+))+\$?", re.ASCII)
_MOST_LETTERS, _MOST_REPEATED = 200, 4
_RANGE = re.compile(r"\[\d*:\d*\]$|(?<=\$)\[\d+\]$")  # of rows: hooks make the gradients of others 0
_ANY = "any_weight"


def of_patterns(fields: Fields, key: str, patterns: Sequence[str], model: ModelSpec) -> dict[str, Any]:
    """Return the trained layers and ends as patterns of Axolotl name them (0.19 ``utils/freeze.py:52``).

    A pattern matches from the first letter of a name, and its dots are dots. Rows that a range leaves out
    have gradients and states like the others.
    """
    plain = [_RANGE.sub("", one) for one in patterns]
    if any(not _is_plain(one) for one in plain):
        fields.fault(key, "has operators that can't be read", allowed="letters, dots, [0-9], + and (a|b)")
        return {}
    renames = model.moe is not None and model.moe.expert_adapters == "w1_w3"
    renamed = [one for one in plain if renames and _RENAMED in one]
    rules = [re.compile(re.sub(r"\.(?!\+)", r"\\.", one), re.ASCII) for one in plain if one not in renamed]
    if renamed:
        fields.note(f"{key}: {_RENAMED[:-1]} matches no weight: transformers 5 has experts in mlp")
    base = layers_path(model.layer_names, in_tower=model.tower is not None)
    layers = [f"{base}.{layer}." for layer in range(model.num_layers)]
    whole = [index for index, one in enumerate(layers) if _matches(rules, f"{one}{_ANY}")]
    ends = end_names(model.layer_names, base)
    found = [module for module, name in ends.items() if _matches(rules, name)]
    names = [f"{layers[index]}{_ANY}" for index in whole] + [ends[module] for module in found]
    lost = [one.pattern for one in rules if not any(one.match(name) for name in names)]
    lost = [one.replace(r"\.", ".") for one in lost]
    if lost:
        fields.fault(
            key,
            f"{shown(lost[0])} trains other weights than whole layers and ends: not supported",
            allowed=f"patterns of whole layers, embedding and head, or --ignore {key}",
        )
        return {}
    return _trained(fields, key, whole, found, model)


def of_freezing(fields: Fields, model: ModelSpec) -> dict[str, Any]:
    """Return what freeze-tuning trains (LLaMA-Factory 0.9.5, ``model/adapter.py:59``)."""
    key, count = "freeze_trainable_layers", model.num_layers
    number = fields.integer(key, 2, low=-count)
    modules = fields.word("freeze_trainable_modules", "all")
    if modules != "all":
        fields.fault("freeze_trainable_modules", "a part of layers is not supported", allowed="all")
    if fields.flag(_PRO) and number > 0 and count % number:
        divisors = [one for one in range(1, count + 1) if count % one == 0]
        near = sorted(sorted(divisors, key=lambda one: abs(one - number))[:2])
        fields.fault(
            key,
            f"{number} does not divide {count} layers: it stops there",
            allowed=", ".join(map(str, divisors)),
            nearest=" or ".join(map(str, near)),
        )
    layers = counted_layers(number, count, apart=fields.flag(_PRO))
    names = {class_name(model.layer_names, module): module for module in (EMBEDDING, HEAD)}
    extra = [one.strip() for one in fields.word("freeze_extra_modules", "").split(",") if one.strip()]
    for one in (one for one in extra if one not in names):
        fields.fault("freeze_extra_modules", f"{shown(one)} is not supported", allowed=", ".join(names))
    return _trained(fields, key, layers, [names[one] for one in extra if one in names], model)


_PRO = "use_llama_pro"


def refuse_expanded(fields: Fields) -> None:
    """Record a fault for LLaMA-Pro's blocks of other kinds of training: adapters of some layers."""
    if fields.flag(_PRO):
        fields.fault(_PRO, "adapters of some layers alone are not supported", allowed="false, or freeze")
    fields.take_setting("workload.trained_layers")


def _trained(
    fields: Fields, key: str, layers: Iterable[int], ends: Sequence[str], model: ModelSpec
) -> dict[str, Any]:
    tied = model.tied_embeddings and {*ends} & {EMBEDDING, HEAD}
    modules = (EMBEDDING, HEAD) if tied else tuple(name for name in (EMBEDDING, HEAD) if name in ends)
    named = ranges_of(layers) or NONE
    if named == NONE and not modules:
        fields.fault(key, "trains nothing", allowed=f"some layers, or --ignore {key}")
    return {"trained_layers": named, "trained_modules": modules}


def _is_plain(pattern: str) -> bool:
    short = len(pattern) <= _MOST_LETTERS and pattern.count("+") <= _MOST_REPEATED
    return short and _PLAIN.fullmatch(pattern) is not None


def _matches(rules: Sequence[re.Pattern[str]], name: str) -> bool:
    return any(rule.match(name) for rule in rules)
