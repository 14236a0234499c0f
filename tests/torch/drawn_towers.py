"""Configs of every model type with a vision tower, with the class's own sizes and with others.

It imports nothing of Meshwright. A line of standard output is one config with the parameters that
transformers builds from it on torch's meta device, tied ones counted once:

    .ci/environment torch python -m tests.torch.drawn_towers --draws 3 qwen3_vl internvl ...
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import transformers
from transformers import AutoModelForImageTextToText
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.torch.drawn_configs import on_meta

Config = dict[str, Any]
LAYERS = 4  # of the language model
# Towers that the class builds only where its config has them.
OPTIONAL = dict.fromkeys(("gemma4", "gemma4_unified"), ("vision_config", "audio_config"))
OF_EACH_LAYER = ("layer_types", "no_rope_layers", "mlp_layer_types")
# Sizes of a tower that are drawn anew, and what from.
SIZES: dict[str, tuple[Any, ...]] = {
    "depth": (3, 30), "num_hidden_layers": (3, 8), "hidden_size": (768, 1536), "embed_dim": (768,),
    "intermediate_size": (1000, 3072), "patch_size": (14, 16), "spatial_merge_size": (1, 2),
    "num_position_embeddings": (1024,), "deepstack_visual_indexes": ([1], [1, 2]),
    "temporal_patch_size": (1, 2),
    "image_size": (336, 448), "vision_use_head": (False,), "use_qk_norm": (True,),
    "attention_bias": (True,),
    "norm_type": ("rms_norm",), "use_mask_token": (True,), "use_mean_pooling": (False,), "mlp_ratio": (2,),
    "output_proj_dims": (512,),
    "projector_input_dim": (2048,), "projector_output_dim": (2048,), "vision_output_dim": (2048,),
    "use_absolute_position_embeddings": (False,), "window_size": (56,), "in_channels": (1,),
}  # fmt: skip
# Without these a class's own defaults make no model that runs.
NEEDED: dict[str, Config] = {
    "aya_vision": {"num_attention_heads": 16},
    "gemma3": {"image_size": 896, "patch_size": 14},
    "shieldgemma2": {"image_size": 896, "patch_size": 14},
    "qwen2_vl": {},
    "gemma4": {"hidden_size": 768},  # twelve heads of 64
    "step3p7": {"mlp_ratio": 2.0, "intermediate_size": 3072},
}


def whole(model_type: str) -> Config:
    """The class's own config with few layers in its language model, which reads what the tower yields."""
    parts: dict[str, Config] = {name: {} for name in OPTIONAL.get(model_type, ())}
    config: Config = json.loads(CONFIG_MAPPING[model_type](**parts).to_json_string(use_diff=False))
    text, vision = config["text_config"], config["vision_config"]
    text["num_hidden_layers"] = LAYERS
    for key in OF_EACH_LAYER:
        if isinstance(text.get(key), list):
            text[key] = text[key][:LAYERS]
    if isinstance(text.get("per_layer_config"), dict):
        each = text["per_layer_config"]
        text["per_layer_config"] = {key: own for key, own in each.items() if int(key) < LAYERS}
        if not text["per_layer_config"]:  # global layers, of which the class makes the last one
            del text["per_layer_config"]
    for key in ("moe_layers", "full_attn_idxs"):
        if isinstance(text.get(key), list):
            text[key] = [layer for layer in text[key] if layer < LAYERS]
    output = "hidden_size" if model_type == "qwen2_vl" else "out_hidden_size"
    if output in vision:
        vision[output] = text["hidden_size"]
    vision |= NEEDED.get(model_type, {})
    if model_type == "ovis2":
        config |= {key: text[key] for key in ("hidden_size", "vocab_size")}
    return {**config, "model_type": model_type}


def drawn(model_type: str, rng: random.Random) -> Config:
    """The same with three sizes of the tower drawn anew, and sometimes with the other kind of head."""
    config = whole(model_type)
    vision = config["vision_config"]
    kept = {"hidden_size"} if model_type == "qwen2_vl" else set(NEEDED.get(model_type, {}))
    drawable = sorted(set(vision) & set(SIZES) - kept)
    for key in rng.sample(drawable, k=min(3, len(drawable))):
        vision[key] = rng.choice(SIZES[key])
    if "tie_word_embeddings" in config and rng.random() < 0.4:
        config["tie_word_embeddings"] = not config["tie_word_embeddings"]
    return config


def built(config: Config) -> Any:  # noqa: ANN401 - a model of any class
    """The model that transformers builds, on torch's meta device."""
    own = copy.deepcopy({key: value for key, value in config.items() if key != "model_type"})
    made = CONFIG_MAPPING[config["model_type"]](**own)
    return on_meta(lambda: AutoModelForImageTextToText.from_config(made))


def parameters(config: Config) -> int:
    """The parameters of the model that transformers builds."""
    return sum(one.numel() for one in built(config).parameters())


def cases(model_type: str, draws: int) -> Iterator[tuple[Config, int]]:
    """The class's own sizes, and others drawn from them."""
    for number in range(draws + 1):
        config = drawn(model_type, random.Random(f"{model_type} {number}")) if number else whole(model_type)
        yield config, parameters(config)


def small(model_type: str) -> Config:
    """A config whose tower of 256 patches a CPU runs."""
    config = whole(model_type)
    text, vision = config["text_config"], config["vision_config"]
    text |= {
        "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "moe_layers": [],
    }  # fmt: skip
    text |= dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    text |= {key: text[key][:2] for key in OF_EACH_LAYER if isinstance(text.get(key), list)}
    sizes = {
        "depth": 4, "num_hidden_layers": 4, "num_heads": 4, "num_attention_heads": 4, "hidden_size": 64,
        "embed_dim": 64, "intermediate_size": 112, "out_hidden_size": 64, "image_size": 224,
        "fullatt_block_indexes": [3], "deepstack_visual_indexes": [1, 2], "vision_use_head": False,
        "projector_input_dim": 48, "projector_output_dim": 48, "vision_output_dim": 48, "head_dim": 16,
    }  # fmt: skip
    vision |= {key: value for key, value in sizes.items() if key in vision}
    if model_type == "llama4":
        vision["intermediate_size"] = 256  # of four patches
        del text["moe_layers"]
    if "mm_tokens_per_image" in config:
        config["mm_tokens_per_image"] = 16
    if "image_grid_pinpoints" in config:
        config["image_grid_pinpoints"] = [[224, 224]]
    if model_type == "vipllava":
        config["vision_feature_layer"] = [-2, 1]
    if isinstance(text.get("full_attn_idxs"), list):
        text["full_attn_idxs"] = [1]
    if model_type in ("idefics3", "smolvlm", "cohere2_vision", "deepseek_vl"):
        vision["patch_size"] = 14
    if model_type == "paligemma":
        config["projection_dim"] = 64
    inner = {"projector_hidden_size": 64, "alignment_intermediate_size": 128}
    config |= {key: size for key, size in inner.items() if key in config}
    return config


def main() -> int:
    """Print one JSON object a config."""
    transformers.logging.set_verbosity(50)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("types", nargs="+")
    options = parser.parse_args()
    for model_type in options.types:
        for config, count in cases(model_type, options.draws):
            sys.stdout.write(json.dumps({"config": config, "parameters": count}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
