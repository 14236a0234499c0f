"""torchtitan builds ranks of a plan on fake CPU tensors, under torch's fake process group.

The trainer's own steps: mesh, the model's update, its pipelining or parallelize function. Its default
backend for sharding needs a newer torch: ``partial_dtensor`` is taken, and nothing is compiled; neither
changes a tensor that is kept.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from building import (
    Built,
    Case,
    answer,
    matrices,
)
from torch.distributed.tensor import Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

os.environ |= {"HF_ASSETS_PATH": "./tests/assets/tokenizer", "DATASET": "c4"}  # which the plan asks for
torch._utils._get_available_device_type = lambda: "cpu"  # or torchtitan takes CUDA for granted
from torchtitan.components.quantization import float8
from torchtitan.config.manager import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims

float8.has_cuda_capability = lambda *_capability: True  # as on the GPUs of the plan


def build(case: Case) -> Iterator[Built]:
    """Every rank that is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case["files"].items():
            (Path(folder) / name).write_text(text)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        for rank in case["ranks"]:
            torch.distributed.init_process_group(
                "fake", store=FakeStore(), rank=rank, world_size=case["world_size"]
            )
            try:
                yield {"rank": rank, **rank_of(case)}
            finally:
                torch.distributed.destroy_process_group()


def configured() -> Any:
    """The plan's configuration, for a CPU."""
    config: Any = ConfigManager().parse_args(["--module", "torchtitan_plan", "--config", "plan"])
    config.parallelism.spmd_backend = "partial_dtensor"
    config.compile.enable = False
    return config


def rank_of(case: Case) -> Built:
    """A rank's chunks, and what they hold."""
    config = configured()
    dims = ParallelDims.from_config(config.parallelism, case["world_size"])
    dims.build_mesh()
    parts = parallelized(config, dims)
    for part in parts:
        if part.enable_weight_tying:  # again, as ``Decoder.init_states`` does
            part.tok_embeddings.weight = part.lm_head.weight
    weights = [weight for part in parts for weight in part.parameters()]
    found: Built = {
        "stage": dims.get_mesh("pp").get_local_rank() if dims.pp > 1 else 0,
        "layers": [len(part.layers) for part in parts],
        "parameters": sum(held(weight) for weight in weights),
        "matrices": matrices(shape for part in parts for shape in shapes(part)),
        "whole_matrices": True,
    }
    return found


def shapes(part: Any) -> Iterator[tuple[int, ...]]:
    """Of its layers' matrices before any split, every expert's for itself; gate and up are one product."""
    for name, weight in part.layers.named_parameters():
        if weight.dim() > 1 and ".w3" not in name and "router" not in name:
            *experts, rows, columns = weight.shape
            yield from repeat((rows * (2 if ".w1" in name else 1), columns), *experts or (1,))


def held(weight: Any) -> int:
    """Elements of a weight that a tensor- or expert-parallel rank holds before FSDP shards them."""
    shape, mesh = list(weight.shape), getattr(weight, "device_mesh", None)
    for axis, placement in zip(mesh.mesh_dim_names, weight.placements, strict=True) if mesh else ():
        if axis in ("tp", "ep") and isinstance(placement, Shard | _StridedShard):
            shape[placement.dim] = -(-shape[placement.dim] // mesh[axis].size())
    return math.prod(shape)


def parallelized(config: Any, dims: Any) -> list[Any]:
    """The chunks of this rank as the trainer makes them."""
    spec = config.model_spec
    spec.model.update_from_config(config=config)
    with torch.device("meta"):
        model = spec.model.build()
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
    answer(build)
