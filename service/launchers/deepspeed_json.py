"""DeepSpeed's own file. Keys: DeepSpeed 0.19.8, runtime/config.py and runtime/zero/config.py."""

from __future__ import annotations

import json

from profiles.frameworks import framework_facts, with_options
from service.launchers.target import Target
from solver.plan import Configuration

JSON_FILE = "ds_config.json"
HEADER_KEY = "_meshwright"  # JSON has no comments; DeepSpeed reads the keys it knows
# Elements of 500 million and DeepSpeed's other defaults: the catalog's facts were taken with them.
_BUCKET = 500_000_000
_STAGE_3 = {
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_gather_16bit_weights_on_model_save": False,
}
SHARDED_WEIGHTS = 3


def json_file(head: str, target: Target) -> str:
    """Batch, precision, ZeRO and AutoTP; the header stands under a key of its own."""
    config, workload = target.config, target.workload
    gradients = with_options(framework_facts("deepspeed"), workload.framework_options).gradient_dtype
    values: dict[str, object] = {
        HEADER_KEY: [line.removeprefix("# ") for line in head.splitlines()],
        "train_batch_size": workload.global_batch_size,
        "train_micro_batch_size_per_gpu": config.micro_batch_size,
        "gradient_accumulation_steps": config.num_microbatches,
        "steps_per_print": 1,  # by default DeepSpeed logs no time at all (runtime/constants.py)
        "bf16": {"enabled": workload.precision == "bf16"},
        "fp16": {"enabled": workload.precision == "fp16"},
        "communication_data_type": workload.precision if gradients != "fp32" else "fp32",
        "zero_optimization": _zero(config),
    }
    if config.tensor_parallel_size > 1:
        values["tensor_parallel"] = {"autotp_size": config.tensor_parallel_size}
    return json.dumps(values, indent=2) + "\n"


def _zero(config: Configuration) -> dict[str, object]:
    stage = config.zero_stage
    values: dict[str, object] = {"stage": stage}
    if stage:
        values |= {
            "overlap_comm": stage == SHARDED_WEIGHTS,  # absent means the same: only stage 3
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "reduce_bucket_size": _BUCKET,
            "allgather_bucket_size": _BUCKET,
        }
    if config.offload == "optimizer":
        values["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return values | (_STAGE_3 if stage == SHARDED_WEIGHTS else {})
