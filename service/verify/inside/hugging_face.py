"""transformers' model for the facts of a plan's model, on meta tensors."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

# What the classes below cannot state, with the value that they can.
_FIXED = {
    "moe": None, "mla": None, "gated_mlp": True, "normalization": "rmsnorm", "num_mtp_layers": 0,
    "learned_position_embeddings": False, "mlp_activation": "silu", "sliding_window": None,
    "shared_norm": False, "attention_sinks": False,
}  # fmt: skip


def config_of(model: dict[str, Any]) -> PretrainedConfig:
    """The configuration of the class that states these facts.

    Raises:
        ValueError: none does.
    """
    other = [name for name, value in _FIXED.items() if model.get(name, value) != value]
    if other:
        raise ValueError(f"no class of transformers is known here for a model with {', '.join(other)}")
    sizes = {
        "hidden_size": model["hidden_size"], "intermediate_size": model["ffn_hidden_size"],
        "num_hidden_layers": model["num_layers"], "num_attention_heads": model["num_attention_heads"],
        "num_key_value_heads": model["num_kv_heads"], "head_dim": model["head_dim"],
        "vocab_size": model["vocab_size"], "tie_word_embeddings": model["tied_embeddings"],
        "max_position_embeddings": model["max_position_embeddings"] or 4096,
    }  # fmt: skip
    if model["query_key_norm"] == "per_head":
        return Qwen3Config(**sizes, attention_bias=model["qkv_bias"])
    if model["qkv_bias"] and not model["attention_output_bias"]:
        return Qwen2Config(**sizes)
    return LlamaConfig(**sizes, attention_bias=model["qkv_bias"], mlp_bias=model["mlp_bias"])


def unsharded_model(model: dict[str, Any]) -> Any:
    """The whole model on the meta device, in fp32 as trainers keep it."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config_of(model), dtype=torch.float32)
