"""Hugging Face model types: the keys of each type's config and its fixed facts.

Source: the modeling classes of ``transformers`` 5.23 (one folder a type). The defaults of the configuration
classes are data (``huggingface_keys``); the values that they derive are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meshwright.profiles.errors import UnsupportedModelError
from meshwright.profiles.importers.huggingface_keys import Facts, ModelTypeKeys
from meshwright.profiles.importers.huggingface_layers import (
    GlobalRule,
    gemma_3n_streams,
    gemma_4_attention,
    heads_by_layer,
    mimo_attention,
    step_attention,
    step_config,
)
from meshwright.profiles.importers.huggingface_mixers import delta_net, mamba_2
from meshwright.profiles.importers.huggingface_remote import REMOTE
from meshwright.profiles.reading import FieldReader

_ATTENTION_BIASES: Facts = {"qkv_bias": True, "attention_output_bias": True}
_ALL_BIASES: Facts = {**_ATTENTION_BIASES, "mlp_bias": True}
_ATTENTION_FLAG: Mapping[str, tuple[bool, Facts]] = {"attention_bias": (False, _ATTENTION_BIASES)}
_QKV_FLAG: Mapping[str, tuple[bool, Facts]] = {"attention_bias": (False, {"qkv_bias": True})}
_MLP_FLAG: Mapping[str, tuple[bool, Facts]] = {"mlp_bias": (False, {"mlp_bias": True})}
_PER_HEAD: Facts = {"query_key_norm": "per_head"}
_SANDWICH: Facts = {"norm_position": "before_and_after"}
_SIGMOID: Facts = {"router_score": "sigmoid", "selection_bias": True}
_COUNTED: Facts = {**_SIGMOID, "selection_bias_counted": True}
_FIRST_DENSE = {"first_k_dense_replace": 1}


_CLIP = {"clip_qkv": ("attention_clip", float)}
_MULTIPLIERS = {
    "embedding_multiplier": ("embedding_scale", float),
    "residual_multiplier": ("residual_scale", float),
    "attention_multiplier": ("attention_scale", float),
    "logits_scaling": ("logit_scale", lambda value: 1 / value),
}
_CAPS = {
    "attn_logit_softcapping": ("attention_softcap", float),
    "final_logit_softcapping": ("logit_softcap", float),
    "query_pre_attn_scalar": ("attention_scale", lambda value: value**-0.5),
}

_PLAIN = ModelTypeKeys()  # no bias anywhere
_ERNIE = ModelTypeKeys(flags={"use_bias": (False, _ALL_BIASES)})
_LOCAL = ModelTypeKeys(global_layers="none")  # every layer attends within the window, where there is one
LLAMA = ModelTypeKeys(flags={**_ATTENTION_FLAG, **_MLP_FLAG})
_BIASED_ATTENTION = ModelTypeKeys(flags=_ATTENTION_FLAG)
_GRANITE = replace(LLAMA, numbers=_MULTIPLIERS)
_FUSED_QKV: Facts = {"fused_qkv": True}
_FUSED_MLP: Facts = {"fused_gate_up": True}
_GRANITE_MOE = replace(_BIASED_ATTENTION, numbers=_MULTIPLIERS, facts=_FUSED_MLP)
_SINKS: Facts = {"attention_sinks": True}
_LATENT = ModelTypeKeys(latent_bias_flag="attention_bias")
_DEEPSEEK_V3 = replace(
    _LATENT,
    router=_SIGMOID,
    fixed={"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
)
_GEMMA = ModelTypeKeys(
    flags=_ATTENTION_FLAG,
    activation="gelu",
    facts={"zero_centered_norm": True},
    scale_flag="always",
    fixed={"use_bidirectional_attention": False},
)
_GEMMA_2 = replace(
    _GEMMA,
    facts={**_GEMMA.facts, **_SANDWICH},
    numbers=_CAPS,
    global_layers="every_last",
    global_every=2,
)
_GEMMA_4 = replace(
    _GEMMA,
    facts={**_SANDWICH, **_PER_HEAD, "value_norm": True, "attention_scale": 1.0},
    numbers=_CAPS,
    global_layers="every_last_and_the_last",
    global_every=6,
    local_attention=gemma_4_attention,
    fixed={"use_bidirectional_attention": (None, False, "vision")},  # of images among the text
    plans=("num_kv_shared_layers",),
)  # fmt: skip
_OLMO_2 = ModelTypeKeys(
    flags=_ATTENTION_FLAG, facts={"norm_position": "after", "query_key_norm": "all_heads"}
)
_COHERE = ModelTypeKeys(
    flags={**_ATTENTION_FLAG, "use_qk_norm": (False, {"query_key_norm": "each_head"})},
    numbers={"logit_scale": ("logit_scale", float)},
    facts={"normalization": "layernorm_without_bias", "parallel_residual": True, "shared_norm": True},
)
_COHERE_2 = replace(
    _COHERE, flags=_ATTENTION_FLAG, global_layers="every_last", global_every=4, rotary_on_local_layers=True,
    fixed={
        "layer_switch": 4, "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj", "rotary_pct": 1.0, "use_embedding_sharing": True,
        "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True,
    },
)  # fmt: skip
_EXAONE = ModelTypeKeys(
    facts=_PER_HEAD, global_layers="every_last", global_every=4, rotary_on_local_layers=True
)
_QWEN_LOCAL: GlobalRule = "before_max_window_layers"
_QWEN_2 = ModelTypeKeys(
    facts={"qkv_bias": True}, global_layers=_QWEN_LOCAL, fixed={"attention_bias": (True, False)}
)  # fmt: skip - which its class does not read
_QWEN_3_MOE = replace(_BIASED_ATTENTION, facts=_PER_HEAD)
_GLM_4_MOE = ModelTypeKeys(flags=_QKV_FLAG, rounds_head_dim=True, router=_SIGMOID)
_UNGATED: Facts = {"gated_mlp": False, "normalization": "layernorm"}
_GPT_FACTS: Facts = {**_UNGATED, **_ALL_BIASES}
_GPT = ModelTypeKeys(activation="gelu", ffn_of_hidden=4)
_LEARNED: Facts = {"learned_position_embeddings": True}
_GPT_2 = replace(
    _GPT, keys={"ffn_hidden_size": "n_inner"},
    facts={**_GPT_FACTS, **_LEARNED, **_FUSED_QKV},
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
           "add_cross_attention": False},
)  # fmt: skip
_GPT_J = replace(
    _GPT, keys={"ffn_hidden_size": "n_inner"},
    facts={**_UNGATED, "mlp_bias": True, "head_bias": True, "parallel_residual": True, "shared_norm": True},
    fixed={"scale_attn_weights": True, "rotary": True},
)  # fmt: skip
_HUNYUAN = ModelTypeKeys(
    flags=_ATTENTION_FLAG,
    facts=_PER_HEAD,
    names={"attention_head_dim": "head_dim"},
    fixed={
        "use_qk_norm": True, "use_rotary_pos_emb": True, "norm_type": "rms",
        "add_classification_head": False, "num_shared_expert": 1, "use_mixed_mlp_moe": True,
        "moe_layer_num_skipped": 0, "group_limited_greedy": False, "use_mla": False,
        "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    },
    each_layer=("moe_topk", "num_shared_expert", "moe_intermediate_size"),
    unused=(
        "cla_share_factor", "class_num", "dense_list", "im_end_id", "im_start_id", "im_newline_id",
        "mask_init_id", "pool_type", "text_start_id", "text_end_id", "video_start_id", "video_end_id",
        "skip_cls_token", "moe_drop_tokens", "moe_random_routing_dropped_token", "capacity_factor",
    ),
)  # fmt: skip
_QUICK_GELU: Facts = {"activation": "quick_gelu", "gate_offset": 1.0}
_CLAMP = {"swiglu_limit": ("activation_clamp", float)}


def _falcon_norms(reader: FieldReader, facts: Facts) -> Facts:
    """Return Falcon's norms: attention and MLP share one, except in the newer one (modeling_falcon).

    Raises:
        UnsupportedModelError: norms that the class builds and does not read, or lacks.
    """
    newer, norms = (
        reader.flag("new_decoder_architecture", default=False),
        reader.value("num_ln_in_parallel_attn"),
    )
    if norms not in ((None, 1, 2) if newer else (None, 1)):
        why = f"{str(norms)[:20]}: the class runs with 1, or 2 where new_decoder_architecture is true"
        raise UnsupportedModelError.field("num_ln_in_parallel_attn", why)
    return {"shared_norm": bool(facts.get("parallel_residual")) and not (newer and norms != 1)}


def _multiple_of_hidden(reader: FieldReader, facts: Facts) -> Facts:
    """Return the MLP's width of GPT-NeoX Japanese, which states it in hidden sizes."""
    size = facts["hidden_size"] if isinstance(facts["hidden_size"], int) else 0
    return {"ffn_hidden_size": int(size * reader.number("intermediate_multiple_size", low=1e-3, high=1e3))}


_FALCON = replace(
    _GPT, keys={"num_kv_heads": "num_kv_heads", "ffn_hidden_size": "ffn_hidden_size"},
    names={"n_embed": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
           "n_head_kv": "num_kv_heads"},
    flags={
        "bias": (False, _ALL_BIASES),
        "parallel_attn": (True, {"parallel_residual": True}),
        "new_decoder_architecture": (False, {"parallel_residual": True}),
        "alibi": (False, {"alibi_positions": True}),
    },
    one_kv_head_flag="multi_query",
    facts={**_UNGATED, **_FUSED_QKV},
    follows=_falcon_norms,
    fixed={"apply_residual_connection_post_layernorm": False},
    unused=("ff_factor",),
)  # fmt: skip


_DELTA_KEYS = (
    "full_attention_interval", "linear_num_value_heads", "mamba_ssm_dtype",
)  # fmt: skip
_QWEN_3_NEXT = ModelTypeKeys(
    flags=_ATTENTION_FLAG,
    facts={**_PER_HEAD, "zero_centered_norm": True, "attention_gate": "per_element",
           "gate_in_queries": True},
    mixer=delta_net(split_projections=False),
    plans=_DELTA_KEYS,
    unused=("mamba_ssm_dtype",),  # of inference
)  # fmt: skip
_GATED_SHARED: Facts = {"shared_expert_gate": True}
# MTP is not built by transformers; published configs state it
_QWEN_3_5 = replace(
    _QWEN_3_NEXT,
    mixer=delta_net(split_projections=True),
    names={"mtp_num_hidden_layers": "num_nextn_predict_layers"},
    fixed={"attn_output_gate": True, "mtp_use_dedicated_embeddings": False},
)
_MAMBA_KEYS = (
    "layers_block_type", "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_head", "mamba_d_conv",
    "mamba_expand", "mamba_chunk_size", "mamba_conv_bias", "mamba_proj_bias",
)  # fmt: skip


def _granite_hybrid(config: dict[str, object]) -> dict[str, object]:
    """Return Granite 4 H's config; without experts its MLP is the shared one alone."""
    if config.get("num_local_experts") == 0:
        return {**config, "intermediate_size": config["shared_intermediate_size"],
                "shared_intermediate_size": 0}  # fmt: skip
    return config


FAMILIES: Mapping[str, ModelTypeKeys] = {
    # Mixers with a state between full attention
    "qwen3_next": replace(_QWEN_3_NEXT, router=_GATED_SHARED, needs_shared_experts=True),
    "qwen3_5_text": _QWEN_3_5,
    "qwen3_5_moe_text": replace(_QWEN_3_5, router=_GATED_SHARED, needs_shared_experts=True),
    "granitemoehybrid": replace(
        _GRANITE_MOE, mixer=mamba_2, plans=_MAMBA_KEYS, dense_without_experts=True,
        null_is_no_rotary=True, as_built=_granite_hybrid, unused=("time_step_limit",),
    ),
    "bamba": ModelTypeKeys(
        flags={**_ATTENTION_FLAG, **_MLP_FLAG}, mixer=mamba_2, plans=_MAMBA_KEYS,
        names={"layer_types": "layer_types", "layers_block_type": "layer_types"},
        unused=("time_step_limit", "num_logits_to_keep", "z_loss_coefficient"),
    ),
    # Llama and what differs from it by sizes or biases
    **dict.fromkeys(("llama", "internlm3", "iquestcoder"), LLAMA),
    "helium": ModelTypeKeys(flags={**_QKV_FLAG, **_MLP_FLAG}, heads_fill_hidden=True),
    "diffllama": replace(_BIASED_ATTENTION, facts={"differential_attention": True}),
    "smollm3": replace(LLAMA, global_layers="with_rotary"),
    "cwm": replace(_PLAIN, flags=_MLP_FLAG, global_layers="every_first", global_every=4),
    "granite": _GRANITE,
    "granite_docling_text": replace(_GRANITE, head_of_whole=True),
    "granite4_vision_text": replace(_GRANITE, head_of_whole=True),
    "granite_swa": replace(_GRANITE, facts=_SINKS, global_layers="every_first", global_every=4),
    "hyperclovax": replace(_GRANITE, flags={**LLAMA.flags, "use_post_norm": (True, _SANDWICH)}),
    "seed_oss": ModelTypeKeys(
        flags={"attention_bias": (True, {"qkv_bias": True}), **_MLP_FLAG,
               "attention_out_bias": (False, {"attention_output_bias": True})},
    ),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "mixtral"), _LOCAL),
    "phi3": replace(_LOCAL, facts={**_FUSED_QKV, **_FUSED_MLP},
                    fixed={"full_attn_mod": 1, "interpolate_factor": 1}),
    "ernie4_5": _ERNIE,
    "paddleocr_vl_text": replace(_ERNIE, head_of_whole=True),
    "bitnet": replace(_BIASED_ATTENTION, activation="relu2", facts={"inner_norms": True},
                      heads_fill_hidden=True),
    "arcee": replace(LLAMA, activation="relu2", facts={"gated_mlp": False}),
    "apertus": replace(_BIASED_ATTENTION, activation="xielu", facts={"gated_mlp": False, **_PER_HEAD},
                       fixed={"qk_norm": True}),
    "nanochat": replace(
        _BIASED_ATTENTION, activation="relu2",
        numbers={"final_logit_softcapping": ("logit_softcap", float)},
        facts={
            "gated_mlp": False, "normalization": "rmsnorm_without_weights", "embedding_norm": True,
            "query_key_norm": "per_head_without_weights",
        },
    ),
    "jais2": replace(LLAMA, activation="relu2", facts=_UNGATED),
    "nemotron": replace(
        LLAMA, activation="relu2",
        facts={**_UNGATED, "zero_centered_norm": True},
    ),
    "qwen2": _QWEN_2,
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text"),
                    replace(_QWEN_2, head_of_whole=True)),
    "mimo": replace(_QWEN_2, like="qwen2"),  # remote code: Qwen2 with prediction layers (XiaomiMiMo/MiMo)
    "qwen3": replace(_BIASED_ATTENTION, facts=_PER_HEAD, global_layers=_QWEN_LOCAL),
    "qwen3_vl_text": replace(_BIASED_ATTENTION, facts=_PER_HEAD, head_of_whole=True),
    "exaone4": replace(_EXAONE, facts={**_PER_HEAD, "norm_position": "after"}),
    "olmo": replace(_BIASED_ATTENTION, facts={"normalization": "layernorm_without_weights"}, numbers=_CLIP),
    **dict.fromkeys(("olmo2", "flex_olmo"), _OLMO_2),
    "olmo3": replace(_OLMO_2, global_layers="every_last", global_every=4),
    "glm": ModelTypeKeys(flags=_QKV_FLAG, facts=_FUSED_MLP),
    "glm4": ModelTypeKeys(flags=_QKV_FLAG, facts={**_SANDWICH, **_FUSED_MLP}),
    "glm4v_text": ModelTypeKeys(facts={"qkv_bias": True, **_SANDWICH, **_FUSED_MLP}, head_of_whole=True,
                         fixed={"attention_bias": (True, False)}),  # which its class does not read
    "glm_ocr_text": ModelTypeKeys(facts={**_SANDWICH, **_FUSED_MLP}, head_of_whole=True),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_vl_text": replace(_HUNYUAN, head_of_whole=True),
    "gemma": _GEMMA,
    "gemma2": _GEMMA_2,
    "vaultgemma": replace(_GEMMA_2, facts=_GEMMA.facts),
    "gemma3_text": replace(_GEMMA_2, facts={**_GEMMA_2.facts, **_PER_HEAD}, global_every=6),
    "gemma3n_text": replace(
        _GEMMA_4, global_layers="every_last", global_every=5, local_attention=gemma_3n_streams,
        plans=("num_kv_shared_layers", "hidden_size_per_layer_input", "altup_num_inputs"),
        each_layer=("intermediate_size",),
        numbers={"final_logit_softcapping": _CAPS["final_logit_softcapping"]},
        unused=("altup_active_idx", "altup_coef_clip", "altup_correct_scale", "altup_lr_multiplier",
                "query_pre_attn_scalar"),
    ),
    "gemma4_text": replace(
        _GEMMA_4,
        plans=("num_kv_shared_layers", "hidden_size_per_layer_input"),
        experts="num_experts",
        experts_flag="enable_moe_block",
        experts_beside_mlp=True,
        router={"norms_apart": True, "router_scales": True},
    ),
    "gemma4_unified_text": _GEMMA_4,
    "stablelm": ModelTypeKeys(
        flags={
            "use_qkv_bias": (False, {"qkv_bias": True}),
            "qk_layernorm": (False, {"query_key_norm": "each_head"}),
            "use_parallel_residual": (False, {"parallel_residual": True, "shared_norm": True}),
        },
        facts={"normalization": "layernorm"},
        fixed={"rotary_scaling_factor": 1.0},
    ),
    "cohere": _COHERE,
    "cohere2": _COHERE_2,
    "cohere_compass_text": replace(_COHERE, flags=_ATTENTION_FLAG, unused=("pooling",),
                                   heads_fill_hidden=True, null_is_no_rotary=True),
    # Latent attention
    "youtu": _LATENT,
    "minicpm3": replace(
        _LATENT, flags=_MLP_FLAG, numbers={"scale_emb": ("embedding_scale", float)},
        fixed={"rope_interleave": None},
    ),
    "deepseek_v2": replace(
        _LATENT,
        fixed={"scoring_func": "softmax"},
        flags=_MLP_FLAG,
        router={"normalized_top_k": False, "expert_bias": False},
    ),
    "mistral4": replace(_LATENT, defaults={"rope_parameters": {
        "rope_type": "yarn", "factor": 128.0, "original_max_position_embeddings": 8192,
        "llama_4_scaling_beta": 0.1,
    }}),
    # 10^-4, of each sequence, if a config does not set it (arXiv:2412.19437, section 4.2)
    "deepseek_v3": replace(_DEEPSEEK_V3, defaults={"aux_loss_alpha": 1e-4, "seq_aux": True}),
    "kimi_k2": replace(_DEEPSEEK_V3, like="deepseek_v3"),
    "deepseek_v32": replace(_DEEPSEEK_V3, plans=("index_topk",), defaults={"first_k_dense_replace": 3}),
    "glm_moe_dsa": replace(
        _DEEPSEEK_V3, plans=("index_topk", "indexer_types"), defaults={"first_k_dense_replace": 3},
        unused=("index_share_for_mtp_iteration",),
    ),
    "glm4_moe_lite": replace(_DEEPSEEK_V3, defaults=_FIRST_DENSE),
    "axk1": replace(_DEEPSEEK_V3, defaults=_FIRST_DENSE, router={**_SIGMOID, "output_norm": True}),
    # Experts
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "granitemoe_swa": replace(_GRANITE_MOE, facts={**_FUSED_MLP, **_SINKS}, global_layers="every_first",
                              global_every=4),
    "qwen2_moe": replace(
        _PLAIN,
        flags={"qkv_bias": (True, {"qkv_bias": True})},
        router={"shared_expert_gate": True},
        needs_shared_experts=True,
        global_layers="odd_or_from_max_window_layers",
    ),
    "qwen3_vl_moe_text": replace(_QWEN_3_MOE, head_of_whole=True),
    "qwen3_omni_moe_text": replace(_QWEN_3_MOE, head_of_whole=True, rounds_head_dim=True),
    "qwen3_moe": replace(_QWEN_3_MOE, global_layers="none", dense_without_experts=True,
                         fixed={"use_qk_norm": True, "qkv_bias": False}),
    "mellum": _QWEN_3_MOE,
    # Residuals x + f(x) weighed with their depth, in a sum of unit variance (modeling_beam.py)
    "beam": replace(
        _QWEN_3_MOE, router=_SIGMOID,
        facts={
            **_PER_HEAD, **_SANDWICH, "attention_gate": "per_element", "gate_bias": True,
            "depth_scaled_residuals": True, "position_scaled_queries": True,
        },
        numbers=_CAPS,
        global_layers="every_last_and_the_last",
        global_every=6,
        rotary_on_local_layers=True,
        defaults={"first_k_dense_replace": 3},
    ),
    "flint": replace(
        _BIASED_ATTENTION, facts={**_PER_HEAD, **_SINKS},
        router={"router_score": "sigmoid"},
        defaults={"mlp_only_layers": [0, 1]},
        global_layers="flint",
    ),
    "olmoe": replace(_BIASED_ATTENTION, facts={"query_key_norm": "all_heads"}, numbers=_CLIP,
                     heads_fill_hidden=True),
    "aria_text": replace(LLAMA, router={"expert_bias": False}),
    "ernie4_5_moe": ModelTypeKeys(
        flags={"use_bias": (False, {**_ALL_BIASES, "head_bias": True})},
        router={"selection_bias": True, "selection_bias_counted": True, "expert_bias": False},
        fixed={"moe_gate": "topk", "moe_use_aux_free": True},
        unused=("moe_capacity", "moe_layer_use_gate", "sinkhorn_2gate", "compression_ratio"),
    ),
    "hunyuan_v1_moe": replace(_HUNYUAN, router={"linear_router": True},
                              shared_experts_of_ffn=1, dense_without_experts=True),
    "hy_v3": replace(
        LLAMA, facts=_PER_HEAD, router={**_SIGMOID, "expert_bias": False},
        defaults=_FIRST_DENSE, needs_shared_experts=True,
    ),
    "dots1": replace(
        _BIASED_ATTENTION, facts=_PER_HEAD, router=_SIGMOID,
        global_layers=_QWEN_LOCAL,  # published: noaux_tc for both
        fixed={"scoring_func": ("sigmoid", "noaux_tc"), "topk_method": "noaux_tc"},
    ),
    "solar_open": ModelTypeKeys(flags=_QKV_FLAG, router=_SIGMOID, dense_without_experts=True),
    "exaone_moe": replace(_EXAONE, router=_SIGMOID),
    "kolibri1": ModelTypeKeys(
        facts={**_PER_HEAD, **_SANDWICH}, router=_SIGMOID, global_layers="every_last", global_every=5,
        rotary_on_local_layers=True,
    ),
    "afmoe": replace(
        _BIASED_ATTENTION, facts={**_PER_HEAD, **_SANDWICH, "attention_gate": "per_element"},
        router=_COUNTED, global_layers="every_last", rotary_on_local_layers=True, scale_flag="mup_enabled",
        fixed={"score_func": "sigmoid", "route_norm": True, "num_expert_groups": 1,
               "num_limited_groups": 1},
    ),
    "laguna": replace(
        _BIASED_ATTENTION, facts=_PER_HEAD, router=_COUNTED, defaults=_FIRST_DENSE,
        fixed={"moe_router_logit_softcapping": 0.0},
        local_attention=heads_by_layer,
    ),
    "mimo_v2_flash": ModelTypeKeys(
        flags=_QKV_FLAG,
        numbers={"attention_value_scale": ("value_scale", float)},
        router=_SIGMOID,
        global_layers="first_and_every_last",
        global_every=6,
        local_attention=mimo_attention,
        defaults=_FIRST_DENSE,
        fixed={"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        of_published=("moe_layer_freq",),
        unused=("layernorm_epsilon", "hybrid_block_size", "attention_chunk_size"),
    ),
    "glm4_moe": replace(_GLM_4_MOE, flags={**_QKV_FLAG, "use_qk_norm": (False, _PER_HEAD)}),
    "glm4v_moe_text": replace(_GLM_4_MOE, head_of_whole=True),
    # Step 3.5; clamps of the last layers' activations are read and not priced
    "step3p5": ModelTypeKeys(
        flags={**_ATTENTION_FLAG, **_MLP_FLAG},
        facts={**_PER_HEAD, "zero_centered_norm": True, "attention_gate": "per_head"},
        numbers={"query_pre_attn_scalar": _CAPS["query_pre_attn_scalar"]},
        router={**_SIGMOID, "expert_bias": False},
        names={"num_local_experts": "num_local_experts"},  # the class takes n_routed_experts alone
        own_activation=True,
        head_of_whole=True,
        as_built=step_config,
        local_attention=step_attention,
        fixed={
            "att_impl_type": "GQA", "moe_every_n_layer": 1, "moe_layer_offset": 0,
            "moe_router_activation": "sigmoid", "norm_expert_weight": True, "sink": False,
            "use_head_wise_attn_gate": True, "use_mfa": False, "use_moe": True,
            "use_moe_router_bias": True, "use_qk_norm": True, "use_rope_layers": ([], None),
            "yarn_only_types": (["full_attention"], None),
        },
        unused=("need_fp32_gate", "share_expert_dim", "moe_router_scaling_factor", "swiglu_limits",
                "swiglu_limits_shared", "mtp_layer_types", "mtp_mlp_layer_types"),
    ),
    "minimax_m2": ModelTypeKeys(
        facts={"query_key_norm": "all_heads"},
        router=_SIGMOID,
        fixed={
            "scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer",
            "use_routing_bias": True, "shared_intermediate_size": 0, "mtp_transformer_layers": 1,
            "layernorm_full_attention_beta": 1.0, "layernorm_linear_attention_beta": 1.0,
            "layernorm_mlp_beta": 1.0,
        },
        unused=("mlp_intermediate_size", "shared_moe_mode", "swa_rope_theta"),
    ),
    "minimax_m3_vl_text": ModelTypeKeys(
        facts={**_PER_HEAD, "zero_centered_norm": True, **_QUICK_GELU, **_FUSED_MLP},
        own_activation=True,
        numbers=_CLAMP,
        router=_SIGMOID,
        dense_ffn_key="dense_intermediate_size",
        fixed={"swiglu_alpha": 1.702},
    ),
    "gpt_oss": ModelTypeKeys(
        flags={"attention_bias": (True, _ATTENTION_BIASES)},
        own_activation=True,
        facts={"mlp_bias": True, **_SINKS, **_QUICK_GELU},
        numbers=_CLAMP,
        defaults={"swiglu_limit": 7.0},
        router={"router_bias": True},
        balanced_by_loss=False,  # Megatron-Bridge v0.7 gpt_oss_bridge.py:71; the config has 0.9
        fixed={"swiglu_alpha": 1.702},
        unused=("rope_ntk_alpha", "rope_ntk_beta", "rope_scaling_factor"),  # of OpenAI's own program
        global_layers="every_last",
        global_every=2,
    ),
    "phimoe": ModelTypeKeys(
        flags={**_ATTENTION_FLAG, "lm_head_bias": (False, {"head_bias": True})},
        facts={"normalization": "layernorm"},
        router={"router_score": "sparsemixer", "linear_router": True},
        global_layers="none",
    ),
    "cohere2_moe": replace(
        _COHERE_2,
        dense_ffn_key="prefix_dense_intermediate_size",
        global_layers="every_last_after_dense",
        fixed={"prefix_dense_sliding_window_pattern": 1, "shared_expert_combination_strategy": "average"},
    ),
    "llama4_text": replace(
        _BIASED_ATTENTION,
        flags={
            **_ATTENTION_FLAG,
            "use_qk_norm": (True, {"query_key_norm": "per_head_without_weights"}),
            "attn_temperature_tuning": (True, {"position_scaled_queries": True}),
        },
        router={"router_score": "sigmoid", "normalized_top_k": False, "weights_on_input": True,
                "linear_router": True},
        shared_experts_of_ffn=1,
        dense_ffn_key="intermediate_size_mlp",
        global_layers="without_rotary",
    ),
    "dbrx": ModelTypeKeys(
        keys={"num_kv_heads": "attn_config.kv_n_heads", "ffn_hidden_size": "ffn_config.ffn_hidden_size"},
        parts=("attn_config", "ffn_config"),
        own_activation=True,
        facts={"normalization": "layernorm_without_bias", **_FUSED_QKV},
        router={"linear_router": True},
        numbers={"attn_config.clip_qkv": ("attention_clip", float)},
        fixed={"ffn_config.ffn_act_fn": {"name": "silu"}, "ffn_config.moe_normalize_expert_weights": 1.0},
    ),
    # GPT and its kind
    "gpt2": _GPT_2,
    "gpt-sw3": replace(_GPT_2, like="gpt2"),
    "gpt_bigcode": replace(_GPT_2, one_kv_head_flag="multi_query",
                           fixed={"scale_attn_weights": True, "add_cross_attention": False}),
    "openai-gpt": replace(
        _GPT, keys={"ffn_hidden_size": "n_inner"},
        facts={
            **_GPT_FACTS, **_LEARNED, "norm_position": "after_residual", "final_norm": False, **_FUSED_QKV,
        },
    ),
    "gpt_neo": replace(
        _GPT,
        facts={**_UNGATED, **_LEARNED, "attention_output_bias": True, "mlp_bias": True,
               "attention_scale": 1.0},
        defaults={"attention_types": [[["global", "local"], 12]]},
    ),
    "gptj": _GPT_J,
    "codegen": replace(_GPT_J, facts={**_GPT_J.facts, **_FUSED_QKV}),
    "gpt_neox": replace(
        _GPT,
        flags={
            "attention_bias": (True, _ATTENTION_BIASES),
            "use_parallel_residual": (True, {"parallel_residual": True}),
        },
        facts={**_UNGATED, "mlp_bias": True, **_FUSED_QKV},
    ),
    "gpt_neox_japanese": replace(
        _GPT, facts={**_UNGATED, "last_attention_bias": True, **_FUSED_QKV}, follows=_multiple_of_hidden
    ),
    "modernbert-decoder": ModelTypeKeys(
        flags={
            **_ATTENTION_FLAG, **_MLP_FLAG,
            "norm_bias": (False, {"normalization": "layernorm"}),
            "decoder_bias": (True, {"head_bias": True}),
        },
        activation="gelu",
        facts={
            "normalization": "layernorm_without_bias", "early_first_norm": True, "head_transform": True,
            **_FUSED_MLP,
        },
        fixed={"classifier_bias": False, "classifier_activation": "gelu"},
        global_layers="every_first",
        global_every=3,
    ),
    "phi": replace(
        _GPT, flags={"qk_layernorm": (False, _PER_HEAD)},
        facts={**_GPT_FACTS, "head_bias": True, "parallel_residual": True, "shared_norm": True},
    ),
    "persimmon": ModelTypeKeys(
        flags={"qk_layernorm": (True, _PER_HEAD)},
        activation="relu2",
        facts={**_GPT_FACTS, **_FUSED_QKV},
    ),
    "starcoder2": replace(
        _GPT, flags={"use_bias": (True, _ALL_BIASES)}, facts=_UNGATED,
        fixed={"mlp_type": "default", "norm_type": "layer_norm", "scale_attn_weights": True},
        global_layers="none",
    ),
    "biogpt": replace(
        _GPT, facts={**_GPT_FACTS, **_LEARNED, "learned_position_offset": 2},
        scale_flag="scale_embedding",
    ),
    "xglm": replace(
        _GPT, keys={"ffn_hidden_size": "ffn_dim"},
        facts={**_GPT_FACTS, "sinusoidal_positions": True},
        scale_flag="scale_embedding",
        fixed={"add_cross_attention": False},
    ),
    "ctrl": ModelTypeKeys(
        keys={"ffn_hidden_size": "dff"},
        activation="relu",
        facts={**_GPT_FACTS, "sinusoidal_positions": True, "head_bias": True},
        scale_flag="always",
    ),
    "bloom": replace(
        _GPT, keys={"max_position_embeddings": "seq_length"},
        names={"n_embed": "hidden_size"},
        facts={**_GPT_FACTS, "alibi_positions": True, "embedding_norm": True, **_FUSED_QKV},
        fixed={"apply_residual_connection_post_layernorm": False},
    ),
    "falcon": _FALCON,
    # Falcon-40B as first published; 7B's RefinedWebModel is falcon
    "RefinedWeb": replace(_FALCON, like="falcon", defaults={"new_decoder_architecture": True}),
    "mpt": ModelTypeKeys(
        keys={"max_position_embeddings": "max_seq_len"},
        parts=("attn_config", "ffn_config"),
        ffn_of_hidden=4,
        own_activation=True,
        facts={
            "gated_mlp": False, "normalization": "layernorm_without_bias", "alibi_positions": True,
            **_FUSED_QKV,
        },
        numbers={"attn_config.clip_qkv": ("attention_clip", float)},
        fixed={
            "no_bias": True, "expansion_ratio": 4, "norm_type": "low_precision_layernorm",
            "logit_scale": None, "embedding_fraction": 1.0,
            "attn_config.alibi": True, "attn_config.alibi_bias_max": 8,
            "attn_config.attn_type": "multihead_attention", "attn_config.prefix_lm": False,
            "attn_config.qk_ln": False, "attn_config.softmax_scale": None,
            "ffn_config.ffn_type": "mptmlp", "ffn_config.fc_type": "torch", "fc_type": "torch",
        },
    ),
    "opt": ModelTypeKeys(
        keys={"ffn_hidden_size": "ffn_dim"},
        flags={
            "enable_bias": (True, _ALL_BIASES),
            "layer_norm_elementwise_affine": (True, {"normalization": "layernorm"}),
            "do_layer_norm_before": (True, {"norm_position": "before", "final_norm": True}),
            "_remove_final_layer_norm": (False, {"final_norm": False}),
        },
        activation="relu",
        facts={
            "gated_mlp": False, "normalization": "layernorm_without_weights", "final_norm": False,
            "norm_position": "after_residual", **_LEARNED, "learned_position_offset": 2,
        },
    ),
    **REMOTE,
}  # fmt: skip
