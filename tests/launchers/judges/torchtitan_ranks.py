"""torchtitan 0.3 builds every rank of a plan on the meta device, under torch's fake process group.

The trainer's own steps up to the first weight: mesh, the model's update, and its real pipelining or
parallelize function. Its default backend for sharding needs a newer torch: ``partial_dtensor`` is taken,
and nothing is compiled; neither changes a weight.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import tempfile
from collections import Counter
from copy import copy, deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.remove(str(Path(__file__).parent))  # a judge beside this one has the name of the package

import torch
from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

os.environ |= {"HF_ASSETS_PATH": "./tests/assets/tokenizer", "DATASET": "c4"}  # which the plan asks for
torch._utils._get_available_device_type = lambda: "cpu"  # or torchtitan takes CUDA for granted
from torchtitan.components.quantization import float8  # noqa: E402
from torchtitan.config.manager import ConfigManager  # noqa: E402
from torchtitan.distributed import pipeline_parallel  # noqa: E402
from torchtitan.distributed.parallel_dims import ParallelDims  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
import torchtitan_model  # noqa: E402
from protocol import Case, Seen, serve  # noqa: E402

float8.has_cuda_capability = lambda *_capability: True  # as on the GPUs of the plan


def copied(module: torch.nn.Module, known: dict[int, torch.nn.Module] | None = None) -> torch.nn.Module:
    """The model for a rank or a stage, with modules of its own; weights, which it replaces, are shared."""
    known = {} if known is None else known
    if id(module) not in known:
        found = known[id(module)] = copy(module)
        for name, value in vars(module).items():
            vars(found)[name] = value.copy() if isinstance(value, dict | set) else value
        for name, part in module._modules.items():
            found._modules[name] = None if part is None else copied(part, known)
    return known[id(module)]


pipeline_parallel.copy = SimpleNamespace(deepcopy=copied)  # of each stage: half of the judge's time


def judge(case: Case) -> Seen:
    """Layers of every chunk and weights of every rank that is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case["files"].items():
            (Path(folder) / name).write_text(text)
        sys.path.insert(0, folder)
        try:
            config: Any = ConfigManager().parse_args(["--module", "torchtitan_plan", "--config", "plan"])
            facts = torchtitan_model.facts_of(config.model_spec.model)
            config.parallelism.spmd_backend = "partial_dtensor"
            config.compile.enable = False
            config.model_spec.model.update_from_config(config=config)
            with torch.device("meta"):
                model = config.model_spec.model.build()  # the same on every rank, before it is split
            ranks = [built(deepcopy(config), copied(model), case, rank) for rank in case["ranks"]]
            return {"ranks": ranks, "model": facts}
        finally:
            sys.path.remove(folder)
            sys.modules.pop("torchtitan_plan", None)
            importlib.invalidate_caches()


def built(config: Any, model: torch.nn.Module, case: Case, rank: int) -> Seen:
    """One rank: its chunks of the model, each on the meta device."""
    size = case["world_size"]
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        dims = ParallelDims.from_config(config.parallelism, size)
        dims.build_mesh()
        parts = parallelized(config, model, dims)
        for part in parts:
            if part.enable_weight_tying:  # again, as ``Decoder.init_states`` does
                part.tok_embeddings.weight = part.lm_head.weight
        return {
            "stage": dims.get_mesh("pp").get_local_rank() if dims.pp > 1 else 0,
            "layers": [len(part.layers) for part in parts],
            "weights": sum(weight.to_local().numel() for part in parts for weight in part.parameters()),
            "unsharded": sum(held(weight) for part in parts for weight in part.parameters()),
            "whole_matrices": matrices(parts),
        }
    finally:
        torch.distributed.destroy_process_group()


def held(weight: Any) -> int:
    """Elements of a weight that a tensor- or expert-parallel rank holds before FSDP shards them."""
    shape, mesh = list(weight.shape), getattr(weight, "device_mesh", None)
    for axis, placement in zip(mesh.mesh_dim_names, weight.placements, strict=True) if mesh else ():
        if axis in ("tp", "ep") and isinstance(placement, Shard | _StridedShard):
            shape[placement.dim] = -(-shape[placement.dim] // mesh[axis].size())
    return math.prod(shape)


def matrices(parts: list[Any]) -> list[list[int]]:
    """Rows, columns and number of the layers' matrices before any split; gate and up are one product."""
    found = Counter[tuple[int, ...]]()
    for part in parts:
        for name, weight in part.layers.named_parameters():
            if weight.dim() < 2 or ".w3" in name or "router" in name:
                continue
            *experts, rows, columns = weight.shape
            found[rows * (2 if ".w1" in name else 1), columns] += experts[0] if experts else 1
    return sorted([*shape, count] for shape, count in found.items())


def parallelized(config: Any, model: torch.nn.Module, dims: Any) -> list[Any]:
    """The chunks of this rank as the trainer makes them."""
    spec = config.model_spec
    given = {
        "parallel_dims": dims, "training": config.training, "parallelism": config.parallelism,
        "compile_config": config.compile, "ac_config": config.activation_checkpoint, "dump_folder": "",
    }  # fmt: skip
    if dims.pp == 1:
        return [spec.parallelize_fn(model, **given)]
    _schedule, parts, _first, _last = spec.pipelining_fn(
        model, **given, device=torch.device("cpu"), model_config=spec.model,
        parallelize_fn=spec.parallelize_fn, loss_fn=config.loss.build(compile_config=config.compile),
    )  # fmt: skip
    return list(parts)


if __name__ == "__main__":
    serve(judge)
