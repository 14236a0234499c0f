"""What Megatron-Core's configuration says of a plan and its model, for every judge that has one.

``config`` is a TransformerConfig, or a class of the launcher's that inherits from it.
"""

from __future__ import annotations

import typing

from protocol import Seen

MODES = {None: "ring", "p2p": "ring", "a2a": "all_to_all", "a2a+p2p": "all_to_all_{}+ring"}
DROPOUT = {(0.0, 0.0): False, (0.1, 0.1): True}
STATES = {"torch.float32": "float32", "torch.bfloat16": "bfloat16"}
SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def context_mode(found: typing.Any) -> str:
    """How ranks share attention, by one word for all layers; of both ways, how many exchange heads."""
    words = found.cp_comm_type if found.context_parallel_size > 1 else None
    (kind,) = {*words} if isinstance(words, list) else {words}
    sizes = getattr(found, "hierarchical_context_parallel_sizes", None) or [0]
    return MODES[kind].format(sizes[0])


def split_of(config: typing.Any) -> list[int]:
    """Layers of every chunk, in model order."""
    pp, virtual = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size or 1
    if config.pipeline_model_parallel_layout is None:
        return [config.num_layers // (pp * virtual)] * (pp * virtual)
    stages = config.pipeline_model_parallel_layout.layout  # by pipeline rank, then virtual stage
    flat = [stages[rank][part] for part in range(len(stages[0])) for rank in range(len(stages))]
    return [sum(kind.name == "decoder" for kind in stage) for stage in flat]


def recomputation_of(config: typing.Any) -> Seen:
    """What is replayed, and of how many layers of a chunk."""
    granularity = config.recompute_granularity or "none"
    seen: Seen = {"recompute_granularity": granularity}
    if granularity == "full":
        each = {"uniform": "every", "block": config.recompute_num_layers}[config.recompute_method]
        if each == "every" and config.recompute_num_layers != 1:
            raise ValueError("layers are replayed in groups, whose inputs alone are kept")
        seen["replayed_layers"] = each
    elif granularity == "selective":
        seen["facts.recompute_modules"] = sorted(config.recompute_modules)
    return seen


def sharding_of(ddp: typing.Any, optimizer: typing.Any, ranks: int) -> Seen:
    """ZeRO, what of it overlaps, and in what gradients are reduced.

    Args:
        ddp: DistributedDataParallelConfig.
        optimizer: OptimizerConfig.
        ranks: over which states are sharded where nothing limits them.
    """
    sharded = bool(optimizer.use_distributed_optimizer)
    if ddp.use_distributed_optimizer != sharded:
        raise ValueError("half of a distributed optimizer")
    if ddp.overlap_param_gather != (sharded and ddp.overlap_grad_reduce):
        raise ValueError("weights are gathered early, or late, alone")
    if optimizer.optimizer != "adam":
        raise ValueError(f"{optimizer.optimizer} is not supported")
    instances = ddp.num_distributed_optimizer_instances or 1
    seen: Seen = {
        "zero_stage": int(sharded),
        "zero_shard_size": ranks // instances if sharded else 1,
        "facts.overlap_gradients": ddp.overlap_grad_reduce,
        "precision_aware": optimizer.use_precision_aware_optimizer,
    }
    if ddp.use_megatron_fsdp:
        seen["zero_stage"] = SHARDED[ddp.data_parallel_sharding_strategy]
    if optimizer.use_precision_aware_optimizer:
        (seen["moments"],) = {
            STATES[str(one)] for one in (optimizer.exp_avg_dtype, optimizer.exp_avg_sq_dtype)
        }
    seen["optimizer_on_host"] = bool(optimizer.optimizer_cpu_offload)
    if optimizer.optimizer_cpu_offload:
        seen["facts.optimizer_offload_fraction"] = optimizer.optimizer_offload_fraction
    return seen


# What Transformer Engine's recipes of 8 bits are called in a request.
RECIPES = {
    "delayed": "fp8-delayed",
    "tensorwise": "fp8-current",
    "blockwise": "fp8-blockwise",
    "mxfp8": "mxfp8",
}


def switches_of(config: typing.Any) -> Seen:
    """Kernels, transfers and exchanges that are priced."""
    seen: Seen = {
        "facts.dropout": DROPOUT[config.attention_dropout, config.hidden_dropout],
        "facts.overlap_tensor": config.tp_comm_overlap,
        "facts.loss_fused": config.cross_entropy_loss_fusion,
        "activations_on_host": sorted(config.offload_modules or ())
        if config.fine_grained_activation_offloading
        else [f"{config.cpu_offloading_num_layers} layers"]
        if config.cpu_offloading
        else [],
        "precision": "fp8"
        if config.fp8 or config.fp4
        else "fp16"
        if config.fp16
        else "bf16"
        if config.bf16
        else "fp32",
        "recipe": config.fp4_recipe if config.fp4 else RECIPES[config.fp8_recipe] if config.fp8 else "none",
    }
    virtual = config.virtual_pipeline_model_parallel_size or 1
    if config.pipeline_model_parallel_size > 1 and virtual > 1:
        seen["facts.overlap_transfer"] = config.overlap_p2p_comm
        seen["microbatch_group"] = config.microbatch_group_size_per_vp_stage
    return seen | (exchanges_of(config) if config.num_moe_experts else {})


def exchanges_of(config: typing.Any) -> Seen:
    """How tokens reach their experts."""
    word = config.moe_token_dispatcher_type
    if config.moe_router_dtype != "fp32":
        raise ValueError(f"the router computes in {config.moe_router_dtype}")
    delayed = {"facts.delay_wgrad": config.delay_wgrad_compute}
    return {
        **(delayed if config.overlap_moe_expert_parallel_comm else {}),
        "expert_tensor_parallel_size": config.expert_tensor_parallel_size,
        "facts.moe_dispatcher": config.moe_flex_dispatcher_backend if word == "flex" else word,
        "one_product_of_experts": config.moe_grouped_gemm,
        "facts.moe_permute_fusion": config.moe_permute_fusion,
        "facts.moe_force_balance": config.moe_router_force_load_balancing,
        "facts.moe_capacity_factor": config.moe_expert_capacity_factor or 0.0,
    }


def model_of(config: typing.Any) -> Seen:
    """Facts of the model that Megatron-Core's configuration states, whoever made it."""
    latent = bool(config.multi_latent_attention)
    return {
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "ffn_hidden_size": config.ffn_hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_kv_heads": config.num_query_groups,
        "head_dim": config.qk_head_dim + config.qk_pos_emb_head_dim if latent else config.kv_channels,
        "v_head_dim": config.v_head_dim if latent else config.kv_channels,
        "normalization": {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm"}[config.normalization],
        "norm_epsilon": config.layernorm_epsilon,
        "gated_mlp": config.gated_linear_unit,
        "activation_clamp": config.activation_func_clamp_value,
        "gate_offset": config.glu_linear_offset,
        "qkv_bias": config.add_bias_linear or config.add_qkv_bias,
        "attention_output_bias": config.add_bias_linear,
        "mlp_bias": config.add_bias_linear,
        "query_key_norm": "per_head" if config.qk_layernorm and not latent else "none",
        "attention_sinks": config.softmax_type == "learnable",
        "zero_centered_norm": config.layernorm_zero_centered_gamma,
        "num_mtp_layers": config.mtp_num_layers or 0,
        **windows_of(config),
        **latent_of(config),
        **experts_of(config),
    }


def windows_of(config: typing.Any) -> Seen:
    """Windows, by layer."""
    from megatron.core.transformer.utils import (  # noqa: PLC0415 - once the judge has readied it
        is_layer_window_attention,
    )

    window, skipped = config.window_size, config.window_attn_skip_freq
    layers = range(1, config.num_layers + 1)
    return {
        "sliding_window": window[0] + 1 if window else None,
        "local_layers": [bool(is_layer_window_attention(window, skipped, layer)) for layer in layers],
    }


def yarn_of(config: typing.Any, names: str = "yarn_") -> Seen:
    """YaRN of plain attention, by the fields' names before it."""
    if (config.yarn_mscale, config.yarn_mscale_all_dim) != (1.0, 0.0):
        raise ValueError("not what transformers has by default")
    return {
        "rotary_scaling.kind": "yarn",
        "rotary_scaling.factor": getattr(config, f"{names}rotary_scaling_factor"),
        "rotary_scaling.original_max_position_embeddings": config.yarn_original_max_position_embeddings,
        "rotary_scaling.beta_fast": config.yarn_beta_fast,
        "rotary_scaling.beta_slow": config.yarn_beta_slow,
        "rotary_scaling.truncate": config.yarn_correction_range_round_to_int,
    }


def latent_of(config: typing.Any) -> Seen:
    """Sizes of latent attention, and the scaling that it has a kind of its own of."""
    if not config.multi_latent_attention:
        return {"mla": None}
    scaled = config.rope_type == "yarn"
    return {
        "mla.norms": config.qk_layernorm,
        "mla.q_lora_rank": config.q_lora_rank or 0,
        "mla.kv_lora_rank": config.kv_lora_rank,
        "mla.qk_rope_head_dim": config.qk_pos_emb_head_dim,
        "rotary_scaling.factor": config.rotary_scaling_factor if scaled else None,
        "rotary_scaling.mscale": config.mscale if scaled else None,
        "rotary_scaling.mscale_all_dim": config.mscale_all_dim if scaled else None,
    }


def normalizes(config: typing.Any) -> bool:
    """Whether the chosen experts' weights sum to 1: moe_utils.py, topk_routing_with_score_function."""
    if config.moe_router_score_function == "sigmoid":
        if config.moe_router_pre_softmax:
            raise ValueError("a softmax before the choice, of sigmoids")
        return bool(config.moe_router_topk > 1)
    return not config.moe_router_pre_softmax


def experts_of(config: typing.Any) -> Seen:
    """Experts, and how they are chosen."""
    if not config.num_moe_experts:
        return {"moe": None}
    return {
        "moe.num_experts": config.num_moe_experts,
        "moe.top_k": config.moe_router_topk,
        "moe.ffn_hidden_size": config.moe_ffn_hidden_size,
        "moe.shared_ffn_hidden_size": config.moe_shared_expert_intermediate_size or 0,
        "moe.router_score": config.moe_router_score_function,
        "moe.normalized_top_k": normalizes(config),
        "moe.router_groups": config.moe_router_num_groups or 0,
        "moe.router_top_groups": config.moe_router_group_topk or 0,
        "moe.selection_bias": config.moe_router_enable_expert_bias,
        "moe.router_scaling": config.moe_router_topk_scaling_factor or 1.0,
        "moe.shared_expert_gate": config.moe_shared_expert_gate,
        "moe.balance_coefficient": config.moe_aux_loss_coeff,
        "moe.balanced_by_sequence": config.moe_router_load_balancing_type == "seq_aux_loss",
    }
