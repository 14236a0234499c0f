"""Mixed precision of Megatron-Bridge: a recipe's name, or the same recipe with another gradient dtype.

Megatron-Bridge 0.3.1, training/mixed_precision.py: ``MixedPrecisionConfig.setup`` writes the recipe's
``grad_reduce_in_fp32`` over that of ``ddp``, so that only a configuration of one's own changes it.
training/utils/omegaconf_utils.py builds such a one from an override with ``_target_``; a recipe that holds
an object already is set to ``null`` first, because Hydra would merge the two. From 0.4 on the modifier
``_bf16_grad_reduce`` of a recipe's name does the same, and is read too.
"""

from __future__ import annotations

from profiles.frameworks import FrameworkFacts, framework_facts, with_options
from service.launchers.target import Target

FP8_RECIPES = {
    "none": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8-delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8-current": "bf16_with_fp8_current_scaling_mixed",
    "fp8-blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
}
LOW_GRADIENTS = "_bf16_grad_reduce"
CONFIG_CLASS = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
_IN_LOW_PRECISION = ("fp16_mixed",)  # recipes that reduce gradients in 16 bits by themselves
# What the recipes hold beyond the plain one of their precision.
_OF_RECIPES: dict[str, dict[str, str]] = {
    "bf16_mixed": {},
    "fp16_mixed": {},
    "bf16_with_fp8_delayed_scaling_mixed": {
        "fp8": "hybrid", "fp8_recipe": "delayed", "fp8_amax_history_len": "1024",
        "fp8_amax_compute_algo": "max", "fp8_param_gather": "true",
    },
    "bf16_with_fp8_current_scaling_mixed": {
        "fp8": "hybrid", "fp8_recipe": "tensorwise", "first_last_layers_bf16": "true",
        "num_layers_at_start_in_bf16": "1", "num_layers_at_end_in_bf16": "1", "fp8_param_gather": "true",
    },
    "bf16_with_fp8_subchannel_scaling_mixed": {"fp8": "hybrid", "fp8_recipe": "blockwise"},
    "bf16_with_mxfp8_mixed": {
        "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": "true",
        "reuse_grad_buf_for_mxfp8_param_ag": "true",
    },
}  # fmt: skip


def bridge_facts(target: Target) -> FrameworkFacts:
    """The facts that the plan was priced under."""
    return with_options(framework_facts("nemo"), target.workload.framework_options)


def recipe(target: Target) -> str:
    """The mixed-precision recipe of the plan."""
    precision = target.workload.precision
    wanted = bridge_facts(target).precision_recipe
    if precision == "fp8" or wanted != "none":
        return FP8_RECIPES.get(wanted, FP8_RECIPES["none"])
    return f"{precision}_mixed"


def reduces_in_fp32(target: Target) -> bool:
    """Whether gradients are kept and reduced in fp32, as the prediction has it."""
    return bridge_facts(target).gradient_dtype == "fp32"


def mixed_precision(target: Target) -> list[tuple[str, object]]:
    """The overrides, in order: a name where the recipe is what was priced, else all that it holds."""
    name, in_fp32 = recipe(target), reduces_in_fp32(target)
    if in_fp32 is (name not in _IN_LOW_PRECISION):
        return [("mixed_precision", name)]
    kind, dtype = ("fp16", "float16") if name.startswith("fp16") else ("bf16", "bfloat16")
    torch_dtype = f"{{_target_:torch.{dtype},_call_:false}}"
    values = {
        "_target_": CONFIG_CLASS,
        kind: "true",
        "params_dtype": torch_dtype,
        "pipeline_dtype": torch_dtype,
        "grad_reduce_in_fp32": str(in_fp32).lower(),
        **_OF_RECIPES[name],
    }
    text = ",".join(f"{key}:{value}" for key, value in values.items())
    return [("mixed_precision", None), ("mixed_precision", f"{{{text}}}")]
