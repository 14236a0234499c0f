"""A model in the names of Megatron-Core's configuration, for the launchers that state it themselves.

Every field that a model decides is here, also at Megatron-Core's default, since a recipe may set another
value. Megatron-Bridge writes these names; Megatron-LM's flags follow from them by ``flags.yaml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from meshwright.launchers.megatron_core.names import Values, balance_values
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MlaSpec, MoeSpec, RotaryScaling

VOCABULARY_UNIT = 128  # the vocabulary is padded to a multiple of this times tp


def model_values(model: ModelSpec) -> Values:
    """Return the fields of every model; experts and latent attention have more."""
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "kv_channels": model.head_dim,
        "num_query_groups": model.num_kv_heads,
        "gated_linear_unit": model.gated_mlp,
        "activation_func_clamp_value": model.activation_clamp,
        "glu_linear_offset": model.gate_offset,
        "add_bias_linear": model.mlp_bias,
        "add_qkv_bias": model.qkv_bias and not model.mlp_bias,
        "normalization": "RMSNorm" if model.normalization == "rmsnorm" else "LayerNorm",
        **({} if model.norm_epsilon is None else {"layernorm_epsilon": model.norm_epsilon}),
        "layernorm_zero_centered_gamma": model.zero_centered_norm,
        "qk_layernorm": model.mla.norms if model.mla else model.query_key_norm == "per_head",
        **({"attention_output_gate": True} if model.gate_in_queries else {}),
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "softmax_type": "learnable" if model.attention_sinks else "vanilla",
        "position_embedding_type": positions_of(model),
        "max_position_embeddings": (model.max_position_embeddings or 0) + model.learned_position_offset,
        **_rotary_values(model),
        "vocab_size": model.vocab_size,
        "make_vocab_size_divisible_by": VOCABULARY_UNIT,
        **({"mtp_num_layers": model.num_mtp_layers} if model.num_mtp_layers else {}),
        **_window_values(model),
    }


def positions_of(model: ModelSpec) -> str:
    """Return Megatron-Core's name for the model's positions; latent attention has a YaRN of its own."""
    if not model.has_rotary_positions:
        return "learned_absolute"
    if model.layer_pattern and all(model.layers_without_rotary()):
        return "none"
    scaling = model.rotary_scaling
    return "yarn" if model.mla is None and scaling is not None and scaling.kind == "yarn" else "rope"


def _rotary_values(model: ModelSpec) -> Values:
    if positions_of(model) in ("learned_absolute", "none"):
        return {}
    values: Values = {} if model.rotary_base is None else {"rotary_base": model.rotary_base}
    values["rotary_percent"] = model.rotary_fraction
    if any(model.layers_without_rotary()):
        values["no_rope_freq"] = _layers_without_positions(model)
    scaling = model.rotary_scaling
    if model.mla is not None:  # YaRN by default (Megatron-Core ``MLATransformerConfig``)
        if scaling is None:
            return values | {"rope_type": "rope", "apply_rope_fusion": False}  # fused for YaRN only
        return values | {
            "rope_type": "yarn",
            "rotary_scaling_factor": scaling.factor,
            "mscale": 1.0 if scaling.mscale is None else scaling.mscale,
            "mscale_all_dim": scaling.mscale_all_dim or 0.0,
        }
    values["rope_scaling"] = scaling is not None and scaling.kind == "llama3"
    if scaling is not None and scaling.kind == "yarn":
        values |= _yarn_values(model, scaling)
    elif scaling is not None:
        name = "rope_scaling_factor" if scaling.kind == "llama3" else "seq_len_interpolation_factor"
        values[name] = scaling.factor
    return values


def _yarn_values(model: ModelSpec, scaling: RotaryScaling) -> Values:
    """Return YaRN's numbers, by the names of the attributes that Megatron-Core's ``GPTModel`` reads.

    If a config states only one ``mscale``, ``transformers`` reads neither.
    """
    both = scaling.mscale is not None and scaling.mscale_all_dim is not None
    original = scaling.original_max_position_embeddings or model.max_position_embeddings
    return {
        "yarn_rotary_scaling_factor": scaling.factor,
        "yarn_mscale": (scaling.mscale if both else None) or 1.0,
        "yarn_mscale_all_dim": (scaling.mscale_all_dim if both else None) or 0.0,
        "yarn_original_max_position_embeddings": original or 4096,
        "yarn_beta_fast": scaling.beta_fast,
        "yarn_beta_slow": scaling.beta_slow,
        "yarn_correction_range_round_to_int": scaling.truncate,
    }


def layer_list(marked: Sequence[bool]) -> str:
    """Return 1 for each marked layer, in runs, as Megatron-Core reads them: ``([0]*3+[1]*58)``."""
    return "(" + "+".join(f"[{int(mark)}]*{len(list(run))}" for mark, run in groupby(marked)) + ")"


def _layers_without_positions(model: ModelSpec) -> str:
    """Return ``([0]*3+[1])*12`` for every n-th layer without positions, with the remainder at the end."""
    every = model.no_rotary_every
    if not every:
        return layer_list(model.layers_without_rotary())
    groups, rest = divmod(model.num_layers, every)
    return f"([0]*{every - 1}+[1])*{groups}" + (f"+[0]*{rest}" if rest else "")


def _window_values(model: ModelSpec) -> Values:
    if model.sliding_window is None:
        return {}
    values: Values = {"window_size": (model.sliding_window - 1, 0)}  # neighbours, left and right
    if model.sliding_window_every > 1:
        values["window_attn_skip_freq"] = model.sliding_window_every
    elif model.global_layers:
        values["window_attn_skip_freq"] = [int(local) for local in model.local_layers()]
    return values


def expert_values(model: ModelSpec, moe: MoeSpec) -> Values:
    """Return the experts' sizes, their layers, and the router."""
    shared = {
        "moe_shared_expert_intermediate_size": moe.shared_ffn_hidden_size,
        "moe_shared_expert_gate": moe.shared_expert_gate,
    }
    frequency = {"moe_layer_freq": layer_list([kind == "moe" for kind in model.layer_kinds()])}
    return {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_ffn_hidden_size": moe.ffn_hidden_size,
        **({} if model.layer_pattern else frequency),
        **(shared if moe.shared_ffn_hidden_size else {}),
        "moe_router_score_function": moe.router_score,
        "moe_router_pre_softmax": moe.router_score == "softmax" and not moe.normalized_top_k,
        "moe_router_enable_expert_bias": moe.selection_bias,
        "moe_router_num_groups": moe.router_groups or None,
        "moe_router_group_topk": moe.router_top_groups or None,
        "moe_router_topk_scaling_factor": moe.router_scaling if moe.router_scaling != 1 else None,
        **balance_values(moe),
    }


def latent_values(mla: MlaSpec) -> Values:
    """Return the sizes of latent attention."""
    return {
        "multi_latent_attention": True,
        "q_lora_rank": mla.q_lora_rank or None,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_head_dim": mla.qk_nope_head_dim,
        "qk_pos_emb_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
    }
