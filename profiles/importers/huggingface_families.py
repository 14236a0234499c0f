"""How the Hugging Face model families name their sizes, and what their code does without saying.

Source: the configuration and modeling classes of ``transformers`` (one folder a family).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

_LLAMA_KEYS: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "ffn_hidden_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads",),
    "max_position_embeddings": ("max_position_embeddings",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts of one family that its config files do not state."""

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _LLAMA_KEYS)  # our name: theirs
    gated_mlp: bool = True
    tied_embeddings: bool = False  # the class's default of tie_word_embeddings
    learned_positions: bool = False
    normalization: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    linear_bias: bool = False
    ffn_is_four_hidden: bool = False  # the MLP's width may be left out


LLAMA_LIKE = Family()
_GEMMA = Family(tied_embeddings=True)
_GPT = Family(gated_mlp=False, tied_embeddings=True, normalization="layernorm", linear_bias=True)
_GPT2_KEYS = {
    "num_layers": ("n_layer", "num_hidden_layers"),
    "hidden_size": ("n_embd", "hidden_size"),
    "ffn_hidden_size": ("n_inner", "intermediate_size"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "max_position_embeddings": ("n_positions", "max_position_embeddings"),
}
_BLOOM_KEYS = {
    "num_layers": ("n_layer", "num_hidden_layers"),
    "hidden_size": ("hidden_size", "n_embed"),
    "ffn_hidden_size": ("intermediate_size",),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "max_position_embeddings": ("seq_length",),
}

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        (
            *("llama", "mistral", "ministral", "mixtral", "phi3", "granite", "granitemoe"),
            *("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "olmo2", "olmo3", "olmoe", "gpt_oss"),
            *("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4", "glm4_moe", "smollm3", "seed_oss"),
        ),
        LLAMA_LIKE,
    ),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text"), _GEMMA),
    "olmo": replace(LLAMA_LIKE, normalization="layernorm"),
    "phimoe": replace(LLAMA_LIKE, normalization="layernorm"),
    "stablelm": replace(LLAMA_LIKE, normalization="layernorm"),
    "cohere": replace(LLAMA_LIKE, tied_embeddings=True, normalization="layernorm"),
    "gpt2": replace(_GPT, keys=_GPT2_KEYS, learned_positions=True, ffn_is_four_hidden=True),
    "gpt_neox": replace(_GPT, tied_embeddings=False),
    "phi": replace(_GPT, tied_embeddings=False),
    "starcoder2": _GPT,
    "bloom": replace(_GPT, keys=_BLOOM_KEYS, ffn_is_four_hidden=True),
    "opt": replace(_GPT, keys=_LLAMA_KEYS | {"ffn_hidden_size": ("ffn_dim",)}, learned_positions=True),
}
