"""What torchtitan 0.2 and 0.3 call the values of a plan: the same names in TOML and in Python.

Names: torchtitan 0.2.2, config/job_config.py; 0.3.0, config/configs.py. The batch: without a pipeline the
local batch is one micro-batch and gradients accumulate; with one the local batch holds all of them.
"""

from __future__ import annotations

from service.launchers.target import Target

Values = dict[str, object]
SCHEDULES = {  # torch.distributed.pipelining.schedules, get_schedule_class
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved_1f1b": "Interleaved1F1B", "looped_bfs": "LoopedBFS",
    "interleaved_zb": "InterleavedZeroBubble", "zb_v": "ZBVZeroBubble", "dualpipe_v": "DualPipeV",
}  # fmt: skip
SPLITS_BACKWARD = ("interleaved_zb", "zb_v", "dualpipe_v")  # stages must not be compiled
RESHARD = {0: "default", 2: "never", 3: "always"}


def rotary_factor(target: Target) -> float:
    """The factor of Llama 3.1's rotary scaling; 1 where there is none: it then changes no frequency."""
    scaling = target.model.rotary_scaling
    return float(scaling.factor) if scaling else 1.0


def norm_epsilon(target: Target) -> float:
    """Of all norms; where the model does not state it, Llama's."""
    epsilon = target.model.norm_epsilon
    return 1e-5 if epsilon is None else epsilon


def training_values(target: Target) -> Values:
    """Batch and sequence."""
    config = target.config
    pipelined = config.pipeline_parallel_size > 1
    return {
        "local_batch_size": config.micro_batch_size * (config.num_microbatches if pipelined else 1),
        "global_batch_size": target.workload.global_batch_size,
        "seq_len": target.workload.seq_length,
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
    }


def parallelism_values(target: Target, head_name: str) -> Values:
    """The mesh, the schedule and the modules of each stage; ``head_name`` is the output layer's."""
    config = target.config
    shards = config.zero_shard_size // config.context_parallel_size if config.zero_stage else 1
    values: Values = {
        "data_parallel_replicate_degree": config.data_parallel_size // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": RESHARD[config.zero_stage],
        "tensor_parallel_degree": config.tensor_parallel_size,
        "context_parallel_degree": config.context_parallel_size,
        "pipeline_parallel_degree": config.pipeline_parallel_size,
        "expert_parallel_degree": config.expert_parallel_size,
    }
    if config.pipeline_parallel_size > 1:
        values["pipeline_parallel_schedule"] = SCHEDULES[config.pipeline_schedule]
        values["pipeline_parallel_microbatch_size"] = config.micro_batch_size
        values["module_fqns_per_model_part"] = stage_modules(config.stage_layers, head_name)
    return values


def compiled_parts(target: Target) -> list[str]:
    """What is compiled: schedules that split the backward pass refuse compiled stages.

    PyTorch's ``_check_torch_compile_compatibility`` raises for them.
    """
    return ["loss"] if target.config.pipeline_schedule in SPLITS_BACKWARD else ["model", "loss"]


def stage_modules(stage_layers: tuple[int, ...], head_name: str) -> list[list[str]]:
    """The modules of every stage in model order: a partition, since torchtitan checks none.

    Its own split counts embedding and head as a layer each, so the list is always written.
    """
    parts, first = [], 0
    for count in stage_layers:
        parts.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head_name]
    return parts


def flavor(target: Target) -> str:
    """The name under which the model is registered."""
    return f"meshwright-{target.plan.plan_id}"
