"""Configs of every planned model type, as transformers' own classes default them and with switches turned.

It imports nothing of Meshwright. A line of standard output is one config with the parameters that
transformers builds from it on torch's meta device, tied ones counted once:

    .ci/environment torch python -m tests.torch.drawn_configs --draws 3 llama qwen3 ...
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from transformers.initialization import no_init_weights
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

Config = dict[str, Any]
LAYERS = re.compile(r"^(num_hidden_layers|n_layers?|num_layers)$")
# Switches of software or of kinds of model that no decoder-only language model has.
NO_SWITCH = re.compile(
    r"use_cache|output_|return_|is_decoder|is_encoder|token|dropout|summary|initializer|cross_attention|"
    r"tie_encoder|pruned|chunk|gradient|scale_attn|init_device|attn_uses|prefix_lm|layernorm_elementwise"
)
# Sizes that are drawn anew, and what from. Heads divide the hidden sizes of all classes' defaults.
SIZES: dict[str, tuple[Any, ...]] = {
    "vocab_size": (1000, 32_001, 50_257), "word_embed_proj_dim": (None, 384),
    "intermediate_size": (768, 5_504), "ffn_dim": (768, 5_504), "n_inner": (None, 768, 5_504),
    "ffn_hidden_size": (None, 768), "moe_intermediate_size": (256, 768),
    "num_key_value_heads": (None, 1, 2), "num_kv_heads": (None, 1, 2),
    "head_dim": (None, 64, 96, 128),
    "q_lora_rank": (None, 384), "kv_lora_rank": (128,), "qk_nope_head_dim": (32, 96),
    "num_experts": (16, 24), "num_local_experts": (16, 24), "n_routed_experts": (16, 24),
    "moe_num_experts": (16, 24),
    "n_shared_experts": (None, 1, 3), "num_shared_experts": (0, 1, 3),
    "moe_num_shared_experts": (0, 2), "shared_expert_intermediate_size": (0, 640),
    "shared_intermediate_size": (0, 640), "first_k_dense_replace": (0, 1, 2), "num_dense_layers": (0, 1, 2),
    "interleave_moe_layer_step": (1, 2), "decoder_sparse_step": (1, 2),
    "mlp_only_layers": ([], [1], [0, 2]),
    "sliding_window": (None, 64, 512), "max_position_embeddings": (512, 4096), "n_positions": (512, 2048),
    "moe_latent_size": (None, 512), "mamba_head_dim": (32, 64), "layers_block_type": (
        None, ["linear_attention", "moe"] * 2, ["linear_attention", "mlp", "full_attention", "mlp"],
        ["linear_attention"] * 3,
    ),
    "mamba_dt_rank": ("auto", 96), "expert_layer_period": (2, 3),
    "hidden_act": ("silu", "gelu", "relu2"), "gating": (True, "per-element"),
}  # fmt: skip
# Without these the classes build nothing from their own defaults.
NEEDED_BY_TYPE: dict[str, Config] = {
    **{key: {"head_dim": 128} for key in ("ministral", "hunyuan_v1_dense", "hunyuan_v1_moe")},
    "nemotron": {"num_key_value_heads": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},  # of three layers one attends
    "lfm2": {"full_attn_idxs": [1]},
    "lfm2_moe": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
    },
    "gemma3n_text": {"num_kv_shared_layers": 1},  # of three layers one is left to share
    "hunyuan_vl_text": {"head_dim": 128, "tie_word_embeddings": True},
    # what the configs of whole models say
    **{
        key: {"tie_word_embeddings": False}
        for key in (
            "qwen2_vl_text",
            "qwen2_5_vl_text",
            "qwen3_vl_text",
            "qwen3_vl_moe_text",
            "glm4v_text",
            "glm4v_moe_text",
            "glm_ocr_text",
            "mistral4",
            "granite4_vision_text",
            "granite_docling_text",
            "paddleocr_vl_text",
            "qwen2_5_omni_text",
            "qwen3_omni_moe_text",
            "step3p5",
        )
    },
    "dbrx": {
        "attn_config": {"kv_n_heads": 4, "rope_theta": 500_000, "clip_qkv": 8},
        "ffn_config": {"hidden_size": 2048, "ffn_hidden_size": 1792, "moe_num_experts": 8, "moe_top_k": 2},
    },
}
NEEDED = {
    "num_experts_per_tok": 4,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
}  # where a class leaves them open


def known_types() -> set[str]:
    """Every type that the library has a configuration class of."""
    return set(CONFIG_MAPPING)


def base_fields() -> set[str]:
    """Fields that every configuration has; whether the head is tied is the one that counts."""
    fields = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
    return fields - {"tie_word_embeddings"}


def needed(config: type) -> Config:
    """Sizes without which a model cannot run although its class leaves them open."""
    fields = dataclasses.fields(config)
    return {one.name: NEEDED[one.name] for one in fields if one.name in NEEDED and one.default is None}


def drawn(config: type, rng: random.Random) -> Config:
    """Some layers of the class, a few of its switches turned and a few of its sizes drawn anew."""
    changes = needed(config)
    for field in dataclasses.fields(config):
        name, value = field.name, field.default
        if name in base_fields() or NO_SWITCH.search(name):
            continue
        if LAYERS.match(name):
            changes[name] = rng.choice((3, 4, 6))
        elif isinstance(value, bool) and rng.random() < 0.3:
            changes[name] = not value
        elif name in SIZES and rng.random() < 0.3:
            changes[name] = rng.choice(SIZES[name])
    return changes


def single_keys(model_type: str, count: int) -> Iterator[tuple[str, Config]]:
    """Whole configs of a type without one key, and small ones with one set otherwise, ``count`` each."""
    config, rng = CONFIG_MAPPING[model_type], random.Random(f"{model_type} keys")
    base = {**needed(config), **NEEDED_BY_TYPE.get(model_type, {})}
    fields = {one.name: one.default for one in dataclasses.fields(config)}
    if model_type != "gpt_neo":  # whose kinds of layers are listed
        base |= dict.fromkeys(filter(LAYERS.match, fields), 3)
    whole = json.loads(config(**base).to_json_string(use_diff=False))
    whole.pop("model_type")
    for key in rng.sample(sorted(set(whole) & set(fields)), count):
        yield f"without {key}", {name: value for name, value in whole.items() if name != key}
    others = {
        name: [not value] if isinstance(value, bool) else [value * 2, value // 2]
        for name, value in fields.items()
        if name not in base_fields() and not NO_SWITCH.search(name) and type(value) in (bool, int) and value
    }
    for key in rng.sample(sorted(others), min(count, len(others))):
        value = rng.choice(others[key])
        yield f"{key} {value}", {**base, key: value}


def inner_class(config: type) -> type:
    """The class of a model that is only built inside others: it has that configuration and no head."""
    module = importlib.import_module(config.__module__.replace("configuration_", "modeling_"))
    of_config = (one for one in vars(module).values() if getattr(one, "config_class", None) is config)
    return next(
        one for one in of_config if one.__name__.endswith("Model") and "PreTrained" not in one.__name__
    )


def on_meta(build: Callable[[], Any]) -> Any:  # noqa: ANN401 - a model of any class
    """A model on torch's meta device, with its tied weights tied; none is drawn where none has a value."""
    with torch.device("meta"), no_init_weights():
        model = build()
    model.tie_weights()
    return model


def parameters(model_type: str, config: Config) -> int:
    """The parameters of the type's language model, shared ones counted once.

    Of a type that is only built inside other models: those of its layers, and of an output head.
    """
    built = CONFIG_MAPPING[model_type](**config)
    auto, head = transformers.AutoModelForCausalLM._model_mapping, 0
    if type(built) not in auto:
        head = 0 if config["tie_word_embeddings"] else built.vocab_size * built.hidden_size
    model_class = auto[type(built)] if type(built) in auto else inner_class(type(built))
    model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    model = on_meta(lambda: model_class(built))
    return head + sum({id(one): one.numel() for one in model.parameters()}.values())


def cases(model_type: str, draws: int) -> Iterator[tuple[Config, int | None, str]]:
    """The class's own defaults, then configs drawn from it; what the library cannot build has no count."""
    config = CONFIG_MAPPING[model_type]
    for number in range(draws + 1):
        changes = drawn(config, random.Random(f"{model_type} {number}")) if number else needed(config)
        changes |= NEEDED_BY_TYPE.get(model_type, {})
        try:
            count = parameters(model_type, changes)
        except Exception as error:  # noqa: BLE001 - the library refuses in many ways
            yield {"model_type": model_type, **changes}, None, f"{type(error).__name__}: {str(error)[:80]}"
            continue
        yield {"model_type": model_type, **changes}, count, ""
        saved = json.loads(CONFIG_MAPPING[model_type](**changes).to_json_string(use_diff=bool(number % 2)))
        yield {**saved, "model_type": model_type}, count, ""


def main() -> int:
    """Print one JSON object a config."""
    transformers.logging.set_verbosity(50)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("types", nargs="+")
    options = parser.parse_args()
    for model_type in options.types:
        for config, count, why in cases(model_type, options.draws):
            sys.stdout.write(json.dumps({"config": config, "parameters": count, "why": why}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
