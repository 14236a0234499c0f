"""Which facts of the framework become flags: the search priced the plan under exactly these."""

from __future__ import annotations

from profiles.frameworks import FrameworkFacts, framework_facts, with_options
from service.launchers.megatron_names import overlapped
from service.launchers.target import Target

FRAMEWORK = "megatron-core"
FIRST_FSDP_STAGE = 2
ARCHITECTURES_WITHOUT_FLASH = ("volta", "turing")  # FlashAttention 2 and cuDNN's start with Ampere
ATTENTION_BACKENDS = {
    "flash1": "flash", "flash2": "flash", "flash3": "flash", "cudnn": "fused",
    "megatron-fused": "unfused", "torch": "unfused",
}  # fmt: skip
FP8_RECIPES = {
    "none": "delayed", "fp8-delayed": "delayed", "fp8-current": "tensorwise", "fp8-blockwise": "blockwise",
    "mxfp8": "mxfp8",
}  # fmt: skip
# Facts that no flag changes: what Megatron-Core with Transformer Engine always does.
FIXED_FACTS = {"norm_fused": True, "logits_sharded": True, "main_gradient": True, "scatter_transfer": False}


def facts(target: Target) -> FrameworkFacts:
    """Megatron-Core's facts with the workload's own options.

    Raises:
        InvalidProblemError: an option is unknown or has a value of the wrong kind.
    """
    return with_options(framework_facts(FRAMEWORK), target.workload.framework_options)


def is_fsdp(target: Target) -> bool:
    """Whether the plan runs under Megatron-FSDP (ZeRO 2 and 3)."""
    return target.config.zero_stage >= FIRST_FSDP_STAGE


def uses_fp8(target: Target) -> bool:
    """Whether linear layers run in fp8: the workload's precision, or a recipe that asks for it."""
    return target.workload.precision == "fp8" or facts(target).precision_recipe != "none"


def lacks_flash(target: Target) -> bool:
    """Whether the plan counts on attention without a score matrix on a GPU that has none."""
    return facts(target).flash and target.gpu.architecture in ARCHITECTURES_WITHOUT_FLASH


def attention_backend(target: Target) -> str:
    """Transformer Engine's attention: that of the facts, unfused where the GPU can run nothing else."""
    if lacks_flash(target):
        return "unfused"
    if target.model.attention_sinks:
        return "fused"  # Transformer Engine 2.9, attention utils.py:694: flash attention is disabled
    return ATTENTION_BACKENDS.get(facts(target).attention_kernel, "auto")


def overlaps_tensor(target: Target) -> bool:
    """Whether tensor-parallel collectives run under GEMMs: userbuffers, with sequence parallelism."""
    return bool(facts(target).overlap_tensor and target.config.sequence_parallel)


def overlaps_experts(target: Target) -> bool:
    """Whether all-to-alls of experts run under the computing of another micro-batch."""
    return overlapped(target, facts(target))
