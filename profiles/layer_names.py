"""What classes of transformers call the linear layers of a block that Llama has under other names.

peft adapts a layer if its path ends with a target, at a dot (0.21.2, tuners/tuners_utils.py
``_check_target_module_exists``), so a target in another class's words is passed over without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

LayerNames = Literal[
    "llama", "baichuan", "bailing", "chatglm", "ctrl", "dbrx", "exaone", "falcon", "gpt2", "gpt_neo",
    "gpt_neox", "gptj", "granite_hybrid", "hunyuan", "internlm2", "lfm2", "minicpm", "modernbert",
    "mosaic_gpt", "mpt", "nanochat", "opt", "persimmon", "phi", "qwen", "starcoder2", "telechat",
]  # fmt: skip
# Our name: the layer's path in a block, where it differs (``modeling_*.py`` of each type in transformers
# 5.23, or of the repository that ``model_families.yaml`` names).
_NEOX = {
    "qkv_proj": "query_key_value", "o_proj": "dense", "up_proj": "mlp.dense_h_to_4h",
    "down_proj": "mlp.dense_4h_to_h",
}  # fmt: skip
_PATHS: Mapping[LayerNames, Mapping[str, str]] = {
    "baichuan": {"qkv_proj": "self_attn.W_pack"},
    "bailing": {
        "qkv_proj": "attention.query_key_value", "o_proj": "attention.dense",
        "embed_tokens": "word_embeddings",
    },
    "chatglm": {
        "qkv_proj": "query_key_value", "o_proj": "self_attention.dense",
        "gate_up_proj": "mlp.dense_h_to_4h", "down_proj": "mlp.dense_4h_to_h",
        "embed_tokens": "word_embeddings", "lm_head": "output_layer",
    },
    "ctrl": {
        "q_proj": "multi_head_attention.Wq", "k_proj": "multi_head_attention.Wk",
        "v_proj": "multi_head_attention.Wv", "o_proj": "multi_head_attention.dense", "up_proj": "ffn.0",
        "down_proj": "ffn.2", "embed_tokens": "w",
    },
    "dbrx": {
        "qkv_proj": "attn.Wqkv", "o_proj": "attn.out_proj", "router": "ffn.router.layer",
        "embed_tokens": "wte",
    },
    "exaone": {
        "o_proj": "attention.out_proj", "gate_proj": "mlp.c_fc_0", "up_proj": "mlp.c_fc_1",
        "down_proj": "mlp.c_proj", "embed_tokens": "wte",
    },
    "falcon": _NEOX | {"embed_tokens": "word_embeddings"},
    "gpt2": {
        "qkv_proj": "attn.c_attn", "o_proj": "attn.c_proj", "up_proj": "mlp.c_fc",
        "gate_proj": "mlp.c_fc2", "down_proj": "mlp.c_proj", "embed_tokens": "wte",  # BTLM's gate
    },
    "gpt_neo": {
        "o_proj": "attention.out_proj", "up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj",
        "embed_tokens": "wte",
    },
    "gpt_neox": _NEOX | {"embed_tokens": "embed_in", "lm_head": "embed_out"},
    "gptj": {
        "o_proj": "attn.out_proj", "up_proj": "mlp.fc_in", "down_proj": "mlp.fc_out", "embed_tokens": "wte",
    },
    "granite_hybrid": {"gate_up_proj": "shared_mlp.input_linear", "down_proj": "shared_mlp.output_linear"},
    "hunyuan": {"router": "mlp.gate.wg"},
    "internlm2": {
        "qkv_proj": "attention.wqkv", "o_proj": "attention.wo", "gate_proj": "feed_forward.w1",
        "up_proj": "feed_forward.w3", "down_proj": "feed_forward.w2", "embed_tokens": "tok_embeddings",
        "lm_head": "output",
    },
    "lfm2": {
        "o_proj": "self_attn.out_proj", "out_proj": "conv.out_proj", "gate_proj": "feed_forward.w1",
        "up_proj": "feed_forward.w3", "down_proj": "feed_forward.w2",
    },
    "minicpm": {"router": "mlp.gate"},
    "modernbert": {
        "o_proj": "attn.Wo", "gate_up_proj": "mlp.Wi", "down_proj": "mlp.Wo",
        "embed_tokens": "tok_embeddings", "lm_head": "decoder",
    },
    "mosaic_gpt": {
        "qkv_proj": "attn.Wqkv", "o_proj": "attn.out_proj", "up_proj": "mlp.mlp_up",
        "down_proj": "mlp.mlp_down", "embed_tokens": "wte",
    },
    "mpt": {"qkv_proj": "attn.Wqkv", "o_proj": "attn.out_proj", "embed_tokens": "wte"},
    "nanochat": {"up_proj": "mlp.fc1", "down_proj": "mlp.fc2"},
    "opt": {"o_proj": "self_attn.out_proj", "up_proj": "fc1", "down_proj": "fc2"},
    "persimmon": _NEOX,
    "phi": {"o_proj": "self_attn.dense", "up_proj": "mlp.fc1", "down_proj": "mlp.fc2"},
    "qwen": {
        "qkv_proj": "attn.c_attn", "o_proj": "attn.c_proj", "gate_proj": "mlp.w2", "up_proj": "mlp.w1",
        "down_proj": "mlp.c_proj", "embed_tokens": "wte",
    },
    "starcoder2": {"up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj"},
    "telechat": {
        "q_proj": "self_attention.query", "kv_proj": "self_attention.key_value",
        "o_proj": "self_attention.dense", "embed_tokens": "word_embeddings",
    },
}  # fmt: skip


# Words that peft passes over in a class without such a layer: people paste one list for several models.
CLASS_WORDS = frozenset(path.rpartition(".")[2] for paths in _PATHS.values() for path in paths.values())


def class_name(names: LayerNames, layer: str) -> str:
    """Return what a class calls one of our layers: the end of its path that no other layer shares."""
    paths = _PATHS.get(names, {})
    path = paths.get(layer, layer)
    end = path.rpartition(".")[2]
    shared = [other for other in paths.values() if other != path and f".{other}".endswith(f".{end}")]
    return path if shared or end.isdigit() else end  # layers of a model have numbers, too


def layers_called(names: LayerNames, word: str, layers: Iterable[str]) -> tuple[str, ...]:
    """Return which of our layers peft finds under a word in a class: one, several or none."""
    paths = _PATHS.get(names, {})
    return tuple(name for name in layers if f".{paths.get(name, name)}".endswith(f".{word}"))


# Where the layers lie in the classes that do not have them in ``model.layers``.
_LAYERS: Mapping[LayerNames, str] = {
    "dbrx": "transformer.blocks", "falcon": "transformer.h", "gpt2": "transformer.h",
    "gpt_neo": "transformer.h", "gpt_neox": "gpt_neox.layers", "gptj": "transformer.h",
}  # fmt: skip


def layers_path(names: LayerNames, *, in_tower: bool) -> str:
    """Return the path of the list of layers, ``in_tower``: of a language model next to a tower."""
    return _LAYERS.get(names, "model.language_model.layers" if in_tower else "model.layers")


def end_names(names: LayerNames, layers: str) -> dict[str, str]:
    """Return the names of the weights of embedding and head, by ours; ``layers``: their path."""
    parent = layers.rpartition(".")[0]
    return {
        "embed_tokens": f"{parent}.{class_name(names, 'embed_tokens')}.weight",
        "lm_head": f"{class_name(names, 'lm_head')}.weight",
    }
