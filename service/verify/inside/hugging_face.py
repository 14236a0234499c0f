"""transformers' model for the facts of a plan's model, on meta tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import transformers.integrations.moe  # noqa: F401 - which has an operator for what no grouped kernel takes
from building import attention
from torch.utils.flop_counter import register_flop_formula
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    LlamaConfig,
    MixtralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

# What the classes below cannot state, with the value that they can.
_FIXED = {
    "mla": None, "gated_mlp": True, "normalization": "rmsnorm", "num_mtp_layers": 0,
    "learned_position_embeddings": False, "sliding_window": None,
    "shared_norm": False, "attention_sinks": False, "norm_position": "before", "embedding_norm": False,
    "inner_norms": False, "attention_gate": "none", "head_bias": False, "head_transform": False,
    "embedding_size": None, "differential_attention": False, "parallel_residual": False,
    "last_attention_bias": False, "mlp_output_bias": False, "normalized_head": False,
    "streams": None, "layer_embedding_size": 0, "borrowing_layers": 0, "keys_are_values": False,
    "value_head_dim": None, "mixer": None, "indexer": None, "tower": None, "diffusion": None,
    "layer_pattern": "", "layer_ffn_sizes": [], "layer_kv_heads": [], "local_attention": None,
    "causal": True, "alibi_positions": False, "sinusoidal_positions": False, "early_first_norm": False,
    "final_norm": True, "value_norm": False, "activation": "silu", "compression": None, "hyper_streams": 0,
    "num_labels": 0, "residual_block_layers": 0,
}  # fmt: skip
_FIXED_OF_EXPERTS = {
    "num_shared_experts": 0, "router_score": "softmax", "router_bias": False, "selection_bias": False,
    "weights_on_input": False, "output_norm": False, "norms_apart": False, "router_scales": False,
    "latent_norm": False,
}  # fmt: skip


def config_of(model: dict[str, Any]) -> PretrainedConfig:
    """Return the configuration of the class that states these facts.

    Raises:
        ValueError: none does.
    """
    facts = model | {"activation": model["activation"] or "silu"}  # the usual one of a gated MLP
    other = [name for name, value in _FIXED.items() if facts[name] != value]
    normed = model["query_key_norm"] == "per_head"
    biases = model["qkv_bias"], model["attention_output_bias"]
    of_qwen2 = biases == (True, False) and not (normed or model["mlp_bias"])
    if model["query_key_norm"] not in ("none", "per_head"):
        other.append("query_key_norm")
    if not of_qwen2 and (biases[0] != biases[1] or (normed and model["mlp_bias"])):
        other.append("these biases")
    moe = model["moe"]
    if moe is not None:
        other += [name for name, value in _FIXED_OF_EXPERTS.items() if moe[name] != value]
        dense = _dense_layers(moe, model["num_layers"])
        if any(biases) or model["mlp_bias"] or (dense and not normed):
            other.append("experts and biases or layers without experts")
    if other:
        raise ValueError(f"no class of transformers is known here for a model with {', '.join(other)}")
    sizes = {
        "hidden_size": model["hidden_size"], "intermediate_size": model["ffn_hidden_size"],
        "num_hidden_layers": model["num_layers"], "num_attention_heads": model["num_attention_heads"],
        "num_key_value_heads": model["num_kv_heads"], "head_dim": model["head_dim"],
        "vocab_size": model["vocab_size"], "tie_word_embeddings": model["tied_embeddings"],
        "max_position_embeddings": model["max_position_embeddings"] or 4096,
    }  # fmt: skip
    if moe is not None:
        chosen = {"num_experts": moe["num_experts"], "num_experts_per_tok": moe["top_k"]}
        if not normed:
            return MixtralConfig(**sizes | {"intermediate_size": moe["ffn_hidden_size"]}, **chosen)
        return Qwen3MoeConfig(
            **sizes, **chosen, moe_intermediate_size=moe["ffn_hidden_size"], mlp_only_layers=dense
        )
    if normed:
        return Qwen3Config(**sizes, attention_bias=model["qkv_bias"])
    if of_qwen2:
        return Qwen2Config(**sizes)
    return LlamaConfig(**sizes, attention_bias=model["qkv_bias"], mlp_bias=model["mlp_bias"])


def _dense_layers(moe: dict[str, Any], num_layers: int) -> list[int]:
    first, every = moe["num_dense_layers"], moe["frequency"]
    return [
        layer for layer in range(num_layers)
        if layer < first or (layer - first) % every or layer in moe["dense_layers"]
    ]  # fmt: skip


def unsharded_model(model: dict[str, Any], device: str = "meta") -> Any:
    """Return the whole model, in fp32 as trainers keep it, with flash attention."""
    with torch.device(device):
        found = AutoModelForCausalLM.from_config(config_of(model), dtype=torch.float32)
    found.set_attn_implementation("standin")
    return found


def _flash_attention(
    module: Any, query: Any, key: Any, value: Any, mask: Any, **_options: Any
) -> tuple[Any, None]:
    """Return flash attention over (batch, heads, sequence, width), as transformers calls it."""
    del module, mask
    return attention(query, key, value).transpose(1, 2), None


AttentionInterface.register("standin", _flash_attention)


@register_flop_formula(torch.ops.transformers.grouped_mm_fallback)
def _fallback_flops(rows: Any, other: Any, *_given: Any, **_options: Any) -> float:
    """As ``aten._grouped_mm``."""
    return 2.0 * rows[0] * rows[1] * other[-1]


@register_flop_formula(torch.ops.transformers.grouped_mm_fallback_backward)
def _fallback_backward_flops(*given: Any, **_options: Any) -> float:
    """Gradients of both factors."""
    return 2.0 * _fallback_flops(*given)


_MATRIX = 2  # dimensions


def joined(layers: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the layers' matrices, those that read the same input as one product."""
    for layer in layers:
        shapes = {  # of ZeRO-3's weights before they were sharded
            name: tuple(getattr(weight, "ds_shape", weight.shape))
            for name, weight in layer.named_parameters()
        }
        for name, shape in shapes.items():
            if ".gate.wg." in name:  # DeepSpeed's router
                continue
            if name.endswith("q_proj.weight"):
                yield (shape[0] + 2 * shapes[name.replace("q_proj", "k_proj")][0], shape[1])
            elif name.endswith("gate_proj.weight"):
                yield (2 * shape[0], shape[1])
            elif ".experts." in name and len(shape) > _MATRIX:  # each for itself, gate and up in one
                yield from (shape[1:],) * shape[0]
            elif not name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight", "mlp.gate.weight")):
                yield shape
