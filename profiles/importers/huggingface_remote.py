"""Model types with code that is published next to their weights: the facts of each.

As ``huggingface_families``. Sources: the modeling and configuration files that each names. The defaults of
their configuration classes are here, because transformers has no class for them; experts are linear layers
each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.profiles.importers.huggingface_keys import Facts, ModelTypeKeys
from meshwright.profiles.reading import FieldReader

_ATTENTION_BIASES: Facts = {"qkv_bias": True, "attention_output_bias": True}
_FUSED: Facts = {"fused_qkv": True}
_INTERNLM: dict[str, Any] = {
    "like": "llama", "names": {"bias": "attention_bias"},
    "flags": {"attention_bias": (False, _ATTENTION_BIASES)},
    "defaults": {"vocab_size": 103_168, "attention_bias": True, "tie_word_embeddings": False},
}  # fmt: skip


_BAICHUAN_2 = 125_696  # tokens, by which vLLM recognises it (models/baichuan.py)


def _first_or_second(reader: FieldReader, _known: Mapping[str, Any]) -> Facts:
    """Return Baichuan's positions: ALiBi for 13 B, where configs have only ``model_max_length``.

    Baichuan 2's head has rows of unit length (``NormHead`` of its code on the Hugging Face Hub).
    """
    only = reader.has("model_max_length") and not reader.has("max_position_embeddings")
    second: Facts = {"normalized_head": True} if reader.value("vocab_size") == _BAICHUAN_2 else {}
    return {**second, **({"alibi_positions": True} if only else {})}


_BAILING: dict[str, Any] = {
    "experts": "num_experts",
    "facts": _FUSED,
    "unused": ("moe_router_enable_expert_bias", "moe_shared_expert_intermediate_size", "router_dtype",
               "mtp_loss_scaling_factor", "using_split_qkv_in_self_attention", "multi_gate"),
}  # fmt: skip

REMOTE: Mapping[str, ModelTypeKeys] = {
    "internlm": ModelTypeKeys(**_INTERNLM),  # modeling_internlm.py of internlm/internlm-7b
    "internlm2": ModelTypeKeys(facts=_FUSED, **_INTERNLM),  # modeling_internlm2.py of internlm/internlm2-7b
    # Scaled embeddings, residuals and logits (modeling_minicpm.py of openbmb/MiniCPM)
    "minicpm": ModelTypeKeys(
        like="llama",
        flags={"attention_bias": (False, _ATTENTION_BIASES), "mlp_bias": (False, {"mlp_bias": True})},
        numbers={"scale_emb": ("embedding_scale", float)},
        experts="num_experts", dense_without_experts=True, router={"linear_router": True},
        defaults={"tie_word_embeddings": True},
    ),
    "orion": ModelTypeKeys(  # modeling_orion.py of OrionStarAI/Orion-14B
        like="llama", facts={"normalization": "layernorm"},
        flags={"attention_bias": (False, _ATTENTION_BIASES), "mlp_bias": (False, {"mlp_bias": True})},
    ),
    # modeling_exaone.py of LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct, also EXAONE 3.0 and Deep
    "exaone": ModelTypeKeys(
        keys={"num_layers": "num_layers"}, names={"num_hidden_layers": "num_layers"},
        ffn_of_hidden=4,
        defaults={"vocab_size": 102_400, "hidden_size": 2048, "num_layers": 32, "num_attention_heads": 32,
                  "max_position_embeddings": 2048, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
    ),
    # modeling_phi.py of microsoft/phi-2 as first published
    "phi-msft": ModelTypeKeys(
        keys={
            "num_layers": "n_layer", "hidden_size": "n_embd", "ffn_hidden_size": "n_inner",
            "num_attention_heads": "n_head", "num_kv_heads": "n_head_kv",
            "max_position_embeddings": "n_positions",
        },
        activation="gelu", ffn_of_hidden=4,
        facts={
            **_FUSED, **_ATTENTION_BIASES, "mlp_bias": True, "head_bias": True, "gated_mlp": False,
            "normalization": "layernorm", "parallel_residual": True, "shared_norm": True,
        },
        defaults={"vocab_size": 50_304, "n_positions": 2048, "n_embd": 1024, "n_layer": 20, "n_head": 16,
                  "rotary_dim": 32, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False},
    ),
    # modeling_baichuan.py of baichuan-inc/Baichuan-7B, Baichuan-13B and Baichuan2-7B
    "baichuan": ModelTypeKeys(
        facts=_FUSED, follows=_first_or_second,
        defaults={"vocab_size": 64_000, "hidden_size": 4096, "intermediate_size": 11_008,
                  "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6,
                  "tie_word_embeddings": False},
        unused=("z_loss_weight", "gradient_checkpointing"),
    ),
    # configuration_telechat.py and modeling_telechat.py of Tele-AI/telechat-7B
    "telechat": ModelTypeKeys(
        keys={"num_layers": "n_layer", "num_attention_heads": "n_head",
              "ffn_hidden_size": "ffn_hidden_size"},
        names={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "n_embed": "hidden_size"},
        facts={"fused_kv": True, "attention_output_bias": True, "mlp_output_bias": True},
        own_activation=True,
        fixed={"apply_residual_connection_post_layernorm": False, "embed_layernorm": False},
        defaults={"vocab_size": 160_256, "hidden_size": 4096, "n_layer": 30, "n_head": 32,
                  "ffn_hidden_size": 12_288, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
        unused=("intermediate_size", "logn", "training_seqlen", "base_seqlen", "seed"),
    ),
    # modeling_qwen.py of Qwen/Qwen-7B: half of ``intermediate_size`` is the MLP's width; scores and
    # positions are stretched beyond the trained length in inference alone
    "qwen": ModelTypeKeys(
        facts={**_FUSED, "qkv_bias": True}, names={"kv_channels": "head_dim"},
        numbers={"intermediate_size": ("ffn_hidden_size", lambda value: int(value) // 2)},
        fixed={"no_bias": True, "scale_attn_weights": True, "use_dynamic_ntk": (True, False),
               "use_logn_attn": (True, False)},
        defaults={
            "vocab_size": 151_936, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "intermediate_size": 22_016, "head_dim": 128, "layer_norm_epsilon": 1e-6,
            "max_position_embeddings": 8192, "rotary_emb_base": 10_000, "tie_word_embeddings": False,
        },
        unused=("seq_length", "bf16", "fp16", "fp32", "softmax_in_fp32", "use_cache_quantization",
                "use_cache_kernel"),
    ),
    # modeling_chatglm.py of THUDM/chatglm3-6b; also ChatGLM 2 and GLM-4-9B as first published
    "chatglm": ModelTypeKeys(
        keys={
            "num_layers": "num_layers", "ffn_hidden_size": "ffn_hidden_size",
            "num_kv_heads": "multi_query_group_num", "max_position_embeddings": "seq_length",
        },
        names={"padded_vocab_size": "vocab_size", "kv_channels": "head_dim",
               "layernorm_epsilon": "rms_norm_eps", "num_hidden_layers": "num_layers"},
        facts={**_FUSED, "fused_gate_up": True},
        flags={
            "add_qkv_bias": (False, {"qkv_bias": True}),
            "add_bias_linear": (False, {**_ATTENTION_BIASES, "mlp_bias": True}),
        },
        numbers={"rope_ratio": ("rotary_base", lambda ratio: round(10_000 * ratio))},
        fixed={
            "multi_query_attention": True, "rmsnorm": True, "post_layer_norm": True, "original_rope": True,
            "apply_residual_connection_post_layernorm": False, "fp32_residual_connection": False,
            "tie_word_embeddings": False, "pre_seq_len": None, "prefix_projection": False,
        },
        defaults={
            "multi_query_attention": False, "multi_query_group_num": 1,
            "vocab_size": 65_024, "hidden_size": 4096, "ffn_hidden_size": 13_696, "num_layers": 28,
            "num_attention_heads": 32, "head_dim": 128, "seq_length": 2048, "rms_norm_eps": 1e-5,
            "partial_rotary_factor": 0.5, "tie_word_embeddings": False,
        },
        unused=("apply_query_key_layer_scaling", "quantization_bit", "interleaved_qkv"),
    ),
    # DeepSeek's first experts (modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base)
    "deepseek": ModelTypeKeys(
        flags={"attention_bias": (False, _ATTENTION_BIASES)}, experts="n_routed_experts",
        router={"normalized_top_k": False}, fixed={"scoring_func": "softmax"},
        defaults={"vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 11_008,
                  "moe_intermediate_size": 1407, "num_hidden_layers": 30, "num_attention_heads": 32,
                  "max_position_embeddings": 2048},
    ),
    # Ling 1 (configuration_bailing_moe.py and modeling_bailing_moe.py of inclusionAI/Ling-lite)
    "bailing_moe": ModelTypeKeys(
        **_BAILING, flags={"use_qkv_bias": (False, {"qkv_bias": True})},
        fixed={"use_bias": False, "norm_head": False, "norm_softmax": False},
        defaults={"use_bias": True, "vocab_size": 30_592, "hidden_size": 1024, "num_hidden_layers": 24,
                  "num_attention_heads": 16, "num_experts": 16, "num_experts_per_tok": 2,
                  "rms_norm_eps": 1e-5, "max_position_embeddings": 16_384, "tie_word_embeddings": False},
    ),
    # Ling and Ring 2.0 (NVIDIA-NeMo/Megatron-Bridge, models/bailing), its class's defaults
    "bailing_moe_v2": ModelTypeKeys(
        **_BAILING, router={"router_score": "sigmoid", "selection_bias": True},
        fixed={"score_function": "sigmoid", "use_rmsnorm": True, "norm_head": False, "norm_softmax": False},
        flags={"use_qkv_bias": (False, {"qkv_bias": True}),
               "use_qk_norm": (True, {"query_key_norm": "per_head"}),
               "use_bias": (False, {"attention_output_bias": True})},
        defaults={
            "vocab_size": 157_184, "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 20,
            "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 256,
            "num_experts_per_tok": 8, "moe_intermediate_size": 512, "num_shared_experts": 1, "n_group": 8,
            "topk_group": 4, "rope_theta": 600_000, "max_position_embeddings": 32_768,
            "first_k_dense_replace": 1, "rms_norm_eps": 1e-6, "tie_word_embeddings": False},
    ),
}  # fmt: skip
