"""torchtitan 0.3 on a CPU: the configuration, the mesh, and the model's update from it."""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.remove(str(Path(__file__).parent))  # this file has the name of the package

os.environ |= {"HF_ASSETS_PATH": "./tests/assets/tokenizer", "DATASET": "c4"}
from torch.distributed.pipelining.schedules import get_schedule_class
from torchtitan.components.quantization import float8
from torchtitan.config.manager import ConfigManager
from torchtitan.distributed.parallel_dims import ParallelDims
from torchtitan.models.common.linear import Linear

float8.has_cuda_capability = lambda *_capability: True  # as on the GPUs of the plan
sys.path.insert(0, str(Path(__file__).parent))
import torchtitan_model  # noqa: E402
from protocol import Case, Seen, serve  # noqa: E402
from stand_ins import StandIns  # noqa: E402

# kernels of delta nets, and readers of images, which load torchvision
StandIns(entered=(), silent=("fla", "torchtitan.hf_datasets.multimodal.utils.image"))

SCHEDULES = {
    "1F1B": "1f1b", "GPipe": "gpipe", "Interleaved1F1B": "interleaved_1f1b", "LoopedBFS": "looped_bfs",
    "InterleavedZeroBubble": "interleaved_zb", "ZBVZeroBubble": "zb_v", "DualPipeV": "dualpipe_v",
}  # fmt: skip


ZERO = {"always": 3, "never": 2}


def judge(case: Case) -> Seen:
    """What torchtitan makes of the plan's files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in case["files"].items():
            (Path(folder) / name).write_text(text)
        sys.path.insert(0, folder)
        try:
            return of_module(case)
        finally:
            sys.path.remove(folder)
            sys.modules.pop("torchtitan_plan", None)
            importlib.invalidate_caches()


def of_module(case: Case) -> Seen:
    """The module's function, then what the trainer does before it builds the model."""
    config: Any = ConfigManager().parse_args(["--module", "torchtitan_plan", "--config", "plan"])
    dims = ParallelDims.from_config(config.parallelism, case["world_size"])
    model = config.model_spec.model
    model.update_from_config(config=config)
    spec = config.model_spec
    for one in (spec.post_optimizer_build_fn, spec.state_dict_adapter):
        if one is not None and not callable(one):
            raise TypeError(f"{one} is no function")
    recompute = type(config.activation_checkpoint).__qualname__.removesuffix("AC.Config").lower()
    seen = seen_of(config, dims)
    seen["compiled"] = config.compile.enable and [*config.compile.components] == ["model", "loss"]
    seen["model"] = torchtitan_model.facts_of(model)
    if hasattr(config.dataloader, "max_pixels"):
        seen["most_pixels"] = pixels_of(config.dataloader, model.vision_encoder)
    seen["recompute_granularity"] = {"nonetype": "none"}.get(recompute, recompute)
    eighth = [one for one in model.traverse(Linear.Config) if "Float8" in type(one[1]).__qualname__]
    seen["precision"] = "fp8" if eighth else "bf16"
    if eighth:
        assert len(eighth) == len([*model.traverse(Linear.Config)]) - 1 - routers(model)  # but the head
        seen["precision_recipe"] = "fp8-rowwise"  # it names what Float8Linear was told
        assert config_of(eighth) == "AXISWISE"
    seen["facts.overlap_tensor"] = config.compile.enable_async_tensor_parallel
    if dims.tp > 1:
        seen["sequence_parallel"] = config.parallelism.enable_sequence_parallel
    return seen


def pixels_of(loader: Any, tower: Any) -> int:
    """The largest image, whose patches are the tower's."""
    for name in ("patch_size", "temporal_patch_size", "spatial_merge_size"):
        if getattr(loader, name) != getattr(tower, name):
            raise ValueError(f"{name} {getattr(loader, name)}, of the tower {getattr(tower, name)}")
    if not loader.build_mrope_positions:
        raise ValueError("positions of text alone")
    return int(loader.max_pixels)


def routers(model: Any) -> int:
    """Layers with a router."""
    return sum(layer.moe is not None for layer in model.layers)


def config_of(eighth: list[Any]) -> str:
    """How torchao scales the weights of these layers."""
    (name,) = {one[1]._torchao_config.cast_config_weight.scaling_granularity.name for one in eighth}
    return str(name)


def seen_of(config: Any, dims: Any) -> Seen:
    """The plan as torchtitan understood it."""
    pp, parts = dims.pp, config.parallelism.module_fqns_per_model_part
    split = [config_layers(part) for part in parts] if parts else None
    local, gbs = config.training.local_batch_size, config.training.global_batch_size
    dp = dims.dp_replicate * dims.dp_shard
    mbs = config.parallelism.pipeline_parallel_microbatch_size if pp > 1 else local
    if pp > 1:
        get_schedule_class(config.parallelism.pipeline_parallel_schedule)
    kept = (
        config.training.mixed_precision_param,
        config.training.mixed_precision_reduce,
        config.training.dtype,
    )
    if kept != ("bfloat16", "float32", "float32"):
        raise ValueError(f"weights, reductions and copies in {kept}")
    seen: Seen = {
        "seq_length": config.training.seq_len,
        "zero_stage": ZERO[config.parallelism.fsdp_reshard_after_forward]
        if dims.dp_shard_enabled or dims.cp > 1
        else 0,
        "zero_shard_size": dims.dp_shard * dims.cp if dims.dp_shard_enabled or dims.cp > 1 else 1,
        "tensor_parallel_size": dims.tp,
        "context_parallel_size": dims.cp,
        "pipeline_parallel_size": pp,
        "data_parallel_size": dp,
        "expert_parallel_size": dims.ep,
        "micro_batch_size": mbs,
        "num_microbatches": gbs // (dp * mbs),
        "global_batch_size": gbs,
    }
    if split is not None:
        seen["stage_layers"] = split
        seen["virtual_pipeline_size"] = len(split) // pp
        seen["pipeline_schedule"] = SCHEDULES[config.parallelism.pipeline_parallel_schedule]
    return seen


def config_layers(part: list[str]) -> int:
    """Transformer layers of one stage."""
    return sum(name.startswith("layers.") for name in part)


if __name__ == "__main__":
    serve(judge)
