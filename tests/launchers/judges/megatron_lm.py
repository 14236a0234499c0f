"""Megatron-LM 0.19 on a CPU: parse_args, validate_args, the transformer's configuration, micro-batches.

The wheel is for Python 3.12 and GPUs; four things are put in place before its import: ``typing.override``,
a CUDA capability of 9.0, Transformer Engine 2.9, and a fused rotary function that is not None.
"""

from __future__ import annotations

import os
import shlex
import sys
import typing
from pathlib import Path

import torch
import typing_extensions

sys.path.insert(0, str(Path(__file__).parent))
from protocol import Case, Seen, serve

typing.override = typing_extensions.override  # type: ignore[attr-defined]
torch.cuda.get_device_capability = lambda *_args: (9, 0)
torch.cuda.get_device_properties = lambda *_args: type("Hopper", (), {"major": 9, "minor": 0})()

import megatron.core.utils as core_utils  # noqa: E402
from packaging.version import Version  # noqa: E402

core_utils._te_version = Version("2.9.0")

import megatron.core.models.common.embeddings.rope_utils as rope  # noqa: E402

rope.fused_apply_rotary_pos_emb = rope.fused_apply_rotary_pos_emb or (lambda *_args: None)

import torch.nn.functional as F  # noqa: E402, N812
from megatron.core import num_microbatches_calculator as calculator  # noqa: E402
from megatron.core.activations import squared_relu  # noqa: E402
from megatron.core.fusions.fused_bias_geglu import quick_gelu  # noqa: E402
from megatron.core.transformer.utils import is_layer_window_attention  # noqa: E402
from megatron.training.argument_utils import core_transformer_config_from_args  # noqa: E402
from megatron.training.arguments import parse_args, validate_args  # noqa: E402


def configured(case: Case) -> tuple[typing.Any, typing.Any]:
    """The arguments as Megatron-LM validated them, and the transformer's configuration."""
    text = case["files"]["megatron_args.sh"]
    body = text.partition("MEGATRON_ARGS=(\n")[2].rpartition("\n)")[0]
    words = shlex.split(body, comments=True)
    dry = ["--mock-data", "--tokenizer-type", "NullTokenizer", "--train-iters", "10", "--lr", "1e-4"]
    sys.argv = ["pretrain_gpt.py", *words, *dry]
    os.environ.update(RANK="0", WORLD_SIZE=str(case["world_size"]), LOCAL_RANK="0")
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(case["environment"])
    args = validate_args(parse_args())
    return args, core_transformer_config_from_args(args)


def judge(case: Case) -> Seen:
    """What Megatron-LM makes of the arguments file."""
    args, config = configured(case)
    calculator.unset_num_microbatches_calculator()
    calculator.init_num_microbatches_calculator(
        0, None, args.global_batch_size, args.micro_batch_size, args.data_parallel_size,
        step_batch_size_schedule=args.step_batch_size_schedule, seq_length=args.seq_length,
    )  # fmt: skip
    if args.step_batch_size_schedule:
        calculator.update_num_microbatches(10**12)  # the last batch
        args.global_batch_size = calculator.get_current_global_batch_size()
    return seen_of(args, config)


def seen_of(args: typing.Any, config: typing.Any) -> Seen:
    """The plan as Megatron-LM understood it."""
    chunks = args.pipeline_model_parallel_size * (args.virtual_pipeline_model_parallel_size or 1)
    split = [args.num_layers // chunks] * chunks
    if config.pipeline_model_parallel_layout is not None:
        stages = config.pipeline_model_parallel_layout.layout  # by pipeline rank, then virtual stage
        virtual = len(stages[0])
        flat = [stages[rank][part] for part in range(virtual) for rank in range(len(stages))]
        split = [sum(kind.name == "decoder" for kind in stage) for stage in flat]
    return {
        "tensor_parallel_size": args.tensor_model_parallel_size,
        "pipeline_parallel_size": args.pipeline_model_parallel_size,
        "virtual_pipeline_size": args.virtual_pipeline_model_parallel_size or 1,
        "context_parallel_size": args.context_parallel_size,
        "context_parallel_mode": context_mode(args),
        "data_parallel_size": args.data_parallel_size,
        "sequence_parallel": args.sequence_parallel,
        "micro_batch_size": args.micro_batch_size,
        "num_microbatches": calculator.get_num_microbatches(),
        "recompute_granularity": args.recompute_granularity or "none",
        "stage_layers": split,
        "num_layers": config.num_layers,
        "num_kv_heads": config.num_query_groups,
        "ffn_hidden_size": config.ffn_hidden_size,
        "global_batch_size": args.global_batch_size,
        "moments": str(args.exp_avg_dtype).removeprefix("torch."),
        "model": facts_of(args, config),
    }


MODES = {None: "ring", "p2p": "ring", "a2a": "all_to_all", "a2a+p2p": "all_to_all_{}+ring"}


def context_mode(found: typing.Any) -> str:
    """How ranks share attention, by one word for all layers; of both ways, how many exchange heads."""
    words = found.cp_comm_type if found.context_parallel_size > 1 else None
    (kind,) = {*words} if isinstance(words, list) else {words}
    sizes = found.hierarchical_context_parallel_sizes or [0]
    return MODES[kind].format(sizes[0])


def facts_of(args: typing.Any, config: typing.Any) -> Seen:
    """The model's facts as Megatron-LM understood them."""
    activations = {F.silu: "silu", F.gelu: "gelu", quick_gelu: "quick_gelu", squared_relu: "squared_relu"}
    latent = bool(config.multi_latent_attention)
    return {
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "head_dim": config.qk_head_dim + config.qk_pos_emb_head_dim if latent else config.kv_channels,
        "v_head_dim": config.v_head_dim if latent else config.kv_channels,
        "normalization": {"RMSNorm": "rmsnorm", "LayerNorm": "layernorm"}[config.normalization],
        "norm_epsilon": config.layernorm_epsilon,
        "gated_mlp": config.gated_linear_unit,
        "mlp_activation": activations[config.activation_func],
        "activation_clamp": config.activation_func_clamp_value,
        "gate_offset": config.glu_linear_offset,
        "qkv_bias": config.add_bias_linear or config.add_qkv_bias,
        "attention_output_bias": config.add_bias_linear,
        "mlp_bias": config.add_bias_linear,
        "query_key_norm": "per_head" if config.qk_layernorm and not latent else "none",
        "attention_sinks": config.softmax_type == "learnable",
        "zero_centered_norm": config.layernorm_zero_centered_gamma,
        "tied_embeddings": not args.untie_embeddings_and_output_weights,
        "num_mtp_layers": config.mtp_num_layers or 0,
        **positions_of(args, config),
        **latent_of(config),
        **experts_of(config),
    }


def positions_of(args: typing.Any, config: typing.Any) -> Seen:
    """Windows, and positions by table or rotation."""
    layers = range(1, config.num_layers + 1)
    window, skipped = config.window_size, config.window_attn_skip_freq
    yarn, latent = args.position_embedding_type == "yarn", bool(config.multi_latent_attention)
    rotates = yarn or args.position_embedding_type == "rope"
    scaling = (
        args.rope_scaling_factor if args.use_rope_scaling else args.rotary_seq_len_interpolation_factor
    )
    if latent:
        scaling = config.rotary_scaling_factor if config.rope_type == "yarn" else None
    scaled = latent and scaling is not None
    found: Seen = (
        {
            "rotary_scaling.kind": "yarn",
            "rotary_scaling.original_max_position_embeddings": config.yarn_original_max_position_embeddings,
            "rotary_scaling.beta_fast": config.yarn_beta_fast,
            "rotary_scaling.beta_slow": config.yarn_beta_slow,
            "rotary_scaling.truncate": config.yarn_correction_range_round_to_int,
        }
        if yarn
        else {}
    )
    if yarn:
        scaling = config.yarn_rotary_scaling_factor
        assert (config.yarn_mscale, config.yarn_mscale_all_dim) == (1.0, 0.0), (
            "what transformers has by default"
        )
    return found | {
        "learned_position_embeddings": not rotates,
        "rotary_base": args.rotary_base if rotates else None,
        "rotary_fraction": args.rotary_percent,
        "rotary_scaling.factor": scaling,
        "rotary_scaling.mscale": config.mscale if scaled else None,
        "rotary_scaling.mscale_all_dim": config.mscale_all_dim if scaled else None,
        "layers_without_rotary": [bool(one) for one in config.no_rope_freq or [0] * config.num_layers],
        "sliding_window": window[0] + 1 if window else None,
        "local_layers": [is_layer_window_attention(window, skipped, layer) for layer in layers],
    }


def latent_of(config: typing.Any) -> Seen:
    """Sizes of latent attention."""
    latent = bool(config.multi_latent_attention)
    return {
        "mla.norms": config.qk_layernorm if latent else None,
        "mla.q_lora_rank": (config.q_lora_rank or 0) if latent else None,
        "mla.kv_lora_rank": config.kv_lora_rank if latent else None,
        "mla.qk_rope_head_dim": config.qk_pos_emb_head_dim if latent else None,
    }


def experts_of(config: typing.Any) -> Seen:
    """Experts, and how they are chosen."""
    if not config.num_moe_experts:
        return {"moe": None}
    groups = (config.moe_router_num_groups or 0, config.moe_router_group_topk or 0)
    return {
        "moe.num_experts": config.num_moe_experts,
        "moe.top_k": config.moe_router_topk,
        "moe.ffn_hidden_size": config.moe_ffn_hidden_size,
        "moe.shared_ffn_hidden_size": config.moe_shared_expert_intermediate_size or 0,
        "moe.router_score": config.moe_router_score_function,
        "moe.normalized_top_k": not config.moe_router_pre_softmax,
        "moe.router_groups": groups[0],
        "moe.router_top_groups": groups[1],
        "moe.selection_bias": config.moe_router_enable_expert_bias,
        "moe.router_scaling": config.moe_router_topk_scaling_factor or 1.0,
        "moe.shared_expert_gate": config.moe_shared_expert_gate,
        "moe.balance_coefficient": config.moe_aux_loss_coeff,
        "moe.balanced_by_sequence": config.moe_router_load_balancing_type == "seq_aux_loss",
    }


if __name__ == "__main__":
    serve(judge)
