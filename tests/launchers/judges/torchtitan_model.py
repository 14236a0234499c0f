"""The model's facts as torchtitan 0.3 understood them, for both of its judges."""

from __future__ import annotations

from typing import Any

from protocol import Seen


def facts_of(model: Any) -> Seen:
    """The model's facts as torchtitan understood them."""
    rope = attending(model).rope
    dense = next((layer.feed_forward for layer in model.layers if layer.feed_forward), None)
    return {
        "num_layers": len(model.layers),
        "hidden_size": model.dim,
        "vocab_size": model.vocab_size,
        "tied_embeddings": model.enable_weight_tying,
        "norm_epsilon": model.norm.eps,
        "rotary_base": rope.theta,
        "rotary_scaling.factor": {"llama": rope.scaling_factor, "yarn": rope.rope_factor}.get(rope.scaling),
        "layer_kinds": ["moe" if layer.moe else "dense" for layer in model.layers],
        "num_mtp_layers": len(getattr(model, "mtp_layers", ())),
        **({"ffn_hidden_size": dense.w1.out_features} if dense else {}),
        **attention_facts(model),
        **expert_facts(model),
    }


def attending(model: Any) -> Any:
    """The attention of the first layer that has one; others have a delta net."""
    return next(layer.attention for layer in model.layers if layer.attention)


def attention_facts(model: Any) -> Seen:
    """Heads, and of latent attention its ranks and widths."""
    attention = attending(model)
    if hasattr(attention, "rotary_dim"):  # Qwen3.5, whose queries have gates in their projection
        return {
            "num_attention_heads": attention.n_heads,
            "num_kv_heads": attention.n_kv_heads,
            "head_dim": attention.head_dim,
            "query_key_norm": "per_head" if attention.q_norm else "none",
            "qkv_bias": bool(attention.wq.bias),
            "tower.num_layers": model.vision_encoder.num_layers,
        }
    if not hasattr(attention, "kv_lora_rank"):
        return {
            "num_attention_heads": attention.n_heads,
            "num_kv_heads": attention.n_kv_heads or attention.n_heads,
            "head_dim": attention.head_dim or model.dim // attention.n_heads,
            "query_key_norm": "per_head" if attention.qk_norm else "none",
            "qkv_bias": bool(attention.qkv_linear.wqkv.bias),
        }
    widths = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    scaled = {
        "rotary_scaling.original_max_position_embeddings": attention.rope.original_seq_len,
        "rotary_scaling.mscale_all_dim": attention.mscale,
    }
    return {
        "num_attention_heads": attention.n_heads,
        **(scaled if attention.rope.rope_factor != 1 else {}),
        **{f"mla.{name}": getattr(attention, name) for name in widths},
    }


def expert_facts(model: Any) -> Seen:
    """Experts and their router."""
    moe = next((layer.moe for layer in model.layers if layer.moe), None)
    if moe is None:
        return {"moe": None}
    router = moe.router
    return {
        "moe.num_experts": moe.num_experts,
        "moe.top_k": router.top_k,
        "moe.ffn_hidden_size": moe.routed_experts.inner_experts.hidden_dim,
        "moe.shared_ffn_hidden_size": moe.shared_experts.w1.out_features if moe.shared_experts else 0,
        "moe.router_score": router.score_func,
        "moe.normalized_top_k": router.route_norm,
        "moe.router_scaling": router.route_scale,
        "moe.router_groups": router.num_expert_groups or 0,
        "moe.router_top_groups": router.num_limited_groups or 0,
    }
