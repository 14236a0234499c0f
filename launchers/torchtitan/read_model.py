"""The model of a torchtitan configuration: a flavor of its own, one next to the file, or a supplied one.

Flavors: torchtitan 0.2.2 and 0.3.0, models/llama3, models/llama4, models/qwen3 and models/deepseek_v3
``__init__.py``.
"""

from __future__ import annotations

from meshwright.launchers.reading.base import refused
from meshwright.launchers.reading.fields import Fields
from meshwright.launchers.reading.known import Known
from meshwright.launchers.reading.python_values import SHAPE, flavor_values
from meshwright.launchers.torchtitan.export import FLAVOR_FILE
from meshwright.profiles.library import find_model
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_shapes import model_from_shape

# torchtitan 0.2.2 and 0.3.0, models/llama3/__init__.py.
_Shape = dict[str, object]
_FLAVORS = {
    ("llama3", "1B"): "llama-3.2-1b", ("llama3", "3B"): "llama-3.2-3b", ("llama3", "8B"): "llama-3.1-8b",
    ("llama3", "70B"): "llama-3.1-70b", ("llama3", "405B"): "llama-3.1-405b",
    ("gpt_oss", "20b"): "gpt-oss-20b", ("gpt_oss", "120b"): "gpt-oss-120b",
    ("kimi_k2_7", "moonlight-16B-A3B"): "moonlight-16b-a3b",
}  # fmt: skip


def _qwen3(hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, *, tied: bool = False) -> _Shape:
    return {
        "hidden_size": hidden, "num_layers": layers, "num_attention_heads": heads, "num_kv_heads": kv_heads,
        "ffn_hidden_size": ffn, "head_dim": 128, "vocab_size": 151_936, "rotary_base": 1_000_000,
        "query_key_norm": "per_head", "norm_epsilon": 1e-6, "tied_embeddings": tied,
        "max_position_embeddings": 40_960,
    }  # fmt: skip


def _llama2(hidden: int, layers: int, heads: int, ffn: int) -> _Shape:
    return {
        "hidden_size": hidden, "num_layers": layers, "num_attention_heads": heads, "ffn_hidden_size": ffn,
        "vocab_size": 32_000, "rotary_base": 10_000, "norm_epsilon": 1e-5, "max_position_embeddings": 4096,
    }  # fmt: skip


def _deepseek(sizes: tuple[int, int, int, int], moe: _Shape, *, q_rank: int, vocabulary: int) -> _Shape:
    """Return a DeepSeek of torchtitan 0.2.2, models/deepseek_v3: hidden, layers, heads, width."""
    hidden, layers, heads, ffn = sizes
    return {
        "hidden_size": hidden, "num_layers": layers, "num_attention_heads": heads, "ffn_hidden_size": ffn,
        "vocab_size": vocabulary, "rotary_base": 10_000, "norm_epsilon": 1e-6, "moe": moe,
        "max_position_embeddings": 16_384,
        "mla": {
            "q_lora_rank": q_rank, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
    }  # fmt: skip


def _llama4(experts: int, *, every: int, positions: int, scaled: bool) -> _Shape:
    """Return a Llama 4 of torchtitan 0.2.2, models/llama4, with experts in every ``every``-th layer.

    Widths by models/llama4/model/model.py: ``int(int(8 dim / 3) * 1.2)`` in multiples of 2048, halved for
    the routed and the shared expert. Every layer attends to the whole sequence.
    """
    llama3 = {"kind": "llama3", "factor": 16.0, "original_max_position_embeddings": 8192}
    return {
        "hidden_size": 5120, "num_layers": 48, "num_attention_heads": 40, "num_kv_heads": 8,
        "ffn_hidden_size": 16_384, "vocab_size": 202_048, "rotary_base": 500_000, "norm_epsilon": 1e-5,
        "max_position_embeddings": positions, "moe": _llama4_experts(experts, 8192, every),
        **({"rotary_scaling": llama3 | {"high_freq_factor": 1.0}} if scaled else {}),
    }  # fmt: skip


def _llama4_experts(experts: int, width: int, every: int) -> _Shape:
    """Return Llama 4's experts and router, by the defaults of models/moe/moe.py, class MoEArgs."""
    return {
        "num_experts": experts, "top_k": 1, "ffn_hidden_size": width, "num_shared_experts": 1,
        "shared_ffn_hidden_size": width, "num_dense_layers": every - 1, "frequency": every,
        "router_score": "sigmoid", "normalized_top_k": False, "selection_bias": True,
        "weights_on_input": True,
    }  # fmt: skip


_SHAPES: dict[tuple[str, str], _Shape] = {
    ("llama3", "debugmodel"): {
        "hidden_size": 256, "num_layers": 6, "num_attention_heads": 16, "ffn_hidden_size": 768,
        "vocab_size": 2048, "rotary_base": 500_000, "norm_epsilon": 1e-5,
        "max_position_embeddings": 131_072,
    },
    # Before 0.2: models/llama/__init__.py, with the tokenizer of Llama 2.
    ("llama2", "7B"): _llama2(4096, 32, 32, 11_008),
    ("llama2", "13B"): _llama2(5120, 40, 40, 13_824),
    ("llama2", "70B"): _llama2(8192, 80, 64, 28_672) | {"num_kv_heads": 8},
    # Its flavors with _irope mask attention by document, which is not counted here.
    ("llama4", "debugmodel"): {
        "hidden_size": 256, "num_layers": 6, "num_attention_heads": 16, "ffn_hidden_size": 768,
        "vocab_size": 2048, "rotary_base": 500_000, "norm_epsilon": 1e-5,
        "max_position_embeddings": 1_048_576, "moe": _llama4_experts(8, 512, 2),
    },
    ("llama4", "17bx16e"): _llama4(16, every=1, positions=10_485_760, scaled=True),
    ("llama4", "17bx128e"): _llama4(128, every=2, positions=1_048_576, scaled=False),
    ("qwen3", "0.6B"): _qwen3(1024, 28, 16, 8, 3072, tied=True),
    ("qwen3", "1.7B"): _qwen3(2048, 28, 16, 8, 6144, tied=True),
    ("qwen3", "4B"): _qwen3(2560, 36, 32, 8, 9728, tied=True),
    ("qwen3", "8B"): _qwen3(4096, 36, 32, 8, 12_288),
    ("qwen3", "14B"): _qwen3(5120, 40, 40, 8, 17_408),
    ("qwen3", "32B"): _qwen3(5120, 64, 64, 8, 25_600),
    ("qwen3", "30B-A3B"): _qwen3(2048, 48, 32, 4, 6144)
    | {"moe": {"num_experts": 128, "top_k": 8, "ffn_hidden_size": 768}},
    ("qwen3", "235B-A22B"): _qwen3(4096, 94, 64, 4, 12_288)
    | {"moe": {"num_experts": 128, "top_k": 8, "ffn_hidden_size": 1536}},
    ("qwen3", "debugmodel"): _qwen3(256, 8, 16, 8, 3072, tied=True) | {"vocab_size": 2048},
    ("qwen3", "debugmodel_moe"): _qwen3(256, 8, 16, 8, 3072)
    | {"moe": {"num_experts": 64, "top_k": 8, "ffn_hidden_size": 768}, "vocab_size": 2048},
    ("deepseek_v3", "debugmodel"): _deepseek(
        (256, 6, 16, 1024),
        {"num_experts": 8, "top_k": 3, "ffn_hidden_size": 256, "num_shared_experts": 2,
         "shared_ffn_hidden_size": 512, "num_dense_layers": 1, "normalized_top_k": False},
        q_rank=0, vocabulary=2048,
    ),
    ("deepseek_v3", "16B"): _deepseek(
        (2048, 27, 16, 10_944),
        {"num_experts": 64, "top_k": 6, "ffn_hidden_size": 1408, "num_shared_experts": 2,
         "shared_ffn_hidden_size": 2816, "num_dense_layers": 1, "normalized_top_k": False},
        q_rank=0, vocabulary=102_400,
    ),
    ("deepseek_v3", "236B"): _deepseek(
        (5120, 60, 128, 12_288),
        {"num_experts": 160, "top_k": 6, "ffn_hidden_size": 1536, "num_shared_experts": 2,
         "shared_ffn_hidden_size": 3072, "num_dense_layers": 1, "normalized_top_k": False,
         "router_groups": 8, "router_top_groups": 3, "router_scaling": 16.0},
        q_rank=1536, vocabulary=102_400,
    ),
    ("deepseek_v3", "671B"): _deepseek(
        (7168, 61, 128, 18_432),
        {"num_experts": 256, "top_k": 8, "ffn_hidden_size": 2048, "num_shared_experts": 1,
         "shared_ffn_hidden_size": 2048, "num_dense_layers": 3, "router_score": "sigmoid",
         "router_groups": 8, "router_top_groups": 4, "router_scaling": 2.5, "selection_bias": True},
        q_rank=1536, vocabulary=129_280,
    ),
}  # fmt: skip
_NOT_IN_0_3 = ("llama4",)  # commits before it have flavors of the same names with other layers
_NEEDED = {
    "dim": "hidden_size", "n_layers": "num_layers", "n_heads": "num_attention_heads",
    "vocab_size": "vocab_size",
}  # fmt: skip
_MAX_FACTOR = 1_000_000.0


def model_of(fields: Fields, known: Known, *, is_module: bool) -> ModelSpec:
    """Return the model that the configuration trains.

    Args:
        fields: values of the configuration.
        known: values given next to it.
        is_module: whether it is Python of 0.3, not TOML of 0.2.

    Raises:
        InvalidProblemError: no known model is named.
    """
    flavor = fields.word("model.flavor") if fields.has("model.flavor") else ""
    fields.word("model.name")
    if known.overrides.model is not None:
        return known.overrides.model
    if fields.has(f"{SHAPE}dim"):
        return _shape(fields)
    if FLAVOR_FILE in known.source.files:
        text = known.source.files[FLAVOR_FILE]
        return _shape(Fields(FLAVOR_FILE, flavor_values(FLAVOR_FILE, text)))
    name = fields.word("model.name", "llama3")
    if (name, flavor) in _FLAVORS:
        return find_model(_FLAVORS[name, flavor])
    if (name, flavor) in _SHAPES and not (is_module and name in _NOT_IN_0_3):
        return model_from_shape(_SHAPES[name, flavor], name=f"{name}-{flavor}".lower())
    if known.header.model is not None:
        return known.header.model
    known_flavors = [one for one in (*_FLAVORS, *_SHAPES) if not (is_module and one[0] in _NOT_IN_0_3)]
    flavors = [one for model, one in known_flavors if model == name]
    fields.fault(
        "model.flavor" if name in dict((*_FLAVORS, *_SHAPES)) else "model.name",
        f'the sizes of flavor "{flavor[:40]}" of "{name[:40]}" are not known; name the model with --model',
        allowed=", ".join(flavors) or f"models {', '.join(dict.fromkeys(one for one, _ in known_flavors))}",
    )
    fields.stop()
    raise refused("no model is named")


def _shape(fields: Fields) -> ModelSpec:
    for name in _NEEDED:
        fields.expect(SHAPE + name)
    fields.stop()
    raw: dict[str, object] = {wanted: fields.integer(SHAPE + name, 1) for name, wanted in _NEEDED.items()}
    heads = fields.integer(f"{SHAPE}n_heads", 1)
    raw |= {
        "num_kv_heads": fields.integer(f"{SHAPE}n_kv_heads", heads),
        "ffn_hidden_size": fields.optional(f"{SHAPE}ffn_hidden_size") or _ffn(fields),
        "rotary_base": max(int(min(fields.number(f"{SHAPE}rope_theta", 10_000.0), 2e9)), 1),
        "norm_epsilon": fields.number(f"{SHAPE}norm_eps", 1e-5),
        "max_position_embeddings": fields.integer(f"{SHAPE}max_seq_len", 131_072),
        "query_key_norm": "per_head" if fields.has(f"{SHAPE}qk_norm") else "none",
        "tied_embeddings": fields.has(f"{SHAPE}enable_weight_tying"),
    }
    if fields.has(f"{SHAPE}head_dim"):
        raw["head_dim"] = fields.integer(f"{SHAPE}head_dim", 1)
    raw |= _scaling_of_shape(fields) | _latent_of_shape(fields)
    if fields.has(f"{SHAPE}num_experts"):
        raw["moe"] = _experts_of_shape(fields)
    fields.stop()
    return model_from_shape(raw, name="launch file")


def _scaling_of_shape(fields: Fields) -> dict[str, object]:
    """Return the rotary scaling: Llama 3.1's, or YaRN's of latent attention."""
    factor, kind = fields.number(f"{SHAPE}scaling_factor", 1.0), fields.word(f"{SHAPE}scaling", "llama")
    scale = fields.number(f"{SHAPE}mscale", 1.0)
    original = fields.integer(f"{SHAPE}original_seq_len", 4096)
    if factor == 1:
        return {}  # with any other values
    if kind != "yarn":
        known: dict[str, object] = {"kind": "llama3", "original_max_position_embeddings": 8192}
    else:
        known = {"kind": "yarn", "original_max_position_embeddings": original}
        known |= {"mscale": scale, "mscale_all_dim": scale}
    return {"rotary_scaling": known | {"factor": factor}}


_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def _latent_of_shape(fields: Fields) -> dict[str, object]:
    """Return latent attention, and the layers that predict further tokens."""
    if not fields.has(f"{SHAPE}kv_lora_rank"):
        return {}
    return {
        "mla": {name: fields.integer(SHAPE + name, 0, low=0) for name in _LATENT},
        "num_mtp_layers": fields.integer(f"{SHAPE}num_mtp_layers", 0, low=0),
    }


def _experts_of_shape(fields: Fields) -> dict[str, object]:
    """Return experts and their router, by the number of leading layers without experts and of others."""
    dense = fields.raw(f"{SHAPE}dense_layers")
    dense = dense if isinstance(dense, list) else []
    leading = next((at for at, layer in enumerate(dense) if layer != at), len(dense))
    shared = fields.integer(f"{SHAPE}shared_hidden_size", 0, low=0)
    width = fields.integer(f"{SHAPE}expert_hidden_size", 1)
    return {
        "num_experts": fields.integer(f"{SHAPE}num_experts", 1),
        "top_k": fields.integer(f"{SHAPE}top_k", 1),
        "ffn_hidden_size": width,
        "shared_ffn_hidden_size": shared,
        "num_shared_experts": -(-shared // width),
        "num_dense_layers": leading,
        "dense_layers": dense[leading:],
        "router_score": fields.word(f"{SHAPE}router_score", "softmax"),
        "normalized_top_k": fields.flag(f"{SHAPE}router_normalized", default=True),
        "router_groups": fields.optional(f"{SHAPE}router_groups") or 0,
        "router_top_groups": fields.optional(f"{SHAPE}router_top_groups") or 0,
        "router_scaling": fields.number(f"{SHAPE}router_scaling", 1.0),
        "selection_bias": fields.flag(f"{SHAPE}router_bias", default=False),
    }


def _ffn(fields: Fields) -> int:
    """Return the width of the MLP: torchtitan 0.2.2, models/llama3/model/model.py FeedForward.

    ``multiple_of * ceil(int(multiplier * int(8 dim / 3)) / multiple_of)``.
    """
    hidden, unit = fields.integer(f"{SHAPE}dim", 1), fields.integer(f"{SHAPE}multiple_of", 256)
    factor = fields.number(f"{SHAPE}ffn_dim_multiplier", 1.0)
    if not 0 < factor < _MAX_FACTOR:
        fields.fault(f"{SHAPE}ffn_dim_multiplier", "is out of range")
        fields.stop()
    plain = int(factor * int(2 * 4 * hidden / 3))
    return unit * -(-plain // unit)
