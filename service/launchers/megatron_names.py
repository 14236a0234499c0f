"""A plan in the names of Megatron-Core's own configuration, which several launchers share.

Names: TransformerConfig and ModelParallelConfig of Megatron-Core 0.17 to 0.19. None stands for "not set".
"""

from __future__ import annotations

from collections.abc import Iterator

from profiles.frameworks import FrameworkFacts
from profiles.model import ModelSpec
from service.launchers.megatron_lm_layout import is_even, layout
from service.launchers.target import Target
from service.launchers.torchrun import Variable
from solver.columns import Columns
from solver.cost.communication import experts_overlap
from solver.plan import Configuration

Values = dict[str, object]
STAGES_BEFORE_DATA = "tp-cp-pp-dp"  # of use_tp_pp_dp_mapping; without it tp-cp-dp-pp
# All states on CPUs, updated there; Megatron-Core's OptimizerConfig.
OFFLOADED_OPTIMIZER: Values = {
    "use_precision_aware_optimizer": True, "optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0,
}  # fmt: skip
CONTEXT_MODES = {"ring": "p2p", "all_to_all": "a2a"}  # of cp_comm_type
FIRST_ARCHITECTURES_WITHOUT_ONE_CONNECTION = ("blackwell",)
# Megatron-LM 0.16.1, training/arguments.py:940-950: "set CUDA_DEVICE_MAX_CONNECTIONS to 1 or 32", which
# depends on whether tensor parallelism or overlapped experts come first.
MANY_CONNECTIONS = "32"
MANY_CONNECTIONS_REASON = "All-to-alls of experts run beside computing on hardware queues of their own."


def parallel_values(target: Target) -> Values:
    """Sizes of all axes, and sequence parallelism; data parallelism follows from them."""
    config = target.config
    values: Values = {
        "tensor_model_parallel_size": config.tensor_parallel_size,
        "sequence_parallel": config.sequence_parallel and config.tensor_parallel_size > 1,
        "pipeline_model_parallel_size": config.pipeline_parallel_size,
        "context_parallel_size": config.context_parallel_size,
    }
    if target.model.moe:
        values["expert_model_parallel_size"] = config.expert_parallel_size
    return values


def split_values(target: Target) -> Values:
    """Virtual stages, and the layout of a split that is not even."""
    config = target.config
    virtual = config.virtual_pipeline_size
    values: Values = {"virtual_pipeline_model_parallel_size": virtual if virtual > 1 else None}
    if not is_even(config.stage_layers):
        values["pipeline_model_parallel_layout"] = layout(config.stage_layers, target.model.num_mtp_layers)
    return values


def recompute_values(target: Target) -> Values:
    """Granularity, method and count; ``uniform`` with groups of 1 is every layer."""
    config = target.config
    if config.recompute_granularity == "none":
        return {"recompute_granularity": None}
    if config.recompute_granularity == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": "core_attn"}
    every = config.recompute_layers >= max(config.stage_layers)
    return {
        "recompute_granularity": "full",
        "recompute_method": "uniform" if every else "block",
        "recompute_num_layers": 1 if every else config.recompute_layers,
    }


def may_overlap_experts(config: Configuration, model: ModelSpec) -> bool:
    """Whether Megatron-Core starts this configuration with all-to-alls of experts under computing."""
    return bool(experts_overlap(Columns.of([config]), model)[0])


def overlapped(target: Target, facts: FrameworkFacts) -> bool:
    """Whether the plan was priced with all-to-alls of experts under another micro-batch's computing."""
    return facts.overlap_experts and may_overlap_experts(target.config, target.model)


def environment(target: Target, *, overlaps_experts: bool = False) -> Iterator[Variable]:
    """What Megatron-Core reads from the environment for this plan."""
    config = target.config
    split = config.tensor_parallel_size > 1 or config.context_parallel_size > 1
    if config.zero_stage > 1:
        reason = "Megatron-FSDP overlaps collectives on several hardware queues and refuses a single one."
        yield Variable(name="CUDA_DEVICE_MAX_CONNECTIONS", value=None, reason=reason)
    elif overlaps_experts:
        yield Variable(
            name="CUDA_DEVICE_MAX_CONNECTIONS", value=MANY_CONNECTIONS, reason=MANY_CONNECTIONS_REASON
        )
    elif split and target.gpu.architecture not in FIRST_ARCHITECTURES_WITHOUT_ONE_CONNECTION:
        reason = "Before Blackwell, one hardware queue keeps tensor and context traffic ahead of GEMMs."
        yield Variable(name="CUDA_DEVICE_MAX_CONNECTIONS", value="1", reason=reason)


def distributed_optimizer(target: Target) -> Values:
    """ZeRO 0 and 1, with what overlaps: gradients under the backward pass, weights under the forward."""
    sharded = target.config.zero_stage > 0
    return {
        "use_distributed_optimizer": sharded,
        "overlap_grad_reduce": True,
        "overlap_param_gather": sharded,
    }
