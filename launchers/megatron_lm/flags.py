"""The flags that make Megatron-LM 0.16 to 0.19 run exactly one configuration.

Every value that the plan sets is written, even if it equals a default: defaults differ
between versions. Flag names: megatron/training/arguments.py and the dataclasses it builds flags
from (TransformerConfig, ModelParallelConfig) of Megatron-Core 0.17.0 and 0.19.2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from meshwright.launchers.megatron_core.model import (
    VOCABULARY_UNIT,
    expert_values,
    latent_values,
    layer_list,
    model_values,
)
from meshwright.launchers.megatron_core.names import (
    DROPOUT,
    STAGES_BEFORE_DATA,
    SWITCHES_OF_ALL,
    WHOLE_STEP,
    Values,
    context_values,
    cut_bucket,
    exchange_values,
    flag_meanings,
    flags_of_fields,
    is_even,
    kernel_values,
    layout,
    megatron_packages,
    moment_values,
    offload_values,
    offloaded_optimizer,
    recompute_values,
    weight_shard_values,
)
from meshwright.launchers.target import Target
from meshwright.profiles.errors import FieldError
from meshwright.profiles.frameworks import FrameworkFacts, framework_facts, with_options
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.requirements import Requirement, packages
from meshwright.solver.configuration import Configuration

# --------------------------------------------------------------------------------------------------
# The facts of the framework that become flags: the search priced the plan under exactly these.


FRAMEWORK = "megatron-core"
FIRST_FSDP_STAGE = 2
ARCHITECTURES_WITHOUT_FLASH = ("volta", "turing")  # FlashAttention 2 and cuDNN's start with Ampere
ATTENTION_BACKENDS = {
    "flash1": "flash", "flash2": "flash", "flash3": "flash", "flash4": "flash", "cudnn": "fused",
    "megatron-fused": "unfused", "torch": "unfused",
}  # fmt: skip
FP8_RECIPES = {
    "none": "delayed", "fp8-delayed": "delayed", "fp8-current": "tensorwise", "fp8-blockwise": "blockwise",
    "mxfp8": "mxfp8", "nvfp4": "nvfp4",
}  # fmt: skip
# Blocks with a scale each leave gradients in e4m3 too: ``bf16_with_mxfp8_mixed`` of Megatron-Bridge 0.3.1
# (training/mixed_precision.py) and Megatron-LM 0.19, core/transformer/moe/README.md, "FP8 Training".
FP8_FORMATS = {"mxfp8": "e4m3"}
FP8_FORMAT = "hybrid"  # for other recipes: e4m3 forward, e5m2 for gradients
FP4_RECIPE = "nvfp4"  # of ``--fp4-recipe``, which replaces ``--fp8-recipe``
# Facts that no flag changes: Megatron-Core with Transformer Engine always has them.
FIXED_FACTS = {"norm_fused": True, "logits_sharded": True, "main_gradient": True, "scatter_transfer": False}
# Facts that the flags state. Others are priced where a request
# states them, and have no flag: Megatron-Core sends tokens in 16 bits (fused_a2a.py:401), and the rest
# describes kernels, not switches.
WRITTEN_FACTS = (
    *SWITCHES_OF_ALL, "attention_kernel", "dynamic_context_parallel", "flash_attention",
    "low_precision_weights", "offload_layers", "offload_modules",
)  # fmt: skip


def facts(target: Target) -> FrameworkFacts:
    """Return Megatron-Core's facts with the workload's own options.

    Raises:
        InvalidProblemError: an option is unknown or has a value of the wrong kind.
    """
    return with_options(framework_facts(FRAMEWORK), target.workload.framework_options)


def is_fsdp(target: Target) -> bool:
    """Return whether the plan runs under Megatron-FSDP (ZeRO 2 and 3)."""
    return target.config.zero_stage >= FIRST_FSDP_STAGE


def reshards_states(config: Configuration) -> bool:
    """Return whether launch files save optimizer states that another tp or pp can load.

    Since Megatron-LM 0.15 those of the distributed optimizer, with ``--dist-ckpt-optim-fully-reshardable``
    (training/checkpointing.py; its default is buffers of one layout). FSDP has a format of its own.
    """
    return 0 < config.zero_stage < FIRST_FSDP_STAGE and "optimizer" not in config.offload


def uses_fp8(target: Target) -> bool:
    """Return whether linear layers run in fp8 or fp4, by the workload's precision or its recipe."""
    return target.workload.precision == "fp8" or facts(target).precision_recipe != "none"


def gathers_fp8(target: Target) -> bool:
    """Return whether weights are stored only in 8 bits; validate_args requires a distributed optimizer."""
    known = facts(target)
    in_fp8 = uses_fp8(target) and known.precision_recipe != FP4_RECIPE
    return bool(known.low_precision_weights and in_fp8 and target.config.zero_stage)


def reuses_gradients(target: Target) -> bool:
    """Return whether 8-bit weights are gathered in the gradients' buffer.

    MXFP8's cannot be in a buffer of their own (distributed/param_and_grad_buffer.py: Transformer Engine's
    ``replace_raw_data`` raises NotImplementedError); Megatron-FSDP has its own buffers.
    """
    distributed = target.config.zero_stage == 1
    return gathers_fp8(target) and facts(target).precision_recipe == "mxfp8" and distributed


def lacks_flash(target: Target) -> bool:
    """Return whether the plan needs attention without a score matrix on a GPU that lacks it."""
    return facts(target).flash and target.gpu.architecture in ARCHITECTURES_WITHOUT_FLASH


def attention_backend(target: Target) -> str:
    """Return Transformer Engine's attention: that of the facts, or unfused if the GPU runs nothing else."""
    if lacks_flash(target):
        return "unfused"
    if target.model.attention_sinks:
        return "fused"  # Transformer Engine 2.9, attention utils.py:694: flash attention is disabled
    return ATTENTION_BACKENDS.get(facts(target).attention_kernel, "auto")


def packages_of(target: Target) -> tuple[Requirement, ...]:
    """Return the packages that the plan needs; Transformer Engine runs flash attention by flash-attn."""
    needed = megatron_packages(target, facts(target))
    if attention_backend(target) == "flash":
        return (*needed, packages()["Transformer Engine's FlashAttention"])
    return needed


def overlaps_tensor(target: Target) -> bool:
    """Return whether tensor-parallel collectives overlap GEMMs: userbuffers, with sequence parallelism."""
    return bool(facts(target).overlap_tensor and target.config.sequence_parallel)


SHARDING_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}


@dataclass(frozen=True, slots=True)
class MegatronFlag:
    """A flag with its values; a switch has none."""

    name: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Flags that belong together, under one comment."""

    title: str
    flags: tuple[MegatronFlag, ...]


def flag(name: str, *values: object) -> MegatronFlag:
    """Return ``--name value …``, or a switch without a value."""
    return MegatronFlag(f"--{name}", tuple(str(value) for value in values))


def stated(part: object, record: str, *fields: str) -> list[MegatronFlag]:
    """Return the flags that alone set these fields of a record; none for what is off, 0 or not stated."""
    found = {flags_of_fields()[record][name]: getattr(part, name) for name in fields}
    return flags_of({name: value for name, value in found.items() if value})


_OTHER_NAMES = {"bias_activation_fusion": "bias-swiglu-fusion"}  # of Megatron-LM's flags


def flags_of(values: Values) -> list[MegatronFlag]:
    """Return fields of Megatron-Core as flags: true is a switch, false its opposite, None nothing."""
    found = []
    for field, value in values.items():
        name = _OTHER_NAMES.get(field, field).replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            found.append(flag(name if value else f"no-{name}"))
        elif isinstance(value, tuple):
            found.append(flag(name, *value))
        else:
            found.append(flag(name, value))
    return found


def sections(target: Target) -> list[Section]:
    """Return all flags that the plan sets, in reading order."""
    model = target.model
    experts = _of_model(expert_values(model, model.moe), target) if model.moe else []
    over_ranks = [
        flag("expert-model-parallel-size", target.config.expert_parallel_size),
        flag("expert-tensor-parallel-size", target.config.expert_tensor_parallel_size),
    ]
    parts = (
        ("Parallel sizes; data parallel size and micro-batches follow from them", _parallel(target)),
        ("Pipeline split", _split(target)),
        ("Experts over ranks", over_ranks if model.moe else []),
        ("Batch and sequence", _batch(target)),
        ("Data parallelism", _data_parallel(target)),
        ("Activation recomputation", flags_of(recompute_values(target, facts(target)))),
        ("Precision and kernels", _precision(target)),
        ("Model", _of_model(model_values(model), target)),
        ("Mixture of experts", [*experts, *flags_of(exchange_values(target, facts(target)))]),
        ("Multi-head latent attention", _of_model(latent_values(model.mla), target) if model.mla else []),
        ("Mixers with a state", _mixer(model)),
    )
    return [Section(title, tuple(flags)) for title, flags in parts if flags]


def padded_vocabulary(target: Target) -> int:
    """Return the rows of the embedding after Megatron-LM has padded it to a multiple of 128 * tp."""
    return target.model.padded_vocabulary(VOCABULARY_UNIT * target.config.tensor_parallel_size)


def padding_warning(target: Target) -> tuple[bool, str]:
    """Return the warning on a padded vocabulary, with whether it is padded."""
    size, padded = target.model.vocab_size, padded_vocabulary(target)
    return padded != size, f"the vocabulary of {size} is padded to {padded} (a multiple of 128 * tp)"


def kernel_warning(known: FrameworkFacts) -> tuple[bool, str]:
    """Return the warning on an attention kernel without a flag, with whether it has none."""
    kernel = known.attention_kernel
    return (
        kernel not in ATTENTION_BACKENDS,
        f"attention kernel {kernel} has no flag: Transformer Engine chooses",
    )


def _parallel(target: Target) -> list[MegatronFlag]:
    config = target.config
    sequence = config.sequence_parallel and config.tensor_parallel_size > 1
    return _switched(
        {
            "tensor_model_parallel_size": config.tensor_parallel_size,
            "sequence_parallel": sequence,
            "tp_comm_overlap": sequence and overlaps_tensor(target),
            "pipeline_model_parallel_size": config.pipeline_parallel_size,
            "context_parallel_size": config.context_parallel_size,
            **context_values(config),
            "use_tp_pp_dp_mapping": config.rank_order == STAGES_BEFORE_DATA,
            **weight_shard_values(config),
        }
    )


def _switched(values: Values) -> list[MegatronFlag]:
    """Return the flags of values that are on; nothing states the others."""
    return flags_of({name: value for name, value in values.items() if value})


def _split(target: Target) -> list[MegatronFlag]:
    config = target.config
    vpp, pattern = config.virtual_pipeline_size, target.model.layer_pattern
    listed = not pattern and not is_even(config.stage_layers)
    return _switched(
        {
            "hybrid_layer_pattern": staged_pattern(target) if pattern else None,
            "pipeline_model_parallel_layout": (
                layout(config.stage_layers, target.model.num_mtp_layers) if listed else None
            ),
            "num_virtual_stages_per_pipeline_rank": vpp if vpp > 1 and not (pattern or listed) else None,
            # Written although it is the default: the plan's schedule runs in groups of pp micro-batches.
            "microbatch_group_size_per_virtual_pipeline_stage": (
                config.pipeline_parallel_size if vpp > 1 else None
            ),
            "no_overlap_p2p_communication": vpp > 1 and not facts(target).overlap_transfer,
        }
    )


def staged_pattern(target: Target) -> str:
    """Return the pattern of a model's layers with ``|`` between chunks, in model order.

    As in a layout, chunk i belongs to pipeline rank i mod pp (Megatron-Core's ``select_pipeline_segment``).
    """
    ends = [0, *accumulate(target.config.stage_layers)]
    return "|".join(target.model.layer_pattern[first:last] for first, last in pairwise(ends))


def _batch(target: Target) -> list[MegatronFlag]:
    dynamic, length = facts(target).dynamic_context_parallel, target.workload.seq_length
    return _switched(
        {
            "micro_batch_size": target.config.micro_batch_size,
            "global_batch_size": target.workload.global_batch_size,
            "seq_length": length,
            "sft": bool(target.workload.lengths),
            "hybrid_context_parallel": dynamic,
            "max_seqlen_per_dp_cp_rank": length // target.config.context_parallel_size if dynamic else None,
            "calculate_per_token_loss": dynamic,  # validate_args requires it
        }
    )


def _data_parallel(target: Target) -> list[MegatronFlag]:
    config, known = target.config, facts(target)
    sharded = config.zero_stage > 0
    instances = target.shard_ranks // config.zero_shard_size if sharded else 1  # sets of shards
    away = "optimizer" in config.offload  # states are in the precision-aware optimizer
    return _switched(
        {
            "overlap_grad_reduce": known.overlap_gradients,
            "ddp_bucket_size": cut_bucket(target, known),
            "use_distributed_optimizer": sharded,
            "overlap_param_gather": sharded and known.overlap_gradients,
            "num_distributed_optimizer_instances": instances if instances > 1 else None,
            **(offloaded_optimizer(known) if away else {}),
            **moment_values(target),
            **offload_values(target, known),
            "use_megatron_fsdp": is_fsdp(target),
            "data_parallel_sharding_strategy": SHARDING_STRATEGIES.get(config.zero_stage),
            "ckpt_format": "fsdp_dtensor" if is_fsdp(target) else None,
        }
    )


def _precision(target: Target) -> list[MegatronFlag]:
    known = facts(target)
    recipe, in_fp4 = known.precision_recipe, known.precision_recipe == FP4_RECIPE
    in_fp8, half = uses_fp8(target) and not in_fp4, target.workload.precision == "fp16"
    dropout = DROPOUT if known.dropout else "0.0"
    return [
        *_switched(
            {
                "fp16" if half else "bf16": True,
                **({"fp4_format": "e2m1", "fp4_recipe": FP4_RECIPE} if in_fp4 else {}),
                "fp8_format": FP8_FORMATS.get(recipe, FP8_FORMAT) if in_fp8 else None,
                "fp8_recipe": FP8_RECIPES[recipe] if in_fp8 else None,
                "fp8_param_gather": gathers_fp8(target),
                "reuse_grad_buf_for_mxfp8_param_ag": reuses_gradients(target),
                "accumulate_allreduce_grads_in_fp32": known.gradient_dtype == "fp32",
                "grad_reduce_in_bf16": known.gradient_dtype == "bf16",
                "transformer_impl": "transformer_engine",
                "attention_backend": attention_backend(target),
                "cross_entropy_loss_fusion": known.loss_fused,
                "cross_entropy_fusion_impl": "native" if known.loss_fused else None,
            }
        ),
        *flags_of(kernel_values(target, known)),
        *_switched(
            {
                "no_check_for_nan_in_loss_and_grad": known.cuda_graph == WHOLE_STEP,  # validate_args
                "attention_dropout": dropout,
                "hidden_dropout": dropout,
                "optimizer": "adam",
            }
        ),
    ]


# Defaults of Megatron-LM that no flag repeats.
_SILENT: Values = {
    "glu_linear_offset": 0.0, "moe_router_score_function": "softmax", "rotary_percent": 1,
    "softmax_type": "vanilla",
}  # fmt: skip


def _of_model(values: Values, target: Target) -> list[MegatronFlag]:
    """Return fields of a model as flags, by their rows in Megatron-Core's table; none for what is off."""
    found = []
    for name, value in values.items():
        spelled, meant = next(iter(flag_meanings(name).items()))
        is_switch = isinstance(value, bool)
        on = value != (meant == "not") if is_switch else value not in (None, _SILENT.get(name))
        if name in _SPELLED:
            found += _SPELLED[name](target, value)
        elif on:
            found.append(flag(spelled.replace("_", "-"), *(() if is_switch else (value,))))
    return found


def _groups(target: Target, groups: object) -> list[MegatronFlag]:
    model = target.model
    if model.num_kv_heads == model.num_attention_heads or model.mla is not None:
        return []
    return [flag("group-query-attention"), flag("num-query-groups", groups)]  # ignored without the switch


def _activation(target: Target, gated: object) -> list[MegatronFlag]:
    activation = target.model.mlp_activation
    if gated:
        return [flag("quick-geglu" if activation == "quick_gelu" else "swiglu")]
    flags = [flag("squared-relu")] if activation == "squared_relu" else []
    if activation != "gelu" or not target.model.mlp_bias:
        flags.append(flag("no-bias-gelu-fusion"))  # TransformerConfig: the fusion is gelu's with a bias
    return flags


# Fields that the command line spells in a way of its own.
_SPELLED: Mapping[str, Callable[[Target, Any], list[MegatronFlag]]] = {
    "apply_rope_fusion": lambda *_: [flag("no-rope-fusion")],
    "gated_linear_unit": _activation,
    "max_position_embeddings": lambda target, rows: [
        flag("max-position-embeddings", max(target.workload.seq_length, rows))
    ],
    "num_query_groups": _groups,
    "seq_len_interpolation_factor": lambda _, factor: [
        flag("rotary-seq-len-interpolation-factor", int(factor))
    ],
    "window_attn_skip_freq": lambda _, every: [
        flag("window-attn-skip-freq", layer_list(every) if isinstance(every, list) else every)
    ],
    "window_size": lambda _, size: [flag("window-size", ",".join(map(str, size)))],
    "yarn_correction_range_round_to_int": lambda _, whole: [
        flag(f"{'' if whole else 'no-'}yarn-correction-range-round-to-int")
    ],
}


def _mixer(model: ModelSpec) -> list[MegatronFlag]:
    mixer = model.mixer
    if mixer is None:
        return []
    if model.layer_pattern:
        return [
            flag("mamba-num-heads", mixer.num_heads),
            flag("mamba-head-dim", mixer.value_head_dim),
            flag("mamba-num-groups", mixer.num_key_heads),
            flag("mamba-state-dim", mixer.key_head_dim),
        ]
    sizes = ("num_heads", "num_key_heads", "key_head_dim", "value_head_dim", "convolution")
    listed = layer_list(model.mixing_layers())
    return [
        flag("experimental-attention-variant", mixer.kind),
        flag("linear-attention-freq", mixer.attention_every or listed),
        *stated(mixer, "model.mixer", *sizes),
    ]


# --------------------------------------------------------------------------------------------------
# What Megatron-Core refuses and no plan of the search states: ``validate_args``, ``TransformerConfig``.


def low_precision_has_units(target: Target) -> Iterator[FieldError]:
    """Require a GPU that multiplies in 8 bits for fp8."""
    if uses_fp8(target) and "fp8" not in target.gpu.peak_flops:
        yield FieldError(
            pointer="/workload/precision",
            message=f"fp8 on {target.gpu.display_name}, which has none",
            allowed="bf16, fp16",
            nearest="bf16",
        )
