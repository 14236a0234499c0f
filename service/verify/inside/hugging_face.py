"""transformers' model for the facts of a plan's model, on meta tensors."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

# What the classes below cannot state, with the value that they can.
_FIXED = {
    "moe": None, "mla": None, "gated_mlp": True, "normalization": "rmsnorm", "num_mtp_layers": 0,
    "learned_position_embeddings": False, "mlp_activation": "silu", "sliding_window": None,
    "shared_norm": False, "attention_sinks": False, "norm_position": "before", "embedding_norm": False,
    "inner_norms": False, "attention_gate": "none", "head_bias": False, "head_transform": False,
    "embedding_size": None, "differential_attention": False, "parallel_residual": False,
}  # fmt: skip


def config_of(model: dict[str, Any]) -> PretrainedConfig:
    """The configuration of the class that states these facts.

    Raises:
        ValueError: none does.
    """
    other = [name for name, value in _FIXED.items() if model.get(name, value) != value]
    normed = model["query_key_norm"] == "per_head"
    biases = model["qkv_bias"], model["attention_output_bias"]
    of_qwen2 = biases == (True, False) and not (normed or model["mlp_bias"])
    if model["query_key_norm"] not in ("none", "per_head"):
        other.append("query_key_norm")
    if not of_qwen2 and (biases[0] != biases[1] or (normed and model["mlp_bias"])):
        other.append("these biases")
    if other:
        raise ValueError(f"no class of transformers is known here for a model with {', '.join(other)}")
    sizes = {
        "hidden_size": model["hidden_size"], "intermediate_size": model["ffn_hidden_size"],
        "num_hidden_layers": model["num_layers"], "num_attention_heads": model["num_attention_heads"],
        "num_key_value_heads": model["num_kv_heads"], "head_dim": model["head_dim"],
        "vocab_size": model["vocab_size"], "tie_word_embeddings": model["tied_embeddings"],
        "max_position_embeddings": model["max_position_embeddings"] or 4096,
    }  # fmt: skip
    if normed:
        return Qwen3Config(**sizes, attention_bias=model["qkv_bias"])
    if of_qwen2:
        return Qwen2Config(**sizes)
    return LlamaConfig(**sizes, attention_bias=model["qkv_bias"], mlp_bias=model["mlp_bias"])


def unsharded_model(model: dict[str, Any]) -> Any:
    """The whole model on the meta device, in fp32 as trainers keep it."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config_of(model), dtype=torch.float32)
