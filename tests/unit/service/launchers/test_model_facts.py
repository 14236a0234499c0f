"""Every fact of a model counts: in its weights, its FLOPs, its name to launchers, or its flags."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.profiles.capabilities import model_facts
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.importers.huggingface import model_from_config
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec
from meshwright.service.launchers import megatron_flags

FIXTURES = Path(__file__).parents[2] / "profiles" / "fixtures"
PARTS: tuple[tuple[str, type], ...] = (("", ModelSpec), ("moe", MoeSpec), ("mla", MlaSpec))
NAMES = {"name", "source", "display_name", "moe", "mla", "rotary_scaling"}


def models() -> list[ModelSpec]:
    """Every planned model of the real and the drawn configs."""
    found = []
    for file in ("real-configs.json", "drawn-configs.json"):
        for one in json.loads((FIXTURES / file).read_text()):
            try:
                found.append(model_from_config(one["config"], name="x"))
            except InvalidProblemError:
                continue
    return found


MODELS = models()


def seen(model: ModelSpec) -> tuple[object, ...]:
    """What a fact may change."""
    flags = (*megatron_flags._model(model, 1), *_router(model))
    latent = megatron_flags._latent_attention(model.mla)
    counts = (model.num_parameters(), model.mtp_parameters(), model.model_flops_per_token(4096))
    return *counts, model_facts(model), flags, tuple(latent)


def _router(model: ModelSpec) -> list[megatron_flags.Flag]:
    if model.moe is None:
        return []
    layers = megatron_flags.flag("moe-layer-freq", megatron_flags.expert_layers(model))
    return [layers, *megatron_flags._router(model.moe)]


def without(model: ModelSpec, part: str, name: str, default: object) -> Iterator[ModelSpec]:
    """The model without the fact; nothing where it has none, or cannot be without it."""
    holder: Any = getattr(model, part) if part else model
    if holder is None or getattr(holder, name) == default:
        return
    if name == "expert_bias" and not model.mlp_bias:  # no MLP has any
        return
    if name == "frequency" and model.layer_kinds().count("moe") == 1:  # of one layer there is no distance
        return
    try:
        changed = replace(holder, **{name: default})
        yield replace(model, **{part: changed}) if part else changed
    except InvalidProblemError:
        return


FACTS = [
    (part, field.name, field.default)
    for part, of in PARTS
    for field in fields(of)
    if field.default is not MISSING and field.name not in NAMES
]


@pytest.mark.parametrize(("part", "name", "default"), FACTS, ids=[".".join(one[:2]) for one in FACTS])
def test_a_model_without_one_of_its_facts_has_another_count_price_name_or_flag(
    part: str, name: str, default: object
) -> None:
    pairs = [(model, one) for model in MODELS for one in without(model, part, name, default)]
    if not pairs:
        pytest.skip("no config has it alone")
    assert all(seen(model) != seen(one) for model, one in pairs)
