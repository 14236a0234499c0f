"""Switches that a row leaves open, from the published recipe that it names or may follow."""

from __future__ import annotations

from meshwright.profiles.model import ModelSpec
from meshwright.profiles.recipes import Asked, cells_of, nearest_recipe, recipe_families, told
from meshwright.solver.runs.cells import Cells
from meshwright.solver.runs.layouts import framework_of_run, gpu_of_run, workload_of

_BRIDGE = "megatron-bridge"
_UNKNOWN_FAMILY = _BRIDGE  # of Megatron-Core runs that name none: the recipes that its makers publish
# A row that states one of these has made its choice; one without any is silent about its recipe.
_TELLING = ("moe_dispatcher", "cuda_graph", "moe_permute_fusion", "expert_overlap")


def recipe_family_of(cells: Cells) -> str | None:
    """Return the family of recipes that a row names, in ``recipe`` or by its software.

    Raises:
        InvalidProblemError: there is no such family.
    """
    stated = cells.word("recipe", recipe_families())
    if stated is not None or cells.text("switch_source") is not None:
        return stated  # a row whose switches were read at their source leaves open what that does not say
    return _BRIDGE if _BRIDGE in (cells.text("framework") or "").lower() else None


def with_recipe(cells: Cells, model: ModelSpec) -> tuple[Cells, str | None]:
    """Return a row with the switches of its nearest recipe, and what was added; None: nothing was.

    A run under Megatron-Core that names no family is one of experts that states no switch at all, or stays
    as it is: dense models have few switches, and a row that states one has stated its choice.
    """
    framework, _ = framework_of_run(cells)
    family = recipe_family_of(cells)
    if framework not in ("nemo", "megatron-core"):
        return cells, None
    silent = model.moe is not None and not any(cells.text(name) for name in _TELLING)
    if family is None and (not silent or cells.text("switch_source") is not None):
        return cells, None
    work = workload_of(cells, framework, model)
    recipe = str(work.framework_options.get("precision_recipe", work.precision))
    gpu = gpu_of_run(cells.text("gpu") or "", cells.number("gpu_memory_gb"))
    asked = Asked(model=model, gpu=gpu, format=recipe, adapters=work.lora_rank > 0)
    found = nearest_recipe(family or _UNKNOWN_FAMILY, asked)
    added = {} if found is None else cells_of(found, asked, cells.values)
    if found is None or not added:
        return cells, None
    return Cells(cells.line, {**cells.values, **added}), told(found, added)
