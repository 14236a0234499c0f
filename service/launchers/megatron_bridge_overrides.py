"""The overrides themselves, in groups; every value that the plan decided is there."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from profiles.model import ModelSpec
from service.launchers.megatron_bridge_precision import bridge_facts, mixed_precision, reduces_in_fp32
from service.launchers.megatron_names import (
    CONTEXT_MODES,
    OFFLOADED_OPTIMIZER,
    STAGES_BEFORE_DATA,
    Values,
    distributed_optimizer,
    overlapped,
    parallel_values,
    recompute_values,
    split_values,
)
from service.launchers.target import Target

Pairs = Sequence[tuple[str, object]]
_SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
_FIRST_FSDP_STAGE = 2


def override_parts(target: Target) -> list[tuple[str, list[str]]]:
    """Titles, each with its ``key=value`` overrides quoted for Bash."""
    parts = (
        ("Parallel sizes; data parallel size and micro-batches follow from them", _parallel(target)),
        ("Pipeline split", _model_keys(_split(target))),
        ("Batch and sequence", _batch(target)),
        ("Data parallelism", _data_parallel(target)),
        ("Activation recomputation", _model_keys(_recompute(target))),
        ("Precision", mixed_precision(target)),
        ("Kernels", _kernels(target)),
        ("Model", _model_keys(_model(target.model))),
    )
    return [(title, [_written(key, value) for key, value in _pairs(values)]) for title, values in parts]


def _pairs(values: Values | Pairs) -> Iterable[tuple[str, object]]:
    """Overrides in order; where a key is set twice they are a list."""
    return values.items() if isinstance(values, Mapping) else values


def _written(key: str, value: object) -> str:
    if value is None:
        text = "null"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value)
    return shlex.quote(f"{key}={text}")


def _model_keys(values: Values) -> Values:
    return {f"model.{name}": value for name, value in values.items()}


def _parallel(target: Target) -> Values:
    values = _model_keys(parallel_values(target))
    if target.model.moe:
        values["model.expert_tensor_parallel_size"] = target.config.expert_tensor_parallel_size
        values["model.overlap_moe_expert_parallel_comm"] = overlapped(target, bridge_facts(target))
    if target.config.context_parallel_size > 1:
        values["model.cp_comm_type"] = CONTEXT_MODES[target.config.context_parallel_mode]
    if target.config.rank_order == STAGES_BEFORE_DATA:
        values["dist.use_tp_pp_dp_mapping"] = True
    values["comm_overlap"] = None  # or it would rewrite what overlaps
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
        "dataset.sequence_length": target.workload.seq_length,
    }


def _data_parallel(target: Target) -> Values:
    config = target.config
    values: Values = {f"ddp.{name}": value for name, value in distributed_optimizer(target).items()}
    # Mixed precision has the last word, and says the same.
    values["ddp.grad_reduce_in_fp32"] = reduces_in_fp32(target)
    values["optimizer.use_distributed_optimizer"] = config.zero_stage > 0
    values["optimizer.optimizer"] = "adam"
    if config.zero_stage:
        values["ddp.num_distributed_optimizer_instances"] = target.shard_ranks // config.zero_shard_size
    if config.offload == "optimizer":
        values |= {f"optimizer.{name}": value for name, value in OFFLOADED_OPTIMIZER.items()}
    if config.zero_stage >= _FIRST_FSDP_STAGE:
        values |= {
            "ddp.use_megatron_fsdp": True,
            "dist.use_megatron_fsdp": True,
            "ddp.data_parallel_sharding_strategy": _SHARDING[config.zero_stage],
            "checkpoint.ckpt_format": "fsdp_dtensor",
        }
    return values


def _recompute(target: Target) -> Values:
    values = recompute_values(target)
    if "recompute_modules" in values:
        values["recompute_modules"] = "[core_attn]"
    return values


def _kernels(target: Target) -> Values:
    known = bridge_facts(target)
    dropout = 0.1 if known.dropout else 0.0
    return {
        "model.cross_entropy_loss_fusion": known.loss_fused,
        "model.attention_dropout": dropout,
        "model.hidden_dropout": dropout,
    }


def _model(model: ModelSpec) -> Values:
    values: Values = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_kv_heads,
        "kv_channels": model.head_dim,
        "vocab_size": model.vocab_size,
        "should_pad_vocab": True,
        "make_vocab_size_divisible_by": 128,
        "gated_linear_unit": model.gated_mlp,
        "add_bias_linear": model.mlp_bias,
        "add_qkv_bias": model.qkv_bias and not model.mlp_bias,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "normalization": "RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm",
        "position_embedding_type": "learned_absolute" if model.learned_position_embeddings else "rope",
    }
    if model.norm_epsilon is not None:
        values["layernorm_epsilon"] = model.norm_epsilon
    values["layernorm_zero_centered_gamma"] = model.zero_centered_norm
    values["qk_layernorm"] = model.mla.norms if model.mla else model.query_key_norm == "per_head"
    values |= _positions(model)
    if model.num_mtp_layers:
        values["mtp_num_layers"] = model.num_mtp_layers
    if model.sliding_window is not None:
        values["window_size"] = f"[{model.sliding_window - 1},0]"
        if model.sliding_window_every > 1:
            values["window_attn_skip_freq"] = model.sliding_window_every
    return values | _experts(model) | _latent(model)


def _positions(model: ModelSpec) -> Values:
    if not model.has_rotary_positions:
        return {}
    values: Values = {} if model.rotary_base is None else {"rotary_base": model.rotary_base}
    values["rotary_percent"] = model.rotary_fraction
    scaling = model.rotary_scaling
    if model.mla is not None:
        values["rope_type"] = "yarn" if scaling else "rope"
        if scaling:
            values["rotary_scaling_factor"] = scaling.factor
            values["mscale"] = 1.0 if scaling.mscale is None else scaling.mscale
            values["mscale_all_dim"] = scaling.mscale_all_dim or 0.0
        else:
            values["apply_rope_fusion"] = False  # fused for YaRN only
        return values
    values["rope_scaling"] = scaling is not None and scaling.kind == "llama3"
    if scaling:
        name = "rope_scaling_factor" if scaling.kind == "llama3" else "seq_len_interpolation_factor"
        values[name] = scaling.factor
    return values


def _experts(model: ModelSpec) -> Values:
    moe = model.moe
    if moe is None:
        return {"num_moe_experts": None}
    pattern = [f"[{int(kind == 'moe')}]*{len(list(run))}" for kind, run in groupby(model.layer_kinds())]
    values: Values = {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        "moe_layer_freq": f"'({'+'.join(pattern)})'",  # quoted for Hydra too
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": True,
    }
    if moe.shared_ffn_hidden_size:
        values["moe_shared_expert_intermediate_size"] = moe.shared_ffn_hidden_size
        values["moe_shared_expert_gate"] = moe.shared_expert_gate
    values["moe_router_score_function"] = moe.router_score
    values["moe_router_pre_softmax"] = moe.router_score == "softmax" and not moe.normalized_top_k
    values["moe_router_enable_expert_bias"] = moe.selection_bias
    values["moe_router_num_groups"] = moe.router_groups or None
    values["moe_router_group_topk"] = moe.router_top_groups or None
    values["moe_router_topk_scaling_factor"] = moe.router_scaling if moe.router_scaling != 1 else None
    return values


def _latent(model: ModelSpec) -> Values:
    mla = model.mla
    if mla is None:
        return {}
    return {
        "q_lora_rank": mla.q_lora_rank or None,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_head_dim": mla.qk_nope_head_dim,
        "qk_pos_emb_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
    }
