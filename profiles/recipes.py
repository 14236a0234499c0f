"""Switches that published recipes set, for runs that name their recipe and not its switches.

A recipe is known by its family, model, GPU and format. Cells are those of a table of measured runs
(``catalog/runs/columns.md``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import log

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.cluster import GpuSpec
from meshwright.profiles.library import find_gpu, find_model
from meshwright.profiles.model import ModelSpec

TABLE = CATALOG / "recipes" / "performance.json"
# Facts of the layout: another model's or GPU's recipe says nothing of them.
OF_THE_LAYOUT = ("recompute", "offload", "zero_stage", "fsdp_kind")
# Cells that only mean something next to another one with the same value.
_OF = {"recompute_modules": "recompute", "recompute_layers": "recompute", "offload_layers": "offload"}
_BITS = {"bf16": 16, "nvfp4": 4}  # others have 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One published recipe."""

    family: str
    name: str  # in its sources
    model: str  # of the catalog
    gpu: str
    format: str  # of the products: bf16, fp8-current, mxfp8, …
    adapters: bool
    cells: Mapping[str, str]  # by the columns of a table of runs
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What decides which recipe is nearest."""

    model: ModelSpec
    gpu: GpuSpec
    format: str
    adapters: bool


@cache
def _recipes() -> tuple[Recipe, ...]:
    raw = json.loads(TABLE.read_text("utf-8"))
    return tuple(Recipe(**row, source=raw["source"]) for row in raw["recipes"])


def recipe_families() -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(sorted({recipe.family for recipe in _recipes()}))


def nearest_recipe(family: str, asked: Asked) -> Recipe | None:
    """Return the family's recipe of that model, GPU and format, else the nearest; None: none is alike.

    Of models with and without experts, and of trained weights and adapters, none stands for the other.
    """
    found = [
        recipe
        for recipe in _recipes()
        if recipe.family == family
        and recipe.adapters == asked.adapters
        and (_model(recipe.model)[0].moe is None) == (asked.model.moe is None)
    ]
    parameters = asked.model.num_parameters()
    return min(found, key=lambda recipe: _distance(recipe, asked, parameters), default=None)


@cache
def _model(name: str) -> tuple[ModelSpec, int]:
    """Return a model of the catalog with its parameters."""
    model = find_model(name)
    return model, model.num_parameters()


def _distance(recipe: Recipe, asked: Asked, parameters: int) -> tuple[object, ...]:
    """Return how far off a recipe is: model, GPU, then format; ties go to the first by name."""
    (model, own), gpu = _model(recipe.model), find_gpu(recipe.gpu)
    size = abs(log(own / parameters))
    return (
        not _same_shape(model, asked.model),
        (model.mla is None) != (asked.model.mla is None),
        gpu.architecture != asked.gpu.architecture,
        round(size, 1),
        gpu.slug != asked.gpu.slug,
        gpu.island_gpus != asked.gpu.island_gpus,
        _BITS.get(recipe.format, 8) != _BITS.get(asked.format, 8),
        recipe.format != asked.format,
        recipe.name,
    )


def _same_shape(one: ModelSpec, other: ModelSpec) -> bool:
    """Return whether two models are one in all but their vocabulary and name."""
    return (one.num_layers, one.hidden_size, one.ffn_hidden_size, one.num_attention_heads) == (
        other.num_layers, other.hidden_size, other.ffn_hidden_size, other.num_attention_heads,
    )  # fmt: skip


def cells_of(recipe: Recipe, asked: Asked, stated: Mapping[str, str | None]) -> dict[str, str]:
    """Return the cells that a recipe adds to a row: switches that the row does not state.

    Args:
        recipe: the nearest one.
        asked: what it was chosen for.
        stated: the row's cells; empty ones may be missing.
    """
    own = find_gpu(recipe.gpu).slug == asked.gpu.slug and _same_shape(_model(recipe.model)[0], asked.model)
    added: dict[str, str] = {}
    for name, cell in recipe.cells.items():
        head = _OF.get(name, name)
        agrees = head == name or (stated.get(head) or added.get(head)) == recipe.cells.get(head)
        if not stated.get(name) and agrees and (own or head not in OF_THE_LAYOUT):
            added[name] = cell
    return added


def told(recipe: Recipe, added: Iterable[str]) -> str:
    """Return a recipe's name, source and added cells, as answers name them."""
    return f"{recipe.name} ({recipe.source}): {', '.join(sorted(added))}"
