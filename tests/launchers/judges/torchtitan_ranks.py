"""torchtitan 0.3 builds every rank of a plan on the meta device, under torch's fake process group.

The trainer's own steps up to the first weight: mesh, the model's update, and its real pipelining or
parallelize function. Its default backend for sharding needs a newer torch: ``partial_dtensor`` is taken,
and nothing is compiled; neither changes a weight.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.remove(str(Path(__file__).parent))  # a judge beside this one has the name of the package

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore

torch._utils._get_available_device_type = lambda: "cpu"  # or torchtitan takes CUDA for granted
from torchtitan.config.manager import ConfigManager  # noqa: E402
from torchtitan.distributed.parallel_dims import ParallelDims  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from protocol import Case, Seen, serve  # noqa: E402


def judge(case: Case) -> Seen:
    """Layers of every chunk and weights of every rank that is asked for."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case["files"].items():
            (Path(folder) / name).write_text(text)
        sys.path.insert(0, folder)
        try:
            return {"ranks": [built(case["world_size"], rank) for rank in case["ranks"]]}
        finally:
            sys.path.remove(folder)
            sys.modules.pop("torchtitan_plan", None)
            importlib.invalidate_caches()


def built(world_size: int, rank: int) -> Seen:
    """One rank: its chunks, each on the meta device."""
    config: Any = ConfigManager().parse_args(["--module", "torchtitan_plan", "--config", "plan"])
    config.parallelism.spmd_backend = "partial_dtensor"
    config.compile.enable = False
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        dims = ParallelDims.from_config(config.parallelism, world_size)
        dims.build_mesh()
        parts = parallelized(config, dims)
        return {
            "stage": dims.get_mesh("pp").get_local_rank() if dims.pp > 1 else 0,
            "layers": [len(part.layers) for part in parts],
            "weights": sum(weight.to_local().numel() for part in parts for weight in part.parameters()),
        }
    finally:
        torch.distributed.destroy_process_group()


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
    serve(judge)
