"""DeepSpeed 0.19 on a CPU: its configuration, told the data-parallel size that a process group would tell.

Without an initialised group it counts a world of one, whatever it is told; so its rank is set to 0 and an
``mpu`` reports the size.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"
sys.path.remove(str(Path(__file__).parent))  # this file has the name of the package

import torch
import yaml
from deepspeed.runtime import config as module
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from deepspeed.runtime.utils import partition_balanced
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

sys.path.insert(0, str(Path(__file__).parent))
from protocol import Case, Seen, serve

STATES_OF_ADAM, SHARDED_WEIGHTS = 4, 3
BYTES_OF_HALF = 2
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
module.dist.get_rank = lambda *_args: 0
module.dist.is_initialized = lambda *_args: True


class Ranks:
    """The model-parallel unit that DeepSpeed asks for the data-parallel size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def get_data_parallel_world_size(self) -> int:
        """Ranks that see different data."""
        return self.size


def judge(case: Case) -> Seen:
    """What DeepSpeed makes of its JSON."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(case["files"]["ds_config.json"])
        file.flush()
        config = DeepSpeedConfig(file.name, mpu=Ranks(case["data_parallel_size"]))
    zero = config.zero_config
    raw = json.loads(case["files"]["ds_config.json"])
    taken_as_it_comes(zero)
    if "accelerate.yaml" in case["files"]:
        started_by_accelerate(yaml.safe_load(case["files"]["accelerate.yaml"]), case, zero)
    tensor_ranks = raw.get("tensor_parallel", {}).get("autotp_size", 1)
    precisions = {"bf16": config.bfloat16_config.enabled, "fp16": config.float16_config.enabled}
    half = config.bfloat16_config
    return {
        "masters": "bf16" if half.bf16_master_weights_and_grads and half.bf16_optimizer_states else "fp32",
        "precision": next((name for name, on in precisions.items() if on), "fp32"),
        "reduced_in": DTYPES[config.communication_data_type],
        "reduces_behind": bool(zero.overlap_comm) if zero.stage else False,
        "global_batch_size": config.train_batch_size,
        "micro_batch_size": config.train_micro_batch_size_per_gpu,
        "num_microbatches": config.gradient_accumulation_steps,
        "zero_stage": int(zero.stage),
        "tensor_parallel_size": tensor_ranks,
        "data_parallel_size": config.world_size,
        "offload": offload_of(zero),
        **switches_of(zero),
        **code_of(case["files"].get("deepspeed_plan.py", ""), tensor_ranks),
    }


def started_by_accelerate(given: dict[str, Any], case: Case, zero: DeepSpeedZeroConfig) -> None:
    """accelerate's plugin starts as many ranks with the same file, and weights where they are split."""
    plugin, ranks = given["deepspeed_config"], (given["num_processes"], given["num_machines"])
    if (given["distributed_type"], given["use_cpu"]) != ("DEEPSPEED", False):
        raise ValueError("accelerate starts another run")
    if ranks != (case["world_size"], case["node_rank"] + 1):
        raise ValueError(f"accelerate starts {ranks} processes and nodes")
    if plugin != {
        "deepspeed_config_file": "ds_config.json",
        "zero3_init_flag": zero.stage == SHARDED_WEIGHTS,
    }:
        raise ValueError(f"accelerate's plugin is told {plugin}")


def taken_as_it_comes(zero: DeepSpeedZeroConfig) -> None:
    """Require DeepSpeed's own sizes of what stays gathered, under which costs were fitted."""
    plain = DeepSpeedZeroConfig(stage=zero.stage)
    names = ["contiguous_gradients", "reduce_scatter", "allgather_bucket_size"]
    if zero.stage == SHARDED_WEIGHTS:
        names += ["max_live_parameters", "max_reuse_distance", "prefetch_bucket_size",
                  "param_persistence_threshold", "gather_16bit_weights_on_model_save"]  # fmt: skip
    for name in names:
        if getattr(zero, name) != getattr(plain, name):
            raise ValueError(f"{name} is {getattr(zero, name)}, DeepSpeed's own {getattr(plain, name)}")


def offload_of(zero: DeepSpeedZeroConfig) -> str:
    """What leaves the GPU; the optimizer asks drives for a path and for a buffer of each state."""
    words = []
    for name, part in (("optimizer", zero.offload_optimizer), ("parameters", zero.offload_param)):
        if part is None or part.device == "none":
            continue
        drive = part.device == "nvme"
        assert part.nvme_path is not None or not drive, f"{name}: no nvme_path"
        words.append(name + "@nvme" * drive)
    if "optimizer@nvme" in words:  # swap_tensor: parameter, gradient, two moments
        assert zero.offload_optimizer.buffer_count >= STATES_OF_ADAM
        assert zero.stage == SHARDED_WEIGHTS
    return "+".join(words) or "none"


def switches_of(zero: DeepSpeedZeroConfig) -> Seen:
    """Return the options that a plan varies: the bucket of reductions and updates behind the GPU's work."""
    seen: Seen = {"facts.bucket_bytes": zero.reduce_bucket_size * BYTES_OF_HALF} if zero.stage else {}
    if zero.zero_hpz_partition_size > 1:
        seen["facts.secondary_shard_size"] = zero.zero_hpz_partition_size
    if zero.offload_optimizer is not None:
        seen["facts.super_offload"] = zero.offload_optimizer.super_offload
        seen["facts.cpu_update_interval"] = zero.zenflow.update_interval if zero.zenflow else 1
    return seen


def code_of(code: str, tensor_ranks: int) -> Seen:
    """What the user's script imports: sizes, ranks, stages and experts."""
    values: dict[str, Any] = {}
    exec(code, values)  # noqa: S102 - the file that the user's script imports
    topology = PipeModelDataParallelTopology(**values["TOPOLOGY"])
    if values["WORLD_SIZE"] != topology.world_size():
        raise ValueError("the topology has not the ranks of the world")
    if topology.get_dim("model") != tensor_ranks:
        raise ValueError("the topology has not AutoTP's ranks")
    seen = {
        "num_gpus": topology.world_size(),
        "seq_length": values["SEQ_LENGTH"],
        "pipeline_parallel_size": topology.get_dim("pipe"),
        "recompute_granularity": "full" if values["RECOMPUTE_EVERY_LAYER"] else "none",
        "model": dict(values["MODEL"]),
        **stages_of(values),
    }
    if experts := values.get("EXPERTS"):
        seen["expert_parallel_size"] = experts["ep_size"]
        seen["model"] |= {"moe.num_experts": experts["num_experts"], "moe.top_k": experts["k"]}
        seen["model"]["moe.ffn_hidden_size"] = values["EXPERT_FFN_HIDDEN_SIZE"]
    return seen


def stages_of(values: dict[str, Any]) -> Seen:
    """Layers of each stage as ``PipelineModule`` has them (runtime/pipe/module.py:412)."""
    pipeline, layers = values.get("PIPELINE"), values["MODEL"]["num_layers"]
    if pipeline is None:
        return {}
    if (pipeline["partition_method"], pipeline["checkpointable_layers"]) != (
        f"type:{pipeline['checkpointable_layers'][0]}", pipeline["checkpointable_layers"][:1]
    ):  # fmt: skip
        raise ValueError("stages are balanced by other layers than are recomputed")
    if pipeline["activation_checkpoint_interval"] != int(values["RECOMPUTE_EVERY_LAYER"]):
        raise ValueError("layers are recomputed in groups, or in one of two places")
    binary = [0, *[1] * layers, 0, 0]  # an embedding before, norm and head behind
    parts = partition_balanced(weights=binary, num_parts=pipeline["num_stages"])
    return {
        "stage_layers": [sum(binary[begin:end]) for begin, end in pairwise(parts)],
        "num_microbatches": values["MICRO_BATCHES"],
    }


if __name__ == "__main__":
    serve(judge)
