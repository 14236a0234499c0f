"""Writes which switches Megatron-Bridge's performance recipes set, as cells of a table of runs.

    python -m benchmarks.catalog.performance_recipes .../megatron/bridge RELEASE

takes the folder of a release's sources with ``recipes`` and ``perf_recipes``. Its functions are read as
``bridge_recipes`` reads them; none is run, and nothing that was measured is read.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.catalog.bridge_recipes import UNKNOWN, Recipes, Values
from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec

TABLE = CATALOG / "recipes" / "performance.json"
FAMILY = "megatron-bridge"
_NAME = re.compile(
    r"(?P<model>\w+?)_(?P<task>pretrain|sft|peft)_\d+gpu_(?P<gpu>h100|b200|b300|gb200|gb300)_"
    r"(?P<format>bf16|fp8cs|fp8sc|fp8mx|nvfp4)_config"
)
_FORMATS = {
    "bf16": "bf16",
    "fp8cs": "fp8-current",
    "fp8sc": "fp8-blockwise",
    "fp8mx": "mxfp8",
    "nvfp4": "nvfp4",
}
# Recipes that compute their shape, by the catalog's names.
_SHAPES = {"nemotron_3_nano": "nemotron-3-nano-30b-a3b", "nemotronh_56b": "nemotron-h-56b"}
_FLAGS = {
    "model.moe_permute_fusion": "moe_permute_fusion", "model.moe_router_fusion": "moe_router_fusion",
    "model.moe_router_force_load_balancing": "moe_router_force_balance",
    "model.moe_shared_expert_overlap": "moe_shared_expert_overlap",
    "comm_overlap.overlap_moe_expert_parallel_comm": "expert_overlap",
    "comm_overlap.delay_wgrad_compute": "delay_wgrad", "model.cross_entropy_loss_fusion": "loss_fused",
    "mixed_precision.fp8_dot_product_attention": "fp8_attention",
}  # fmt: skip
_PARTS = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")  # of a captured layer
_STATES = {"bfloat16": "bf16", "float32": "fp32"}
_OF_EXPERTS = ("moe_", "expert_", "delay_wgrad")


def _merged(folder: Path) -> tuple[Recipes, dict[str, str]]:
    """Return all functions of a release, and the performance recipes by their public names.

    Some share their name with the recipe that they start from: those are kept under another one.
    """
    found, performance = Recipes(folder / "recipes"), Recipes(folder / "perf_recipes")
    names = {}
    for name, function in performance.functions.items():
        module = performance._modules[id(function)]  # noqa: SLF001 - one reader of two folders
        kept = f"performance {name}" if name in found.functions else name
        if kept != name:
            module[kept] = module.pop(name, function)
        found.functions[kept], names[name] = function, kept
        found._modules[id(function)] = module  # noqa: SLF001
    for alias, of in performance.aliases.items():
        found.aliases.setdefault(alias, of)
    precisions = Recipes(folder / "training")  # mixed_precision.py
    found.functions = precisions.functions | found.functions
    found._modules |= precisions._modules  # noqa: SLF001
    return found, names


def _graphs(values: Values) -> str | None:
    """Return the captured parts as a table names them."""
    kind, scope = values.get("model.cuda_graph_impl"), values.get("model.cuda_graph_scope")
    parts = [scope] if isinstance(scope, str) else list(scope or ())
    if UNKNOWN in (kind, *parts):
        return None
    if kind in (None, "none"):
        return "none"
    if kind == "full_iteration" or "full_iteration" in parts:
        return "full_iteration"
    return "+".join(part for part in _PARTS if part in parts) or "layer"


def _recomputed(values: Values) -> dict[str, str]:
    kind, modules = values.get("model.recompute_granularity"), values.get("model.recompute_modules")
    layers = values.get("model.recompute_num_layers")
    if UNKNOWN in (kind, modules, layers):
        return {}
    if kind == "full":
        of_a_block = values.get("model.recompute_method") == "block" and isinstance(layers, int)
        return {"recompute": "full"} | ({"recompute_layers": str(layers)} if of_a_block else {})
    if modules:
        return {"recompute": "selective", "recompute_modules": "+".join(modules)}
    return {"recompute": "none"}


def _cells(values: Values, model: ModelSpec) -> dict[str, str]:
    """Return what a recipe sets, as cells of a table of runs; unknown values have none."""
    cells = {
        name: str(int(held)) for key, name in _FLAGS.items() if isinstance(held := values.get(key), bool)
    }
    cells |= {"norm_fused": "1", **_recomputed(values)}  # Transformer Engine's norms
    graphs, backend = _graphs(values), values.get("model.moe_flex_dispatcher_backend")
    kind = values.get("model.moe_token_dispatcher_type")
    if graphs:
        cells["cuda_graph"] = graphs
    if kind in ("alltoall", "allgather", "flex") and (backend or kind != "flex"):
        cells["moe_dispatcher"] = str(backend if kind == "flex" else kind)
    reduced = values.get("mixed_precision.grad_reduce_in_fp32", values.get("ddp.grad_reduce_in_fp32"))
    if isinstance(reduced, bool):
        cells["gradient_dtype"] = "fp32" if reduced else "bf16"
    if values.get("mixed_precision.fp8") or values.get("mixed_precision.fp4"):
        cells["fp8_param_gather"] = str(int(values.get("mixed_precision.fp8_param_gather") is True))
    if (state := _STATES.get(str(values.get("optimizer.exp_avg_dtype")))) is not None:
        cells["optimizer_state_dtype"] = state
    if values.get("ddp.use_megatron_fsdp") is True:
        cells |= {"fsdp_kind": "megatron_fsdp", "zero_stage": "3"}
    if values.get("model.cpu_offloading") is True and values.get("model.cpu_offloading_num_layers"):
        layers = values["model.cpu_offloading_num_layers"]
        cells |= {"offload": "activations", "offload_layers": str(layers)}
    if model.moe is None or not model.moe.num_shared_experts:
        cells.pop("moe_shared_expert_overlap", None)
    of_experts = model.moe is not None
    return {name: cell for name, cell in cells.items() if of_experts or not name.startswith(_OF_EXPERTS)}


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    recipes, names = _merged(folder)
    for name, kept in sorted(names.items()):
        named = _NAME.fullmatch(name)
        values = recipes.values(kept) if named else {}
        if named is None or not values:
            continue
        try:
            model = find_model(_SHAPES.get(named["model"]) or str(values.get("model.hub_id")))
        except InvalidProblemError:
            print(f"not in the catalog: {name}", file=sys.stderr)
            continue
        yield {
            "family": FAMILY, "name": name, "model": model.name, "gpu": named["gpu"],
            "format": _FORMATS[named["format"]], "adapters": named["task"] == "peft",
            "cells": _cells(values, model),
        }  # fmt: skip


def main(folder: str, release: str) -> None:
    """Write the table."""
    rows = list(_rows(Path(folder)))
    source = f"NVIDIA-NeMo/Megatron-Bridge {release}, src/megatron/bridge/perf_recipes, Apache-2.0"
    lines = ",\n".join(f"  {json.dumps(row, sort_keys=True)}" for row in rows)
    TABLE.write_text(f'{{\n "source": "{source}",\n "recipes": [\n{lines}\n ]\n}}\n', "utf-8")
    print(f"{TABLE}: {len(rows)} recipes")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
