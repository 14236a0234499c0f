"""Keys of Hugging Face configs: how a type reads them, and those that change nothing or are not planned.

A key of a config is *known* (a model type reads it), *harmless* (``HARMLESS``, with the reason), or refused
by its name. Types that are not planned are refused with the reason and what to do next.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cache
from itertools import takewhile
from typing import Any, NoReturn

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, UnsupportedModelError
from meshwright.profiles.importers.huggingface_layers import GlobalRule, LocalRule
from meshwright.profiles.importers.huggingface_mixers import MixerRule
from meshwright.profiles.reading import FieldReader

Facts = Mapping[str, object]  # fields of ModelSpec

KEYS: dict[str, str] = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "ffn_hidden_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "max_position_embeddings": "max_position_embeddings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTypeKeys:
    """How one model type is read.

    ``flags``: a key, its default, and the facts that hold where it is true. ``numbers``: a key, the fact
    that it states, and how the fact follows from it. ``fixed``: the only value that a key may have.
    """

    keys: Mapping[str, str] = field(default_factory=dict)  # our name: theirs, if not in ``attribute_map``
    names: Mapping[str, str] = field(default_factory=dict)  # other names of keys: theirs
    like: str = ""  # the type that it takes its defaults from, if not transformers' own
    defaults: Mapping[str, object] = field(default_factory=dict)  # that the class derives, or no class has
    facts: Facts = field(default_factory=dict)
    experts: str = ""  # the key that counts experts, where the class has no default of one
    experts_flag: str = ""  # a key without which there are none
    experts_beside_mlp: bool = False  # each layer has both: the MLP is the shared expert
    router: Facts = field(default_factory=dict)  # fields of MoeSpec
    balanced_by_loss: bool = True  # whether its trainers add the loss with the weight in the config
    flags: Mapping[str, tuple[bool, Facts]] = field(default_factory=dict)
    follows: Callable[[FieldReader, Facts], Facts] | None = None  # facts of several keys, and those known
    latent_bias_flag: str = ""  # latent attention: a key that gives its down-projections biases
    numbers: Mapping[str, tuple[str, Callable[[float], float]]] = field(default_factory=dict)
    fixed: Mapping[str, object] = field(default_factory=dict)  # a tuple: any of these
    as_built: Callable[[dict[str, object]], dict[str, object]] | None = None  # an older config's keys anew
    each_layer: tuple[str, ...] = ()  # keys that may list a value for each layer
    plans: tuple[str, ...] = ()  # keys that other types are refused for
    of_published: tuple[str, ...] = ()  # lists of published configs that replace the class's own
    unused: tuple[str, ...] = ()  # of published configs; the class builds nothing by them
    parts: tuple[str, ...] = ()  # objects inside the config with keys read as ``part.key``
    global_layers: GlobalRule = "all"
    global_every: int = 0
    rotary_on_local_layers: bool = False  # global layers have no positions
    null_is_no_rotary: bool = False  # nor have they where the config's rope_parameters of them are null
    local_attention: LocalRule | None = None  # what global and local layers have each
    mixer: MixerRule | None = None  # what layers that do not attend have
    activation: str = "silu"  # where the config names none
    own_activation: bool = False  # the class does not use the one that the config names
    ffn_of_hidden: int = 0  # the MLP's width in hidden sizes, where the config states none
    dense_ffn_key: str = ""  # the width of layers without experts, where it has a key of its own
    dense_without_experts: bool = False  # 0 experts are an MLP, not experts of which there are none
    shared_experts_of_ffn: int = 0  # shared experts that no key counts, each as wide as the MLP
    rounds_head_dim: bool = False  # if hidden_size / heads is not a whole number
    heads_fill_hidden: bool = False  # attention's output is as wide as the hidden size
    needs_shared_experts: bool = False  # the class is not made for none
    one_kv_head_flag: str = ""  # a key that leaves one key/value head
    scale_flag: str = ""  # a key that scales embeddings by the root of the hidden size; "always"
    head_of_whole: bool = False  # a model inside a model with a config that sets whether the head is tied


_BIAS = "this model type has no such bias"
FIXED: Mapping[str, tuple[object, str]] = {  # keys that a type does not read: value, and why
    "attention_bias": (False, _BIAS),
    "mlp_bias": (False, _BIAS),
    "lm_head_bias": (False, _BIAS),
    "qkv_bias": (False, _BIAS),
    "use_bias": (False, _BIAS),
    "use_qk_norm": (False, "this model type has no such norm"),
    "use_mrope": (False, "positions of several axes"),
    "use_parallel_residual": (False, "this model type adds attention and MLP one after the other"),
    "use_logn_attn": (False, "scores that grow with the sequence"),
    "bias": (False, _BIAS),
    "qk_norm": (False, "this model type has no such norm"),
    "post_norm": (False, "this model type has its norms elsewhere"),
    "use_bidirectional_attention": (False, "attention to later tokens"),
    "use_cla": (False, "layers that share keys and values"),
    "use_dynamic_ntk": (False, "positions that stretch with the sequence"),
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
            "model_max_length", "image_token_id", "generation_config", "num_beam_groups",
            "diversity_penalty", "encoder_no_repeat_ngram_size", "output_scores", "remove_invalid_values",
            "return_dict_in_generate", "exponential_decay_length_penalty", "suppress_tokens",
            "begin_suppress_tokens", "decoder_start_token_id", "prefix", "bos_token", "eos_token",
            "output_past", "inference_runner", "max_batch_size", "pad_key_length", "max_model_len",
            "pre_allocate_kv_cache", "validate_runner_input", "pad_id", "n_special",
            "predict_special_tokens", "ignored_index",
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
            "chunk_size_feed_forward", "slow_but_exact", "onnx_safe", "tf_legacy_loss", "use_return_dict",
            "tie_encoder_decoder", "finetuning_task", "_attn_implementation_internal",
            "use_flash_attention", "_output_attentions", "_flash_attn_2_enabled", "flash_attn",
            "flash_rotary", "fused_dense", "fused_bias_fc", "fused_dropout_add_ln", "fused_mlp",
            "use_sdpa_with_kv_cache", "_num_labels", "custom_pipelines", "for_llm_compressor",
            "use_grouped_mm", "disable_ffn_model_parallel", "xla_device",
        ),
        _SOFTWARE,
    ),
    **dict.fromkeys(
        (
            "initializer_range", "initializer_factor", "init_std", "embedding_initializer_range",
            "initializer_cutoff_factor", "lambda_std_dev",
        ),
        "initial weights change no cost; the launch files leave the launcher's own",
    ),
    **dict.fromkeys(
        (
            "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout",
            "residual_dropout", "embedding_dropout", "classifier_dropout", "activation_dropout",
            "layerdrop", "expert_dropout", "router_jitter_noise", "input_jitter_noise",
            "output_router_logits", "router_z_loss_coef", "neftune_noise_alpha", "z_loss_enabled",
            "mup_denominator", "token_balance_loss",
        ),
        _RECIPE,
    ),
    **dict.fromkeys(
        (
            "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "reorder_and_upcast_attn",
            "enable_moe_fp32_combine", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv",
            "bias_dropout_fusion", "moe_router_dtype", "router_dtype",
        ),
        _ARITHMETIC,
    ),
    **dict.fromkeys(
        ("rope_interleave", "rope_interleaved", "indexer_rope_interleave"),
        "which pairs rotate: an order of the same weights",
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
    **dict.fromkeys(
        (
            "norm_topk_prob", "first_k_dense_replace", "n_group", "topk_group", "routed_scaling_factor",
            "moe_layer_freq", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step",
            "moe_norm_min", "n_shared_experts", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux",
        ),
        "read with experts",
    ),
    **dict.fromkeys(
        (
            "index_block_size", "index_head_dim", "index_local_blocks", "index_n_heads",
            "index_topk_blocks",
        ),
        "read with layers of sparse attention, which are refused",
    ),
    **dict.fromkeys(("attn_scale", "floor_scale"), "of queries scaled by their position"),
    **dict.fromkeys(("init_device", "verbose"), _SOFTWARE),
    "init_config": "initial weights change no cost; the launch files leave the launcher's own",
    "moe_loss_weight": "repeats router_aux_loss_coef",
    "learned_pos_emb": "an unused key of MPT, which has ALiBi positions",
    "attn_uses_sequence_id": "how sequences are packed",
    "is_encoder_decoder": "refused where it is true",
    **dict.fromkeys(
        ("quantization_config", "quantization", "compression_config", "_pre_quantization_dtype"),
        "of the published weights; training has the request's precision",
    ),
    "dual_chunk_attention_config": "of inference beyond the trained length",
    **dict.fromkeys(
        ("max_sequence_length", "seq_length", "max_seq_len", "context_length", "context_window_size"),
        "a length of inference or of training, in addition to max_position_embeddings",
    ),
    "prefill_chunk_size": "of inference",
    "org_vocab_size": "the tokens before padding; the table has vocab_size",
    "pad_vocab_size_multiple": "how vocab_size was rounded",
    "max_window_layers": "read where use_sliding_window is true",
    "n_ctx": "repeats n_positions",
    "initial_context_length": "repeats what rope_scaling states",
    "runner_max_sequence_length": "of inference",
    "offset_alibi": "an unused key of BLOOM",
    "unk_token": _TOKENS,
    "qk_head_dim": "the sum of qk_nope_head_dim and qk_rope_head_dim",
    "num_ln_in_parallel_attn": "read with new_decoder_architecture",
    "no_rope_layers": "repeats no_rope_layer_interval, and is held against it",
}  # fmt: skip

# Types that are refused, with the reason; any other type that is not in FAMILIES is refused as unknown.
REFUSED_TYPES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "deberta", "deberta-v2",
            "distilbert", "electra", "ernie", "megatron-bert", "rembert", "roberta",
            "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod",
        ),
        "an encoder",
    ),
    **dict.fromkeys(("vit", "clip", "siglip", "dinov2"), "a vision model"),
    **dict.fromkeys(
        (
            "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mt5",
            "musicgen", "musicgen_melody", "mvp", "pegasus", "plbart", "prophetnet", "t5", "trocr",
            "whisper",
        ),
        "an encoder-decoder model",
    ),
    **dict.fromkeys(
        (
            "dots3_note", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "git",
            "got_ocr2", "llama4", "mllama", "moshi", "moss_transcribe_diarize", "phi4_multimodal",
            "qwen3_5", "qwen3_5_moe", "qwen4_exp", "qwen2_5_omni", "qwen3_omni_moe", "step3p7", "step3_vl",
        ),
        "a model of several modalities; where its config has a text_config, give that one",
    ),
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"), "a draft model that reads another one's keys"
    ),
    **dict.fromkeys(
        ("mamba", "mamba2", "rwkv", "rwkv5", "xlstm", "falcon_mamba"), "layers without attention"
    ),
    **dict.fromkeys(
        (
            "bailing_hybrid", "falcon_h1", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "lfm3", "minimax",
            "nemotron_h", "nemotron-nas", "olmo_hybrid", "qwen4_exp_text", "recurrent_gemma", "zamba",
            "zamba2",
        ),
        "layers of mixed kinds",
    ),
    "dots3_note_text": "layers with attention heads of several sizes",
    **dict.fromkeys(("inkling_text", "inkling2_text", "zaya"), "convolutions inside attention"),
    **dict.fromkeys(("deepseek_v4", "hy_v4"), "several streams of residuals (hyper-connections)"),
    "axk2": "norms with gates of their own",
    "blt": "patches of bytes",
    "cpmant": "trained relative positions and embeddings of segments",
    "doge": "attention masked by trained states",
    "hrm_text": "layers that run in cycles",
    "jetmoe": "experts of attention",
    "ernie4_5_vl_moe_text": "experts of text and experts of images",
    "glm5_next_text": "layers of mixed kinds, and several streams of residuals",
    "step3_text": "queries of a factorised projection that all heads share",
    "mistral_large4_text": "layers that read the keys of others, which an indexer chooses",
    **dict.fromkeys(("muse_glimmer_text", "muse_spark_text"), "norms without weights next to others with"),
    "longcat_flash": "two attentions and MLPs in a layer, next to experts some of which do nothing",
    "reformer": "hashed attention",
    "xlnet": "attention over permuted orders",
}  # fmt: skip


# Published configs that have another type's name, distinguished by the class that they name: Ling and Ring
# 2.0 (inclusionAI/Ling-mini-2.0) have that of Ling 1, which has another router; InternLM 2 had that of 1.
_TYPE_OF_CLASS: Mapping[tuple[str, str], str] = {
    ("bailing_moe", "BailingMoeV2ForCausalLM"): "bailing_moe_v2",
    ("internlm", "InternLM2ForCausalLM"): "internlm2",
}
# Names under which types were published before transformers had them, or under which their weights run.
_RENAMED: Mapping[str, str] = {
    **dict.fromkeys(("Yi", "aquila", "xverse"), "llama"),
    "stablelm_epoch": "stablelm", "RefinedWebModel": "falcon",
}  # fmt: skip


def type_of(reader: FieldReader) -> str:
    """Return the model type of a config, by its class if types share a name."""
    stated, classes = reader.text("model_type"), reader.value("architectures")
    named = classes[0] if isinstance(classes, list) and classes else None
    return _TYPE_OF_CLASS.get((stated, str(named)), _RENAMED.get(stated, stated))


# Dropout and weights of auxiliary losses are spelled in many ways.
_HARMLESS_ENDINGS = (
    "_token_id",
    "dropout",
    "_pdrop",
    "dropout_prob",
    "jitter_noise",
    "jitter_eps",
    "loss_coef",
    "loss_coefficient",
    "loss_weight",
)


def harmless_reason(key: str) -> str | None:
    """Return why a key changes nothing that is planned; None where it may."""
    if key in HARMLESS:
        return HARMLESS[key]
    inner = key.rsplit(".", 1)[-1]  # of an object inside the config
    if inner in HARMLESS:
        return HARMLESS[inner]
    if key.endswith("_version") or key.startswith(("fuse_", "fused_")):
        return _SOFTWARE
    if key.startswith(("vit_", "anyres_")):
        return "of images, which others of the family read"
    return _TOKENS if key.endswith("_token_id") else _RECIPE if key.endswith(_HARMLESS_ENDINGS) else None


def refuse_type(model_type: str, planned: tuple[str, ...]) -> NoReturn:
    """Refuse a type that is not planned, with what to do next.

    Raises:
        UnsupportedModelError: always.
    """
    what = REFUSED_TYPES.get(model_type)
    why = "is an unknown type" if what is None else f"is not priced yet: {what}"
    instead = nearest_words(model_type, planned) or "plan a decoder-only type with its layers"
    message = f'"{model_type[:40]}" {why}; {instead}: docs/howto/own-model.md'
    raise UnsupportedModelError([FieldError(pointer="/model/model_type", message=message)])


def nearest_words(model_type: str, planned: Sequence[str]) -> str:
    """Return which planned type is nearest, in words; empty without one of the same family."""
    near = _nearest(model_type, planned)
    return f"the nearest planned type is {near}" if near else ""


_ALIKE = 4  # letters at the beginning of two types of one family


def _nearest(model_type: str, planned: Sequence[str]) -> str | None:
    """Return the planned type of the same family with the most alike name; None without one."""
    text = model_type.endswith("_text")
    family = [
        (_alike_from_the_start(model_type, one), SequenceMatcher(None, model_type, one).ratio(), one)
        for one in planned
        if one.endswith("_text") is text
    ]
    best = max(family, default=(0, 0.0, ""))
    return best[2] if best[0] >= _ALIKE else None


def _alike_from_the_start(one: str, other: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


# --------------------------------------------------------------------------------------------------
# Features of Hugging Face configs that a decoder-only transformer's shape cannot express.


_REASONS: Mapping[str, str] = {
    "is_encoder_decoder": "an encoder-decoder model",
    "add_cross_attention": "cross-attention",
    "type_vocab_size": "an encoder",
    "vision_config": "a vision tower",
    "visual": "a vision tower",
    "audio_config": "an audio tower",
    "text_config": "a model inside a model",
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
    "hidden_size_per_layer_input": "embeddings of each layer",
    "altup_num_inputs": "alternating updates",
    "dense_attention_every_n_layers": "block-sparse attention",
    "num_kv_shared_layers": "layers that share keys and values",
    "use_parallel_residual_experts": "parallel experts",
}
_TOWERS = ("vision_config", "visual", "audio_config")
_ATTENTION = {"attn_type_list": "1"}  # the entry of a list of kinds for a layer with attention
_PREFIXES: Mapping[str, str] = {"mamba_": "state-space layers", "ssm_": "state-space layers"}


def _language_model(reader: FieldReader, name: str) -> str:
    inside, own = reader.value("text_config"), f"{str(reader.value('model_type'))[:40]}_text"
    if name in _TOWERS and not inside and own in _types():  # an older config, of both in one
        return f'; plan its language model: the same config without {name}, model_type "{own}"'
    if name not in (*_TOWERS, "text_config") or not isinstance(inside, Mapping) or not inside:
        return ""
    model_type = str(inside.get("model_type", ""))[:40]
    if model_type in REFUSED_TYPES:
        return f'; its language model ("{model_type}") is refused, too: {REFUSED_TYPES[model_type]}'
    of_type = f' (model_type "{model_type}")' if model_type else ""
    return f"; plan its language model: give text_config{of_type} as a config of its own"


def refuse_unsupported(reader: FieldReader, planned: tuple[str, ...] = (), *, instead: str = "") -> None:
    """Refuse what only another kind of model has, keys that the type plans aside.

    ``instead``: what to plan in its place, if it is not its language model.

    Raises:
        UnsupportedModelError: names the name.
    """
    for name, why in _REASONS.items():
        value = reader.value(name)
        alike = (
            isinstance(value, list) and name in _ATTENTION and set(map(str, value)) == {_ATTENTION[name]}
        )
        if name not in planned and not alike and value not in (None, False, 0, [], {}, ""):
            inside = _language_model(reader, name)
            raise UnsupportedModelError.field(name, why + (inside or (instead and f"; {instead}")))
    for name in reader.names():
        for prefix, why in _PREFIXES.items():
            if name.startswith(prefix) and reader.has(name) and name not in planned:
                raise UnsupportedModelError.field(name[:60], why + (instead and f"; {instead}"))


# --------------------------------------------------------------------------------------------------
# Defaults of transformers' classes, and keys that they do not read: data that
# ``benchmarks/catalog/model_types.py`` writes.


_OF_HEADS = ("num_key_value_heads", "head_dim")  # tools write them next to the sizes that they repeat
EXPERTS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "moe_num_experts",
    "ffn_config.moe_num_experts",
)
TOP_K = (
    "num_experts_per_tok",
    "top_k_experts",
    "experts_per_token",
    "moe_topk",
    "moe_k",
    "ffn_config.moe_top_k",
)
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
# Names of one size: a key that nothing reads changes nothing if it repeats the value of another one.
_NAMES_OF_ONE = (
    EXPERTS, (*TOP_K, "num_experts_per_token"), SHARED,
    ("num_hidden_layers", "num_layers", "n_layers", "n_layer"),
    ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    ("num_attention_heads", "num_heads", "n_heads", "n_head"),
    ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "num_query_groups"),
    ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "d_ff"),
    ("head_dim", "kv_channels", "attention_head_dim", "head_size"),
    ("sliding_window", "sliding_window_size", "window_size"),
    ("partial_rotary_factor", "rope_pct", "rotary_pct", "rotary_percent"),
    ("rope_theta", "rotary_emb_base", "rope_base"),
)  # fmt: skip
_NULL_IS_READ = ("num_shared_experts", "head_dim")  # as none, and as hidden_size / heads
_NEUTRAL: Mapping[str, object] = dict.fromkeys(
    ("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval"), 1
)


@cache
def _types() -> Mapping[str, Mapping[str, Any]]:
    raw = json.loads((CATALOG / "model_types.json").read_text("utf-8"))
    return dict(raw["types"])


def repeats(key: str, config: Mapping[str, object]) -> bool:
    """Return whether a key repeats the value of the config under another name of the same size."""
    names = {other for one in _NAMES_OF_ONE if key in one for other in one} - {key}
    return any(other in config and config[other] == config[key] for other in names)


def with_own_names(model_type: str, family: ModelTypeKeys) -> ModelTypeKeys:
    """Return the family with the names that its class has of every size and of the number of experts."""
    entry = _types().get(family.like or model_type, {"defaults": {}, "names": {}})
    own = next((key for key in EXPERTS if key in {*entry["defaults"], *entry["names"].values()}), "")
    keys = {ours: str(entry["names"].get(theirs, theirs)) for ours, theirs in KEYS.items()}
    return replace(family, experts=family.experts or own, keys={**keys, **family.keys})


def expert_adapters(model_type: str) -> str:
    """Return how peft finds a type's experts (``ExpertAdapters``); in remote code they are layers."""
    return str(_types().get(model_type, {"expert_adapters": "linear"})["expert_adapters"])


def completed(
    model_type: str, family: ModelTypeKeys, config: Mapping[str, object]
) -> tuple[dict[str, object], frozenset[str]]:
    """Return the config under its class's own names with all defaults, and which keys are defaults.

    Raises:
        UnsupportedModelError: a key that transformers' class does not read has another value than the class
        implies.
    """
    entry = _types().get(family.like or model_type, {"defaults": {}, "names": {}})
    names = {**{str(key): str(value) for key, value in entry["names"].items()}, **family.names}
    stated: dict[str, object] = {}
    for key, value in config.items():
        part = value if key in family.parts and isinstance(value, Mapping) else None
        if part is not None:
            stated |= {f"{key}.{inner}": inside for inner, inside in part.items()}
        elif names.get(key, key) == key or names[key] not in config:
            stated[names.get(key, key)] = value
        elif value is not None and value != config[names[key]]:
            other = shown(str(config[names[key]]))
            why = f"another name of {names[key]}, which is {other}; remove one of them"
            raise UnsupportedModelError.field(key, why)
    stated = family.as_built({**entry["defaults"], **stated}) if family.as_built else stated
    stated |= {key: _one_value(key, stated[key]) for key in family.each_layer if key in stated}
    published = [key for key in family.of_published if isinstance(stated.get(key), list)]
    read = {*published, family.experts}
    for key in [key for key in entry.get("unread", ()) if key in stated and key not in read]:
        known = key == "moe_intermediate_size" and stated[key] == stated.get("intermediate_size")
        if not (known or repeats(key, {**entry["defaults"], **stated})):
            _refuse_unread(key, stated[key], family)
        del stated[key]
    derived = {**entry.get("derived", {}), **family.defaults}
    defaults = {**entry["defaults"], **derived}
    off = {key: False for key, value in stated.items() if value is None and defaults.get(key) is True}
    stated |= off  # a switch that is null is off, whatever its default is
    own = {key for key in derived if stated.get(key) is None}  # the class derives it of null, too
    own -= {key for key in _NULL_IS_READ if key in stated}
    added = {key: value for key, value in defaults.items() if key not in stated or key in own}
    return {**stated, **added}, frozenset(added)


def _one_value(key: str, value: object) -> object:
    """Return the value that a list states for every layer; return anything else unchanged.

    Raises:
        UnsupportedModelError: layers differ.
    """
    if not isinstance(value, list) or not value:
        return value
    if any(one != value[0] for one in value):
        raise UnsupportedModelError.field(key, "layers of different sizes")
    return value[0]


def _refuse_unread(key: str, value: object, family: ModelTypeKeys) -> None:
    """Refuse keys of other types, unless they change nothing: a size of heads that have their own.

    Raises:
        UnsupportedModelError: the config means a model that transformers' class does not build.
    """
    width = family.experts and key == "intermediate_size"  # of dense layers, which this type has none of
    one_expert = key in EXPERTS and value == 1 and not family.experts  # the MLP
    harmless = key in _OF_HEADS or width or one_expert or (not family.experts and harmless_reason(key))
    neutral = value in (None, False, 0, [], {}, family.defaults.get(key), _NEUTRAL.get(key))
    if not (harmless or neutral):
        why = "transformers' class of this type does not read this key; remove it, or correct model_type"
        raise UnsupportedModelError.field(key, why)
