"""What each Hugging Face model type is made of: the keys of its config, its defaults, its fixed facts.

Source: the configuration and modeling classes of ``transformers`` 5.23 (one folder a type). A key of a
config is *known* (a type reads it), *harmless* (``HARMLESS``, with the reason), or refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from meshwright.profiles.errors import UnsupportedModelError
from meshwright.profiles.reading import FieldReader

Facts = Mapping[str, object]  # fields of ModelSpec

_LLAMA_KEYS: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers",),
    "hidden_size": ("hidden_size",),
    "ffn_hidden_size": ("intermediate_size",),
    "num_attention_heads": ("num_attention_heads",),
    "max_position_embeddings": ("max_position_embeddings",),
}
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
_FALCON_KEYS = _BLOOM_KEYS | {
    "ffn_hidden_size": ("ffn_hidden_size",),
    "max_position_embeddings": ("max_position_embeddings",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one model type is read.

    ``flags``: a key, its default, and the facts that hold where it is true. ``numbers``: a key, the fact
    that it states, and how the fact follows from it. ``fixed``: the only value that a key may have.
    """

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _LLAMA_KEYS)  # our name: theirs
    defaults: Mapping[str, object] = field(default_factory=dict)  # of keys that a config may leave out
    facts: Facts = field(default_factory=dict)
    router: Facts = field(default_factory=dict)  # fields of MoeSpec
    flags: Mapping[str, tuple[bool, Facts]] = field(default_factory=dict)
    numbers: Mapping[str, tuple[str, Callable[[float], float]]] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)
    activation: str = "silu"  # where the config names none
    has_own_activation: bool = False  # the class does not use the one that the config names
    tied_embeddings: bool = False  # the class's default of tie_word_embeddings
    ffn_is_four_hidden: bool = False  # the MLP's width may be left out
    one_kv_head_flag: str = ""  # a key that leaves one key/value head
    scales_embeddings: bool = False  # by the root of the hidden size


_ATTENTION_BIASES: Facts = {"qkv_bias": True, "attention_output_bias": True}
_ALL_BIASES: Facts = {**_ATTENTION_BIASES, "mlp_bias": True}
_ATTENTION_FLAG: Mapping[str, tuple[bool, Facts]] = {"attention_bias": (False, _ATTENTION_BIASES)}
_MLP_FLAG: Mapping[str, tuple[bool, Facts]] = {"mlp_bias": (False, {"mlp_bias": True})}
_TOP_K_FLAG: Mapping[str, object] = {"normalized_top_k": False}
_PER_HEAD: Facts = {"query_key_norm": "per_head"}


def _itself(value: float) -> float:
    return value


_MULTIPLIERS = {
    "embedding_multiplier": ("embedding_scale", _itself),
    "residual_multiplier": ("residual_scale", _itself),
    "attention_multiplier": ("attention_scale", _itself),
    "logits_scaling": ("logit_scale", lambda value: 1 / value),
}
_MULTIPLIER_DEFAULTS = dict.fromkeys(_MULTIPLIERS, 1.0)

_PLAIN = Family()  # no bias anywhere
LLAMA = Family(flags={**_ATTENTION_FLAG, **_MLP_FLAG})
_BIASED_ATTENTION = Family(flags=_ATTENTION_FLAG)
_DEEPSEEK_V3 = Family(
    router={"router_score": "sigmoid", "selection_bias": True},
    fixed={"scoring_func": "sigmoid", "topk_method": "noaux_tc", "attention_bias": False},
    defaults={"norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4},
)
_GEMMA = Family(
    flags=_ATTENTION_FLAG,
    activation="gelu",
    tied_embeddings=True,
    facts={"zero_centered_norm": True},
    scales_embeddings=True,
    defaults={"head_dim": 256},
    fixed={"use_bidirectional_attention": False},
)
_GEMMA_2 = replace(
    _GEMMA,
    facts={**_GEMMA.facts, "norm_position": "before_and_after"},
    numbers={
        "attn_logit_softcapping": ("attention_softcap", _itself),
        "final_logit_softcapping": ("logit_softcap", _itself),
        "query_pre_attn_scalar": ("attention_scale", lambda value: value**-0.5),
    },
    defaults={
        "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
)  # fmt: skip
_OLMO_2 = Family(flags=_ATTENTION_FLAG, facts={"norm_position": "after", "query_key_norm": "all_heads"})
_COHERE = Family(
    flags=_ATTENTION_FLAG,
    tied_embeddings=True,
    numbers={"logit_scale": ("logit_scale", _itself)},
    defaults={"logit_scale": 0.0625},
    fixed={"use_qk_norm": False},
    facts={
        "normalization": "layernorm_without_bias", "parallel_residual": True, "shared_norm": True,
    },
)  # fmt: skip
_GPT_FACTS: Facts = {"gated_mlp": False, "normalization": "layernorm", **_ALL_BIASES}
_GPT_2 = Family(
    keys=_GPT2_KEYS,
    tied_embeddings=True,
    ffn_is_four_hidden=True,
    activation="gelu",
    facts={**_GPT_FACTS, "learned_position_embeddings": True},
    fixed={
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
)  # fmt: skip
_NORMALIZED_BY_KEY = {"norm_topk_prob": False}  # the class's default

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("llama", "smollm3", "granite", "helium"), LLAMA),
    "smollm3": replace(
        LLAMA, tied_embeddings=True, defaults={"no_rope_layer_interval": 4, "rope_theta": 2_000_000}
    ),
    "granite": replace(LLAMA, numbers=_MULTIPLIERS, defaults=_MULTIPLIER_DEFAULTS),
    "granitemoe": replace(_BIASED_ATTENTION, numbers=_MULTIPLIERS, defaults=_MULTIPLIER_DEFAULTS),
    **dict.fromkeys(("mistral", "ministral", "ministral3", "phi3"), _PLAIN),
    "phi3": replace(_PLAIN, fixed={"full_attn_mod": 1, "interpolate_factor": 1}),
    "mixtral": replace(
        _PLAIN, defaults={
            "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
            "rope_theta": 1_000_000,
        },
    ),
    "arcee": replace(LLAMA, activation="relu2", facts={"gated_mlp": False}),
    "ernie4_5": Family(
        flags={"use_bias": (False, _ALL_BIASES)}, tied_embeddings=True, defaults={"rope_theta": 500_000}
    ),
    "qwen2": replace(_PLAIN, facts={"qkv_bias": True}),
    "qwen2_moe": replace(
        _PLAIN,
        flags={"qkv_bias": (True, {"qkv_bias": True})},
        defaults=_NORMALIZED_BY_KEY,
        router={"shared_expert_gate": True},
    ),
    "qwen3": replace(_BIASED_ATTENTION, facts=_PER_HEAD, defaults={"head_dim": 128}),
    "qwen3_moe": replace(
        _BIASED_ATTENTION,
        facts=_PER_HEAD,
        defaults=_NORMALIZED_BY_KEY,
        fixed={"use_qk_norm": True, "qkv_bias": False},
    ),
    "olmo": replace(_BIASED_ATTENTION, facts={"normalization": "layernorm_without_weights"}),
    "olmo2": _OLMO_2,
    "olmo3": _OLMO_2,
    "olmoe": replace(
        _BIASED_ATTENTION, facts={"query_key_norm": "all_heads"}, defaults=_NORMALIZED_BY_KEY
    ),
    "flex_olmo": replace(_OLMO_2, defaults=_NORMALIZED_BY_KEY),
    "gpt_oss": Family(
        flags={"attention_bias": (True, _ATTENTION_BIASES)},
        has_own_activation=True,
        facts={
            "mlp_bias": True, "attention_sinks": True, "activation": "quick_gelu", "gate_offset": 1.0,
        },
        numbers={"swiglu_limit": ("activation_clamp", _itself)},
        defaults={"swiglu_limit": 7.0, "rope_theta": 150_000},
        router={"router_bias": True},
    ),
    "deepseek_v2": Family(
        defaults={"norm_topk_prob": False, "routed_scaling_factor": 1.0},
        fixed={"scoring_func": "softmax", "attention_bias": False},
    ),
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), _DEEPSEEK_V3),
    "glm": Family(
        flags={"attention_bias": (True, {"qkv_bias": True})}, defaults={"partial_rotary_factor": 0.5}
    ),
    "glm4": Family(
        flags={"attention_bias": (True, {"qkv_bias": True})},
        defaults={"partial_rotary_factor": 0.5},
        facts={"norm_position": "before_and_after"},
    ),
    "glm4_moe": Family(
        flags={"attention_bias": (False, {"qkv_bias": True}), "use_qk_norm": (False, _PER_HEAD)},
        defaults={
            "partial_rotary_factor": 0.5, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
            "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        },
        router=_DEEPSEEK_V3.router,
    ),
    "minimax_m2": Family(
        facts={"query_key_norm": "all_heads"},
        router={"router_score": "sigmoid", "selection_bias": True},
        fixed={
            "scoring_func": "sigmoid", "use_qk_norm": True, "qk_norm_type": "per_layer",
            "use_routing_bias": True, "shared_intermediate_size": 0, "mtp_transformer_layers": 1,
        },
    ),
    "seed_oss": Family(
        flags={
            "attention_bias": (True, {"qkv_bias": True}),
            "attention_out_bias": (False, {"attention_output_bias": True}),
            **_MLP_FLAG,
        },
        defaults={"head_dim": 128},
    ),
    "gemma": _GEMMA,
    "gemma2": _GEMMA_2,
    "gemma3_text": replace(
        _GEMMA_2,
        facts={**_GEMMA_2.facts, **_PER_HEAD},
        defaults={
            "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096,
            "rope_theta": 1_000_000, "rope_local_base_freq": 10_000,
        },
    ),
    "phimoe": Family(
        flags={**_ATTENTION_FLAG, "lm_head_bias": (False, {"head_bias": True})},
        facts={"normalization": "layernorm"},
        router={"router_score": "sparsemixer"},
    ),
    "stablelm": Family(
        flags={
            "use_qkv_bias": (False, {"qkv_bias": True}),
            "use_parallel_residual": (False, {"parallel_residual": True, "shared_norm": True}),
        },
        facts={"normalization": "layernorm"},
        defaults={"partial_rotary_factor": 0.25},
        fixed={"qk_layernorm": False},
    ),
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        facts={**_COHERE.facts, "no_rotary_every": 4},
        defaults={"logit_scale": 0.0625, "sliding_window": 4096, "sliding_window_pattern": 4},
        fixed={"sliding_window_pattern": 4, "use_qk_norm": False},
    ),
    "gpt2": _GPT_2,
    "gpt_bigcode": replace(
        _GPT_2, one_kv_head_flag="multi_query", defaults={"multi_query": True},
        fixed={"scale_attn_weights": True, "add_cross_attention": False},
    ),
    "gptj": Family(
        keys=_GPT2_KEYS,
        activation="gelu",
        ffn_is_four_hidden=True,
        facts={
            "gated_mlp": False, "normalization": "layernorm", "mlp_bias": True, "head_bias": True,
            "parallel_residual": True, "shared_norm": True,
        },
        fixed={"scale_attn_weights": True, "rotary": True},
    ),
    "gpt_neox": Family(
        flags={
            "attention_bias": (True, _ATTENTION_BIASES),
            "use_parallel_residual": (True, {"parallel_residual": True}),
        },
        activation="gelu",
        facts={"gated_mlp": False, "normalization": "layernorm", "mlp_bias": True},
        defaults={"partial_rotary_factor": 0.25},
    ),
    "phi": Family(
        activation="gelu",
        facts={**_GPT_FACTS, "head_bias": True, "parallel_residual": True, "shared_norm": True},
        defaults={"partial_rotary_factor": 0.5},
        fixed={"qk_layernorm": False},
    ),
    "persimmon": Family(
        flags={"qk_layernorm": (True, _PER_HEAD)},
        activation="relu2",
        facts=_GPT_FACTS,
        defaults={"partial_rotary_factor": 0.5},
    ),
    "starcoder2": Family(
        flags={"use_bias": (True, _ALL_BIASES)},
        tied_embeddings=True,
        activation="gelu",
        facts={"gated_mlp": False, "normalization": "layernorm"},
        defaults={"num_key_value_heads": 2},
        fixed={"mlp_type": "default", "norm_type": "layer_norm", "scale_attn_weights": True},
    ),
    "bloom": Family(
        keys=_BLOOM_KEYS,
        tied_embeddings=True,
        ffn_is_four_hidden=True,
        activation="gelu",
        facts={**_GPT_FACTS, "alibi_positions": True, "embedding_norm": True},
        fixed={"apply_residual_connection_post_layernorm": False},
    ),
    "falcon": Family(
        keys=_FALCON_KEYS,
        flags={
            "bias": (False, _ALL_BIASES),
            "parallel_attn": (True, {"parallel_residual": True}),
            "new_decoder_architecture": (False, {"parallel_residual": True}),
            "alibi": (False, {"alibi_positions": True}),
        },
        tied_embeddings=True,
        ffn_is_four_hidden=True,
        activation="gelu",
        one_kv_head_flag="multi_query",
        defaults={"multi_query": True},
        facts={"gated_mlp": False, "normalization": "layernorm"},
        fixed={"apply_residual_connection_post_layernorm": False},
    ),
    "opt": Family(
        keys=_LLAMA_KEYS | {"ffn_hidden_size": ("ffn_dim",)},
        flags={"enable_bias": (True, _ALL_BIASES)},
        tied_embeddings=True,
        activation="relu",
        facts={
            "gated_mlp": False, "normalization": "layernorm", "learned_position_embeddings": True,
            "learned_position_offset": 2,
        },
        fixed={
            "do_layer_norm_before": True, "_remove_final_layer_norm": False,
            "layer_norm_elementwise_affine": True,
        },
    ),
}  # fmt: skip

_BIAS = "this model type has no such bias"
FIXED: Mapping[str, tuple[object, str]] = {  # keys that a type does not read, and why they must say this
    "attention_bias": (False, _BIAS),
    "mlp_bias": (False, _BIAS),
    "lm_head_bias": (False, _BIAS),
    "qkv_bias": (False, _BIAS),
    "use_bias": (False, _BIAS),
    "use_qk_norm": (False, "this model type has no such norm"),
    "use_mrope": (False, "positions of several axes"),
    "use_parallel_residual": (False, "this model type adds attention and MLP one after the other"),
    "use_logn_attn": (False, "scores that grow with the sequence"),
    "swiglu_limit": (None, "clamped activations of this model type"),
    "shared_expert_intermediate_size": (0, "shared experts of a model without experts"),
}

_RECIPE = "a choice of training, not of the model; the launch files leave the launcher's own"
_TOKENS = "tokens and generation"
_SOFTWARE = "names software"
_ARITHMETIC = "the implementation's arithmetic; the plan has its own precision"
HARMLESS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "use_cache",
            "cache_implementation", "max_length", "min_length", "do_sample", "temperature", "top_k",
            "top_p", "typical_p", "repetition_penalty", "length_penalty", "num_beams",
            "num_return_sequences",
            "no_repeat_ngram_size", "early_stopping", "task_specific_params", "tokenizer_class",
            "tokenizer_name", "bad_words_ids", "forced_bos_token_id", "forced_eos_token_id",
            "model_max_length", "image_token_id", "generation_config",
        ),
        _TOKENS,
    ),
    **dict.fromkeys(
        (
            "architectures", "auto_map", "transformers_version", "transformers.js_config", "torch_dtype",
            "dtype", "_name_or_path", "_from_model_config", "_commit_hash", "_attn_implementation",
            "_attn_implementation_autoset", "attn_implementation", "attn_impl", "id2label", "label2id",
            "num_labels", "problem_type", "return_dict", "output_attentions", "output_hidden_states",
            "torchscript", "use_bfloat16", "is_llama_config", "is_decoder", "gradient_checkpointing",
            "unsloth_fixed", "unsloth_version", "use_flash_attn", "name", "pruned_heads",
            "chunk_size_feed_forward", "slow_but_exact", "onnx_safe",
        ),
        _SOFTWARE,
    ),
    **dict.fromkeys(
        ("initializer_range", "initializer_factor", "init_std", "embedding_initializer_range"),
        "initial weights change no cost; the launch files leave the launcher's own",
    ),
    **dict.fromkeys(
        (
            "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout",
            "residual_dropout", "embedding_dropout", "classifier_dropout", "activation_dropout",
            "layerdrop", "expert_dropout", "router_jitter_noise", "input_jitter_noise",
            "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "output_router_logits",
            "router_z_loss_coef",
        ),
        _RECIPE,
    ),
    **dict.fromkeys(
        (
            "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "reorder_and_upcast_attn",
            "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv", "bias_dropout_fusion",
        ),
        _ARITHMETIC,
    ),
    **dict.fromkeys(
        ("rope_interleave", "rope_interleaved"), "which pairs rotate: an order of the same weights"
    ),
    **dict.fromkeys(
        ("pretraining_tp", "ep_size"), "how the published weights were computed; the result is the same"
    ),
    **dict.fromkeys(
        (
            "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
            "summary_use_proj",
        ),
        "a head for classification, which a language model does not build",
    ),
    "norm_topk_prob": "read with experts",
    "quantization_config": "of the published weights; training has the request's precision",
    "max_window_layers": "read where use_sliding_window is true",
    "n_ctx": "repeats n_positions",
    "initial_context_length": "repeats what rope_scaling states",
    "runner_max_sequence_length": "of inference",
    "offset_alibi": "an unused key of BLOOM",
    "unk_token": _TOKENS,
    "qk_head_dim": "the sum of qk_nope_head_dim and qk_rope_head_dim",
    "num_ln_in_parallel_attn": "read with new_decoder_architecture",
    "no_rope_layers": "repeats no_rope_layer_interval, and is held against it",
    "experts_per_token": "repeats num_experts_per_tok",
}  # fmt: skip

# Types that are refused, with the reason; any other type that is not in FAMILIES is refused as unknown.
REFUSED_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("bert", "roberta", "distilbert", "electra", "deberta", "deberta-v2"), "an encoder"),
    **dict.fromkeys(("vit", "clip", "siglip", "dinov2"), "a vision model"),
    **dict.fromkeys(("t5", "mt5", "bart", "mbart", "pegasus", "whisper"), "an encoder-decoder model"),
    **dict.fromkeys(
        ("mamba", "mamba2", "rwkv", "rwkv5", "xlstm", "falcon_mamba"), "layers without attention"
    ),
    **dict.fromkeys(
        (
            "bamba", "falcon_h1", "granitemoehybrid", "jamba", "nemotron_h", "nemotron-nas", "zamba",
            "zamba2", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "minimax",
        ),
        "layers of mixed kinds",
    ),
    "apertus": "an activation with trained parameters",
    "bitnet": "ternary weights and norms inside attention and MLP",
    "llama4_text": "chunked attention",
    "gemma4_text": "heads of several sizes",
    "orion": "remote code: LayerNorm, though its config names RMSNorm's epsilon",
    "baichuan": "remote code: a normalised output head",
}  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Features of Hugging Face configs that a decoder-only transformer's shape cannot express.


_REASONS: Mapping[str, str] = {
    "is_encoder_decoder": "an encoder-decoder model",
    "add_cross_attention": "cross-attention",
    "type_vocab_size": "an encoder",
    "vision_config": "a vision tower",
    "visual": "a vision tower",
    "audio_config": "an audio tower",
    "text_config": "a model inside a model; give the text model's own config",
    "encoder": "an encoder-decoder model",
    "state_size": "state-space layers",
    "d_state": "state-space layers",
    "conv_kernel": "state-space layers",
    "layers_block_type": "layers of mixed kinds",
    "hybrid_override_pattern": "layers of mixed kinds",
    "block_types": "layers of mixed kinds",
    "attn_type_list": "layers of mixed kinds",
    "attn_layer_period": "layers of mixed kinds",
    "full_attention_interval": "linear attention",
    "linear_attn_config": "linear attention",
    "linear_num_value_heads": "linear attention",
    "index_topk": "sparse attention chosen by an indexer",
    "attention_chunk_size": "chunked attention",
    "interleave_moe_layer_step": "experts in some layers, by a rule of its own",
    "hidden_size_per_layer_input": "embeddings of each layer",
    "altup_num_inputs": "alternating updates",
    "dense_attention_every_n_layers": "block-sparse attention",
    "num_kv_shared_layers": "layers that share keys and values",
    "use_parallel_residual_experts": "parallel experts",
}
_PREFIXES: Mapping[str, str] = {"mamba_": "state-space layers", "ssm_": "state-space layers"}


def refuse_unsupported(reader: FieldReader) -> None:
    """Refuse what only another kind of model has.

    Raises:
        UnsupportedModelError: names the name.
    """
    for name, why in _REASONS.items():
        if reader.value(name) not in (None, False, 0, [], {}, ""):
            raise UnsupportedModelError.field(name, why)
    for name in reader.names():
        for prefix, why in _PREFIXES.items():
            if name.startswith(prefix) and reader.has(name):
                raise UnsupportedModelError.field(name[:60], why)
    _refuse_projected_embeddings(reader)


def _refuse_projected_embeddings(reader: FieldReader) -> None:
    """OPT-350M projects its word embeddings; no other model does."""
    size = reader.value("word_embed_proj_dim")
    if size is not None and size != reader.value("hidden_size"):
        raise UnsupportedModelError.field("word_embed_proj_dim", "projected word embeddings")
