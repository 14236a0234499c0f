"""Exporter of ms-swift (``megatron pt`` and ``sft``): a plan becomes its arguments.

Names and defaults: ms-swift 4.6.0, swift/megatron/arguments/megatron_args.py.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence

from meshwright.launchers import export as common
from meshwright.launchers.images import frozen_values, image_warnings, most_pixels
from meshwright.launchers.megatron_core import names as core
from meshwright.launchers.megatron_lm import flags as megatron
from meshwright.launchers.megatron_lm.flags import facts as megatron_facts
from meshwright.launchers.rules import refuse_first
from meshwright.launchers.target import ExportBundle, Target, pads
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.towers import FrozenPart

PRODUCT = "ms-swift 4.6.0"
PROGRAM = '"${SWIFT_DIR}/cli/_megatron/${SWIFT_COMMAND}.py" "${PLAN_ARGS[@]}" "${run_args[@]}"'
# Values that do not affect the price; its own timeout is 208 days.
RUN = """\
run_args=(--logging_steps "${LOG_INTERVAL:-1}" --save_steps "${SAVE_INTERVAL:-500}"
    --ddp_timeout "${TIMEOUT_S:-1800}" --clip_grad "${CLIP_GRAD:-1.0}")"""
OWN_SWITCHES = (
    "moe_token_dispatcher_type", "moe_grouped_gemm", "moe_permute_fusion", "moe_expert_capacity_factor",
    "moe_pad_expert_input_to_capacity", "moe_shared_expert_overlap", "moe_router_dtype",
)  # fmt: skip
NEEDS = (
    ("SWIFT_DIR", "the folder of the installed package swift"),
    ("SWIFT_COMMAND", "pt or sft; model, dataset and learning rate follow on the command line"),
)


# Parts by name (megatron_args.py:450-452), and what ``target_modules`` calls every layer of trained parts.
FROZEN_ARGUMENTS: Mapping[FrozenPart, str] = {
    "vision": "freeze_vit",
    "projector": "freeze_aligner",
    "language": "freeze_llm",
}
ALL_LINEAR = "all-linear"
MAX_PIXELS = "MAX_PIXELS"  # the variable; in lower case the argument
RESUMES = "after it, to continue from a checkpoint (ms-swift doesn't look for one)"


def export(target: Target) -> ExportBundle:
    """Return the arguments and the two scripts that start them."""
    refuse_first(target, "ms-swift")
    adapts = target.workload.lora_rank > 0
    return common.bundled(
        target,
        product=PRODUCT,
        shape=True,
        start=common.StartCommand(
            program=PROGRAM,
            before=RUN,
            needs=NEEDS,
            follows="--model … --dataset … --lr …",
            # the argument that names a checkpoint's folder (trainers/base.py, _load_checkpoint)
            takes=((f"--mcore_{'adapter' if adapts else 'model'} FOLDER --finetune false", RESUMES),),
            packages=megatron.packages_of(target),
            environment=(*core.environment(target, megatron_facts(target)), *_image_environment(target)),
            has_arguments=True,
            decides=decided_names(argument_parts(target)),
        ),
        warnings=found_warnings(target),
        own=lambda head: {common.ARGUMENTS_FILE: common.arguments_file(head, argument_parts(target))},
    )


def decided_names(parts: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, ...]:
    """Return every argument of the plan, and the names that ms-swift's defaults or the model set."""
    planned = [word.split()[0] for _, words in parts for word in words]
    others = ("--megatron_extra_kwargs", "--padding_free", "--rope_scaling", "--tuner_type", "--lora_rank")
    return (*planned, *core.decided_flags(), *others)


def argument_parts(target: Target) -> list[tuple[str, list[str]]]:
    """Return titles, each with its ``--name value`` arguments; unset ones are not written."""
    known = megatron_facts(target)
    recompute = core.recompute_values(target, known)
    recompute["recompute_granularity"] = recompute["recompute_granularity"] or "none"  # not the default
    # optimizer states that another tp or pp can load; by default only other replicas can
    reshards = megatron.reshards_states(target.config)
    states: core.Values = {"dist_ckpt_optim_fully_reshardable": True} if reshards else {}
    parts: tuple[tuple[str, core.Values], ...] = (
        ("Parallel sizes; data parallel size and micro-batches follow from them", _parallel(target)),
        ("Pipeline split", core.split_values(target)),
        ("Batch and sequence", _batch(target)),
        ("Data parallelism", core.distributed_optimizer(target, known) | states),
        ("Activation recomputation", recompute),
        ("Precision", _precision(target)),
        ("Adapters next to frozen weights", _adapters(target)),
        ("Images, and which parts are frozen", _images(target)),
        ("Kernels", _kernels(target)),
        ("What the model's own configuration does not switch on", _losses(target.model)),
        ("Experts over the network, and what goes to Megatron-Core unchanged", _switches(target)),
    )
    return [
        (title, [_written(name, value) for name, value in values.items() if value is not None])
        for title, values in parts
        if values
    ]


def _written(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return shlex.join((f"--{name}", *map(str, value)))
    if isinstance(value, dict):
        return shlex.join((f"--{name}", json.dumps(value)))
    return shlex.join((f"--{name}", str(value).lower() if isinstance(value, bool) else str(value)))


def _parallel(target: Target) -> core.Values:
    known = megatron_facts(target)
    values = core.parallel_values(target) | core.context_values(target.config)
    if target.config.virtual_pipeline_size > 1:
        values["microbatch_group_size_per_vp_stage"] = target.config.pipeline_parallel_size
        values["overlap_p2p_comm"] = known.overlap_transfer
    return {**values, "tp_comm_overlap": bool(known.overlap_tensor and values["sequence_parallel"])}


def _switches(target: Target) -> core.Values:
    """Return switches under ms-swift's names; the others go through megatron_extra_kwargs.

    swift/megatron/model/utils.py:271 makes them override all other settings of Megatron-Core.
    """
    known = megatron_facts(target)
    found = (
        core.exchange_values(target, known) | core.kernel_values(target, known) | core.dropout_values(known)
    )
    for name in ("bias_activation_fusion", "bias_dropout_fusion"):
        found.pop(name, None)  # arguments of its own
    own: core.Values = {name: found.pop(name) for name in OWN_SWITCHES if name in found}
    own["megatron_extra_kwargs"] = found or None
    return own


def _batch(target: Target) -> core.Values:
    return {
        "micro_batch_size": target.config.micro_batch_size,
        "global_batch_size": target.workload.global_batch_size,
        "max_length": target.workload.seq_length,
        "packing": not pads(target),  # every sequence is full, as the prediction assumes
        **({"padding_free": False} if pads(target) else {}),
    }


def _precision(target: Target) -> core.Values:
    known = megatron_facts(target)
    precision = target.workload.precision
    low = precision == "bf16" and known.gradient_dtype == "bf16"
    return {
        "torch_dtype": {"bf16": "bfloat16", "fp16": "float16"}[precision],
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "accumulate_allreduce_grads_in_fp32": known.gradient_dtype == "fp32",
        # Otherwise fp32 again (megatron_args.py:1213); Megatron-Core has it only with this optimizer.
        **({"main_grads_dtype": "bf16", "use_precision_aware_optimizer": True} if low else {}),
        "optimizer": "adam",
        **core.moment_values(target),
        **(core.offloaded_optimizer(known) if target.config.offload == "optimizer" else {}),
    }


def _adapters(target: Target) -> core.Values:
    """Return LoRA of Megatron-Core's layers; alpha is twice the rank."""
    workload = target.workload
    if not workload.lora_rank:
        return {}
    return {
        "tuner_type": "lora",
        "lora_rank": workload.lora_rank,
        "lora_alpha": 2 * workload.lora_rank,
        "lora_dropout": 0.0,
        "target_modules": workload.lora_targets if target.model.tower is None else (ALL_LINEAR,),
    }


def _images(target: Target) -> core.Values:
    """Return frozen parts, and the tower's recomputation, which is on by default where it is trained."""
    if target.model.tower is None:
        return {}
    replays = target.config.recompute_granularity == "full"
    replays &= "vision" not in target.workload.frozen_parts
    return {
        **frozen_values(target, FROZEN_ARGUMENTS),
        "vit_gradient_checkpointing": replays,
        MAX_PIXELS.lower(): most_pixels(target),
    }


def _image_environment(target: Target) -> Iterator[common.EnvironmentVariable]:
    """Yield the limit that qwen-vl-utils reads, which counts behind ``max_pixels``."""
    pixels = most_pixels(target)
    if pixels and target.model.tower and target.model.tower.model_type.startswith("qwen"):
        reason = "qwen-vl-utils rounds sides to whole tokens; with this it rounds the largest images down."
        yield common.EnvironmentVariable(name=MAX_PIXELS, value=str(pixels), reason=reason)


def _losses(model: ModelSpec) -> core.Values:
    """Return prediction layers and the experts' balancing loss, off by default (megatron_args.py:687)."""
    values: core.Values = {"mtp_num_layers": model.num_mtp_layers} if model.num_mtp_layers else {}
    return values | (core.balance_values(model.moe) if model.moe else {})


def _kernels(target: Target) -> core.Values:
    """Return switches with defaults of ms-swift's own (megatron_args.py:491-499)."""
    known = megatron_facts(target)
    return {
        "attention_backend": megatron.attention_backend(target),
        "cross_entropy_loss_fusion": known.loss_fused,
        "masked_softmax_fusion": True,
        "bias_dropout_fusion": known.elementwise_fused,
        "bias_activation_fusion": known.elementwise_fused,
        "gradient_accumulation_fusion": True,
        # Off by default; Megatron-Core fuses the rotary embedding of latent attention for YaRN only.
        "apply_rope_fusion": target.model.has_rotary_positions and target.model.mla is None,
    }


def found_warnings(target: Target) -> Iterator[str]:
    """Yield the parts that the checkpoint sets."""
    yield from common.common_warnings(
        target, written=(*core.SWITCHES_OF_ALL, "attention_kernel", "flash_attention")
    )
    yield common.model_is_in_the_script(target)
    yield from image_warnings(target)
