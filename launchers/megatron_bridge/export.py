"""Exporter of Megatron-Bridge and NeMo: a plan becomes Hydra overrides of a recipe, with scripts.

Keys: Megatron-Bridge 0.3.1, training/config.py (ConfigContainer), models/gpt_provider.py,
training/mixed_precision.py. NeMo's newer releases train through Megatron-Bridge.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm

from meshwright.launchers.export import (
    ARGUMENTS_FILE,
    StartCommand,
    applying,
    arguments_file,
    bundled,
    common_warnings,
)
from meshwright.launchers.images import BRIDGE_PARTS, frozen_values
from meshwright.launchers.megatron_bridge.read_adapters import latent_layers
from meshwright.launchers.megatron_core.model import (
    expert_values,
    latent_values,
    layer_list,
    model_values,
    positions_of,
)
from meshwright.launchers.megatron_core.names import (
    STAGES_BEFORE_DATA,
    SWITCHES_OF_ALL,
    WHOLE_STEP,
    Values,
    context_values,
    cut_bucket,
    decided_flags,
    distributed_optimizer,
    environment,
    exchange_values,
    kernel_values,
    megatron_packages,
    moment_values,
    offload_values,
    offloaded_optimizer,
    parallel_values,
    recompute_values,
    split_values,
    weight_shard_values,
    written_cut,
)
from meshwright.launchers.megatron_lm.flags import SHARDING_STRATEGIES, is_fsdp, reshards_states
from meshwright.launchers.rules import fault, refuse_first
from meshwright.launchers.target import ExportBundle, Target
from meshwright.profiles.adapters import ATTENTION_TARGETS
from meshwright.profiles.errors import FieldError
from meshwright.profiles.frameworks import FrameworkFacts, framework_facts, with_options
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import ModelSpec
from meshwright.solver.space.launcher_rules import overlap_notes

# --------------------------------------------------------------------------------------------------
# Mixed precision of Megatron-Bridge: a recipe's name, or the same recipe with another gradient dtype.
#
# Megatron-Bridge 0.3.1, training/mixed_precision.py: ``MixedPrecisionConfig.setup`` writes the recipe's
# ``grad_reduce_in_fp32`` over that of ``ddp``, so that only a custom configuration changes it.
# training/utils/omegaconf_utils.py builds such a one from an override with ``_target_``; a recipe that
# holds an object already is set to ``null`` first, because Hydra would merge the two. From 0.4 on the
# modifier ``_bf16_grad_reduce`` of a recipe's name does the same, and is read too.


FP8_RECIPES = {
    "none": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8-delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8-current": "bf16_with_fp8_current_scaling_mixed",
    "fp8-blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
LOW_GRADIENTS = "_bf16_grad_reduce"
CONFIG_CLASS = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
_OF_LOW_WEIGHTS = ("fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag")
_IN_LOW_PRECISION = ("fp16_mixed",)  # recipes that reduce gradients in 16 bits themselves
# Values of the recipes in addition to the plain one of their precision.
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
    "bf16_with_nvfp4_mixed": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}  # fmt: skip


def bridge_facts(target: Target) -> FrameworkFacts:
    """Return the facts under which the plan was priced."""
    return with_options(framework_facts("nemo"), target.workload.framework_options)


def recipe(target: Target) -> str:
    """Return the mixed-precision recipe of the plan."""
    precision = target.workload.precision
    wanted = bridge_facts(target).precision_recipe
    if precision == "fp8" or wanted != "none":
        return FP8_RECIPES.get(wanted, FP8_RECIPES["none"])
    return f"{precision}_mixed"


def reduces_in_fp32(target: Target) -> bool:
    """Return whether gradients are kept and reduced in fp32, as in the prediction."""
    return bridge_facts(target).gradient_dtype == "fp32"


def mixed_precision(target: Target) -> list[tuple[str, object]]:
    """Return the overrides in order: the recipe's name if it was priced, else all of its values."""
    name, in_fp32 = recipe(target), reduces_in_fp32(target)
    own = _OF_RECIPES[name]
    if "fp8" in own and not bridge_facts(target).low_precision_weights:
        own = {key: value for key, value in own.items() if key not in _OF_LOW_WEIGHTS}
        own["fp8_param_gather"] = "false"
    if in_fp32 is (name not in _IN_LOW_PRECISION) and own == _OF_RECIPES[name]:
        return [("mixed_precision", name)]
    kind, dtype = ("fp16", "float16") if name.startswith("fp16") else ("bf16", "bfloat16")
    torch_dtype = f"{{_target_:torch.{dtype},_call_:false}}"
    values = {
        "_target_": CONFIG_CLASS,
        kind: "true",
        "params_dtype": torch_dtype,
        "pipeline_dtype": torch_dtype,
        "grad_reduce_in_fp32": str(in_fp32).lower(),
        **own,
    }
    text = ",".join(f"{key}:{value}" for key, value in values.items())
    return [("mixed_precision", None), ("mixed_precision", f"{{{text}}}")]


# --------------------------------------------------------------------------------------------------
# The overrides themselves, in groups, with every value that the plan sets.


Pairs = Sequence[tuple[str, object]]
RESHARDABLE = "checkpoint.dist_ckpt_optim_fully_reshardable"  # training/config.py, CheckpointConfig


def override_parts(target: Target) -> list[tuple[str, list[str]]]:
    """Return titles, each with its ``key=value`` overrides quoted for Bash."""
    known = bridge_facts(target)
    parts: tuple[tuple[str, Values | Pairs], ...] = (
        ("Parallel sizes; data parallel size and micro-batches follow from them", _parallel(target)),
        ("Pipeline split", _model_keys(_split(target))),
        ("Batch and sequence", _batch(target)),
        ("Data parallelism", _data_parallel(target)),
        (
            "Activation recomputation",
            _model_keys(recompute_values(target, known) | _offload(target, known)),
        ),
        ("Experts over the network", _model_keys(_exchange(target))),
        ("Precision", mixed_precision(target)),
        ("Kernels", _kernels(target)),
        ("Model", _model_keys(_model(target.model))),
        ("Adapters next to frozen weights, of a recipe with peft", _adapters(target)),
        ("Parts that are not trained", _model_keys(frozen_values(target, BRIDGE_PARTS))),
    )
    sections = []
    for title, values in parts:
        pairs = values.items() if isinstance(values, dict) else values  # a list where a key is set twice
        sections.append((title, [_written(key, value) for key, value in pairs]))
    return sections


def _written(key: str, value: object) -> str:
    if isinstance(value, tuple):
        value = f"[{','.join(map(str, value))}]"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
    return shlex.quote(f"{key}={text}")


def _model_keys(values: Values) -> Values:
    return {f"model.{name}": value for name, value in values.items()}


def _parallel(target: Target) -> Values:
    config = target.config
    values = _model_keys(parallel_values(target) | context_values(config) | weight_shard_values(config))
    if config.rank_order == STAGES_BEFORE_DATA:
        values["dist.use_tp_pp_dp_mapping"] = True
    values["comm_overlap"] = None  # otherwise it would rewrite the overlaps
    overlaps = bridge_facts(target).overlap_tensor and values["model.sequence_parallel"]
    return {**values, "model.tp_comm_overlap": bool(overlaps)}


def _split(target: Target) -> Values:
    values = split_values(target)
    if target.config.virtual_pipeline_size > 1:
        values["microbatch_group_size_per_vp_stage"] = target.config.pipeline_parallel_size
        values["overlap_p2p_comm"] = bridge_facts(target).overlap_transfer
    return values


def _batch(target: Target) -> Values:
    return {
        "train.micro_batch_size": target.config.micro_batch_size,
        "train.global_batch_size": target.workload.global_batch_size,
        "model.seq_length": target.workload.seq_length,
        # Up to 0.3 Megatron-Core's key, over which Bridge writes its own from 0.6 on; between them
        # ``seq_length`` is an alias without a key in Hydra, so that it is added (``++``).
        "dataset.sequence_length" if target.version in ("", "0.3") else "++dataset.seq_length": (
            target.workload.seq_length
        ),
        **(_packing(target) if target.workload.lengths else {}),
    }


def _packing(target: Target) -> Values:
    """Pack whole documents for a fine-tuning recipe (Megatron-Bridge, docs/training/packed-sequences.md).

    Under context parallelism each is padded to two chunks per rank, and losses are averaged by token.
    """
    config, older = target.config, target.version in ("", "0.3", "0.4", "0.5")
    specs = "dataset.packed_sequence_specs" if older else "dataset.offline_packing_specs"
    cp, tp = config.context_parallel_size, config.tensor_parallel_size
    rings, sharded = (2 * cp if cp > 1 else 1), (cp * tp if config.sequence_parallel else 1)
    values: Values = {} if older else {"dataset.enable_offline_packing": True}
    values[f"{specs}.packed_sequence_size"] = target.workload.seq_length
    values[f"{specs}.pad_seq_to_mult"] = lcm(rings, sharded)
    if cp > 1:
        values |= {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}
    return values


def _data_parallel(target: Target) -> Values:
    config = target.config
    known = bridge_facts(target)
    size = cut_bucket(target, known)
    instances = "ddp.num_distributed_optimizer_instances"
    muon = target.workload.optimizer == "muon"
    sharded = config.zero_stage > 0 and not muon
    overlaps = distributed_optimizer(target, known)
    values: Values = {
        **{f"ddp.{name}": value for name, value in overlaps.items()},
        **({"ddp.bucket_size": size} if size else {}),
        # Mixed precision overrides it with the same value.
        "ddp.grad_reduce_in_fp32": reduces_in_fp32(target),
        "optimizer.use_distributed_optimizer": sharded,
        "optimizer.optimizer": (("dist_muon" if config.zero_stage else "muon") if muon else "adam"),
        **(
            {instances: target.shard_ranks // config.zero_shard_size}
            if config.zero_stage and not muon
            else {}
        ),
        **{f"optimizer.{name}": value for name, value in _states(target, known).items()},
    }
    if is_fsdp(target):
        values |= {
            "ddp.use_megatron_fsdp": True,
            "dist.use_megatron_fsdp": True,
            "ddp.data_parallel_sharding_strategy": SHARDING_STRATEGIES[config.zero_stage],
            "checkpoint.ckpt_format": "fsdp_dtensor",
        }
    elif reshards_states(config) and not muon:
        values |= {"checkpoint.ckpt_format": "torch_dist", RESHARDABLE: True}
    return values


def _offload(target: Target, known: FrameworkFacts) -> Values:
    """Return what goes to the host; of layers also their switch, which Megatron-LM derives."""
    values = offload_values(target, known)
    return {"cpu_offloading": True, **values} if "cpu_offloading_num_layers" in values else values


def _states(target: Target, known: FrameworkFacts) -> Values:
    """Return the types of the optimizer's states, also where a recipe may differ.

    Those of DeepSeek-V3 keep moments in bf16 (recipes/deepseek/deepseek_v3.py). A type is torch's name of
    it, which ``training/utils/omegaconf_utils.py`` takes with and without ``torch.``.
    """
    away = offloaded_optimizer(known) if "optimizer" in target.config.offload else {}
    small = moment_values(target)
    moments = "torch.bfloat16" if small else "torch.float32"
    return {
        "use_precision_aware_optimizer": bool(small),
        "exp_avg_dtype": moments,
        "exp_avg_sq_dtype": moments,
        **away,
    }


def _adapters(target: Target) -> Values:
    """Return LoRA of a recipe that has adapters; alpha is twice the rank."""
    workload, latents = target.workload, target.model.mla
    if not workload.lora_rank:
        return {}
    layers_of = {"linear_qkv": latent_layers(latents)} if latents else {}
    return {
        "peft.dim": workload.lora_rank,
        "peft.alpha": 2 * workload.lora_rank,
        "peft.dropout": 0.05 if workload.framework_options.get("adapter_dropout") else 0.0,
        "peft.target_modules": tuple(
            layer for name in workload.lora_targets for layer in layers_of.get(name, (name,))
        ),
        **({"peft.share_expert_adapters": False} if _adapts_experts(target) else {}),
    }


def _adapts_experts(target: Target) -> bool:
    work = target.workload
    return bool(work.lora_rank and target.model.moe and {*work.lora_targets} - {*ATTENTION_TARGETS})


def adapters_are_priced(target: Target) -> Iterator[FieldError]:
    """Require an adapter for each routed expert: ``share_expert_adapters`` of 0.5 (peft/lora.py)."""
    if _adapts_experts(target) and target.version in ("", "0.3", "0.4"):
        yield FieldError(
            pointer="/workload/lora_targets",
            message="Megatron-Bridge's routed experts share an adapter on each rank, which is not priced",
            allowed=", ".join(ATTENTION_TARGETS) + "; launcher_version 0.5 or later",
        )


def _exchange(target: Target) -> Values:
    """Return every switch of experts, also where a recipe may differ."""
    if target.model.moe is None:
        return {}
    return {
        **dict.fromkeys(("overlap_moe_expert_parallel_comm", "moe_permute_fusion"), False),
        **exchange_values(target, bridge_facts(target)),
    }


def _kernels(target: Target) -> Values:
    known = bridge_facts(target)
    dropout = 0.1 if known.dropout else 0.0
    # The configuration's validate() refuses a graph of the whole step together with a check of its loss.
    looks = {"rerun_state_machine.check_for_nan_in_loss": False} if known.cuda_graph == WHOLE_STEP else {}
    return (
        _model_keys(kernel_values(target, known))
        | looks
        | {
            "model.cross_entropy_loss_fusion": known.loss_fused,
            "model.attention_dropout": dropout,
            "model.hidden_dropout": dropout,
        }
    )


# Names of the model that the file states first.
_FIRST = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups",
    "kv_channels", "vocab_size", "should_pad_vocab", "make_vocab_size_divisible_by", "gated_linear_unit",
    "add_bias_linear", "add_qkv_bias", "share_embeddings_and_output_weights", "normalization",
    "position_embedding_type", "softmax_type",
)  # fmt: skip


def _delta_nets(model: ModelSpec, mixer: MixerSpec) -> Values:
    """Return the layers that do not attend, and their sizes (Megatron-Core's ``TransformerConfig``)."""
    listed = f"'{layer_list(model.mixing_layers())}'"  # quoted for Hydra, too
    return {
        "experimental_attention_variant": mixer.kind,
        "linear_attention_freq": mixer.attention_every or listed,
        "linear_num_value_heads": mixer.num_heads,
        "linear_num_key_heads": mixer.num_key_heads,
        "linear_key_head_dim": mixer.key_head_dim,
        "linear_value_head_dim": mixer.value_head_dim,
        "linear_conv_kernel_dim": mixer.convolution,
    }


def _wavelengths(model: ModelSpec) -> Values:
    """Return where YaRN begins and ends, unless they are the defaults of ``MLATransformerConfig``."""
    scaling = model.rotary_scaling
    if scaling is None or scaling.kind != "yarn":
        return {}
    original = scaling.original_max_position_embeddings or model.max_position_embeddings
    usual = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
    own = {
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "original_max_position_embeddings": original or 4096,
    }
    return {name: value for name, value in own.items() if value != usual[name]}


def _model(model: ModelSpec) -> Values:
    values = model_values(model) | {"should_pad_vocab": True}
    del values["max_position_embeddings"]  # gpt_provider.py: max_sequence_length=self.seq_length
    if model.moe is None:
        values["num_moe_experts"] = None
    else:
        values |= expert_values(model, model.moe)
        values["moe_layer_freq"] = f"'{values['moe_layer_freq']}'"  # quoted for Hydra, too
    values |= latent_values(model.mla) if model.mla else {}
    values |= _wavelengths(model) if model.mla else {}
    values |= _delta_nets(model, model.mixer) if model.mixer else {}
    if model.tower is not None:  # positions of three axes, which text has alike
        values["position_embedding_type"] = "mrope"
    return {name: values[name] for name in _FIRST} | values


PRODUCT = "Megatron-Bridge (NeMo)"
# Values that do not affect the price. A rank that waits this long for the others has lost one.
RUN = """\
run_args=("logger.log_interval=${LOG_INTERVAL:-1}" "checkpoint.save_interval=${SAVE_INTERVAL:-500}"
    "dist.distributed_timeout_minutes=${TIMEOUT_MINUTES:-30}" "optimizer.clip_grad=${CLIP_GRAD:-1.0}")"""
NEEDS = (("BRIDGE_SCRIPT", "a recipe script of Megatron-Bridge that takes key=value overrides"),)
_WITH_WEIGHT_SHARDS = "0.7"  # the first release that may wire them in: its pull request 5569


def _shares_weights(target: Target) -> bool:
    return target.config.weight_shard_size * target.config.expert_weight_shard_size > 1


def weight_shards_are_wired_in(target: Target) -> Iterator[FieldError]:
    """Require a release that hands weight shards on to Megatron-Core's process groups."""
    able = VERSIONS[VERSIONS.index(_WITH_WEIGHT_SHARDS) :]
    for name in ("weight_shard_size", "expert_weight_shard_size"):
        size = getattr(target.config, name)
        if size > 1 and target.version not in able:
            yield fault(
                name,
                f"{size}, which files for Megatron-Bridge {target.version} do not start",
                allowed=f"1; launcher_version {_WITH_WEIGHT_SHARDS} with its pull request 5569",
                nearest=1,
            )


OWN_RULES = (weight_shards_are_wired_in, adapters_are_priced)


def decided_names(target: Target) -> tuple[str, ...]:
    """Return every override of the plan, and the names that Megatron-Core's defaults set."""
    planned = [word.split("=")[0].strip("'") for _, words in override_parts(target) for word in words]
    silent = [name.removeprefix("--").replace("-", "_") for name in decided_flags()]
    return (*planned, *(f"model.{name}" for name in silent))


VERSIONS = ("0.3", "0.4", "0.5", "0.6", "0.7")


def export(target: Target) -> ExportBundle:
    """Return the overrides and the two scripts that start them."""
    without_recipe = target.model.mixer is not None and target.version in ("", "0.3")
    newer = _adapts_experts(target) or _shares_weights(target)
    if without_recipe or (newer and not target.version):
        target = replace(target, version=VERSIONS[-1])
    refuse_first(target, "megatron-bridge", OWN_RULES)
    return bundled(
        target,
        product=PRODUCT,
        shape=target.model.tower is not None,
        start=StartCommand(
            program='"${BRIDGE_SCRIPT}" "${PLAN_ARGS[@]}" "${run_args[@]}"',
            before=RUN,
            needs=NEEDS,
            packages=megatron_packages(target, bridge_facts(target)),
            environment=tuple(environment(target, bridge_facts(target))),
            has_arguments=True,
            decides=decided_names(target),
            assignments=True,
        ),
        warnings=found_warnings(target),
        own=lambda head: {ARGUMENTS_FILE: arguments_file(head, override_parts(target))},
    )


_WRITTEN = ("low_precision_weights", "offload_layers", "offload_modules", "adapter_dropout", "dora")


def found_warnings(target: Target) -> Iterator[str]:
    """Yield the recipe's own values, and its differences from the plan."""
    yield from common_warnings(
        target, written=(*SWITCHES_OF_ALL, *_WRITTEN, *written_cut(target, bridge_facts(target)))
    )
    yield "attention backend, tokenizer, data and learning rate come from the recipe"
    model, activation = target.model, target.model.mlp_activation
    yield from applying(
        (
            model.moe and not model.moe.balance_coefficient,
            "the model has no load-balancing loss, so the recipe's moe_aux_loss_coeff applies",
        ),
        (
            target.workload.lengths is not None,
            "packed documents need a recipe for fine-tuning: its data set has packed_sequence_specs",
        ),
        # No override names a function (training/utils/omegaconf_utils.py _restore_excluded_fields);
        # providers of the gated models that are exported have silu already (models/*/*_provider.py:
        # activation_func).
        (_shares_weights(target), "shared weights need Megatron-Bridge's pull request 5569"),
        (
            activation != "silu",
            f"overrides can't set the activation: use a recipe of a model with {activation}",
        ),
        (
            target.workload.lora_rank,
            "overrides can't turn adapters on: start a recipe that has them (its name has _peft_)"
            + ", with --mode dora" * bool(target.workload.framework_options.get("dora")),
        ),
        *((True, note) for note in overlap_notes(target.problem, target.config)),
        (
            positions_of(model) == "yarn",
            "YaRN's settings come from the recipe's model provider: use a recipe of a model with YaRN",
        ),
        (
            model.mla,
            "latent attention comes from the recipe's model provider. Only its sizes are overridden",
        ),
        (
            target.workload.precision == "fp8" and recipe(target) == FP8_RECIPES["none"],
            "fp8 runs with delayed scaling, the plain recipe",
        ),
    )
