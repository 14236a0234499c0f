"""The model that the flags of a Megatron-LM command describe, with Megatron-LM's own defaults."""

from __future__ import annotations

import re
from dataclasses import replace

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.model import Activation, MlaSpec, ModelSpec, MoeSpec, RotaryScaling
from meshwright.service.launchers.reading.given import Given

_NEEDED = ("num-layers", "hidden-size", "num-attention-heads")
_RUNS = re.compile(r"\[([01](?:\s*,\s*[01])*)\](?:\s*\*\s*(\d{1,5}))?")
_EVERY = re.compile(r"\(\[0\]\*(\d{1,4})\+\[1\](?:\*1)?\)\*\d{1,5}(?:\+\[0\]\*\d{1,4})?")
_MAX_LAYERS = 10_000


def model_of(given: Given, name: str) -> ModelSpec:
    """The shape; where the vocabulary is the tokenizer's, it must be stated.

    Raises:
        InvalidProblemError: a size is missing, or the shape is none that can be priced.
    """
    for flag in (*_NEEDED, "vocab-size"):
        if not given.has(flag):
            given.fault(flag, "is not given; add it, or name the model with --model")
    given.stop()
    hidden, heads = given.integer("hidden-size", 0), given.integer("num-attention-heads", 0)
    ffn = given.integer("ffn-hidden-size", _usual_ffn(hidden, gated=given.has("swiglu")))
    mla = _mla(given)
    head_dim = (
        mla.qk_nope_head_dim + mla.qk_rope_head_dim
        if mla
        else given.integer("kv-channels", hidden // max(heads, 1))
    )
    learned = given.word("position-embedding-type", "learned_absolute") == "learned_absolute"
    biased = not given.has("disable-bias-linear")
    model = ModelSpec(
        name=name,
        num_layers=given.integer("num-layers", 0),
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_kv_heads=_kv_heads(given, heads),
        head_dim=head_dim,
        vocab_size=given.integer("vocab-size", 0),
        gated_mlp=given.has("swiglu") or given.has("quick-geglu"),
        activation=_activation(given),
        activation_clamp=_number(given, "activation-func-clamp-value"),
        gate_offset=_number(given, "glu-linear-offset") or 0.0,
        tied_embeddings=not given.has("untie-embeddings-and-output-weights"),
        mla=mla,
        num_mtp_layers=given.integer("mtp-num-layers", 0),
        sliding_window=_window(given),
        sliding_window_every=given.integer("window-attn-skip-freq", 1),
        learned_position_embeddings=learned,
        max_position_embeddings=given.optional("max-position-embeddings"),
        rotary_base=None if learned else given.optional("rotary-base"),
        no_rotary_every=0 if learned else _no_rotary_every(given),
        rotary_fraction=1.0 if learned else _number(given, "rotary-percent") or 1.0,
        rotary_scaling=None if learned else _rotary_scaling(given, mla),
        normalization="rmsnorm" if given.word("normalization", "LayerNorm") == "RMSNorm" else "layernorm",
        norm_epsilon=_number(given, "norm-epsilon"),
        zero_centered_norm=given.has("apply-layernorm-1p"),
        query_key_norm="per_head" if given.has("qk-layernorm") and not mla else "none",
        attention_sinks=given.word("softmax-type", "vanilla") == "learnable",
        qkv_bias=(biased or given.has("add-qkv-bias")) and not mla,
        attention_output_bias=biased,
        mlp_bias=biased,
    )
    return _with_experts(given, model, ffn)


def _usual_ffn(hidden: int, *, gated: bool) -> int:
    """Megatron-LM's default width: 4 h, or with SwiGLU two thirds of it in multiples of 64."""
    return int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden


def _kv_heads(given: Given, heads: int) -> int:
    """Groups of queries; without the switch the number of groups is ignored."""
    if given.has("group-query-attention"):
        return given.integer("num-query-groups", 1)
    if given.has("num-query-groups") and given.integer("num-query-groups", heads) != heads:
        given.note("--num-query-groups does nothing without --group-query-attention")
    return heads


def _mla(given: Given) -> MlaSpec | None:
    """Latent attention with the defaults of MLATransformerConfig."""
    if not given.has("multi-latent-attention"):
        return None
    return MlaSpec(
        q_lora_rank=given.integer("q-lora-rank", 0),
        kv_lora_rank=given.integer("kv-lora-rank", 32),
        qk_nope_head_dim=given.integer("qk-head-dim", 128),
        qk_rope_head_dim=given.integer("qk-pos-emb-head-dim", 64),
        v_head_dim=given.integer("v-head-dim", 128),
        norms=given.has("qk-layernorm"),
    )


def _number(given: Given, name: str) -> float | None:
    """A number, None where the flag is not given."""
    return given.number(name, 0.0) if given.has(name) else None


def _activation(given: Given) -> Activation | None:
    """The MLP's activation where it is not the usual one."""
    if given.has("quick-geglu"):
        return "quick_gelu"
    return "squared_relu" if given.has("squared-relu") else None


def _no_rotary_every(given: Given) -> int:
    """Every n-th layer has no positions: ``4`` or ``([0]*3+[1])*12``; 0 where none or another pattern."""
    text = given.word("no-rope-freq").replace(" ", "")
    found = _EVERY.fullmatch(text)
    return int(found[1]) + 1 if found else int(text) if text.isascii() and text[:5].isdecimal() else 0


def _rotary_scaling(given: Given, mla: MlaSpec | None) -> RotaryScaling | None:
    """How the flags stretch rotary frequencies; latent attention scales by YaRN unless told otherwise."""
    if mla is not None:
        if given.word("rope-type", "yarn") != "yarn":
            return None
        return RotaryScaling(
            kind="yarn",
            factor=_number(given, "rotary-scaling-factor") or 1.0,
            original_max_position_embeddings=4096,
            mscale=_number(given, "mscale"),
            mscale_all_dim=_number(given, "mscale-all-dim"),
        )
    if given.has("use-rope-scaling"):
        factor = _number(given, "rope-scaling-factor") or 8.0
        return RotaryScaling(kind="llama3", factor=factor, original_max_position_embeddings=8192)
    factor = _number(given, "rotary-seq-len-interpolation-factor") or 1.0
    return RotaryScaling(kind="linear", factor=factor) if factor != 1 else None


def _window(given: Given) -> int | None:
    """``(127, 0)`` neighbours are a window of 128 tokens."""
    if not given.has("window-size"):
        return None
    left = given.word("window-size").strip("()").partition(",")[0].strip()
    if not (left.isascii() and left.isdecimal() and len(left) < 10):  # noqa: PLR2004 - digits of a size
        given.fault("window-size", "is not LEFT,RIGHT", allowed="two whole numbers")
        given.stop()
    return int(left) + 1


def _with_experts(given: Given, model: ModelSpec, ffn: int) -> ModelSpec:
    """The model with its experts, where it has any.

    Raises:
        InvalidProblemError: the layers with experts follow no pattern that can be priced.
    """
    if not given.has("num-experts"):
        return model
    width = given.integer("moe-ffn-hidden-size", ffn)
    shared = given.integer("moe-shared-expert-intermediate-size", 0)
    pattern = _pattern(given, model.num_layers)
    dense = pattern.index(1) if 1 in pattern else len(pattern)
    later = [layer - dense for layer, kind in enumerate(pattern) if kind and layer > dense]
    moe = MoeSpec(
        num_experts=given.integer("num-experts", 1),
        top_k=given.integer("moe-router-topk", 2),
        ffn_hidden_size=width,
        num_shared_experts=max(round(shared / max(width, 1)), 1) if shared else 0,
        shared_ffn_hidden_size=shared,
        num_dense_layers=dense,
        frequency=later[0] if later else max(model.num_layers, 1),
        router_score="sigmoid"
        if given.word("moe-router-score-function", "softmax") == "sigmoid"
        else "softmax",
        normalized_top_k=not given.has("moe-router-pre-softmax"),
        router_groups=given.integer("moe-router-num-groups", 0),
        router_top_groups=given.integer("moe-router-group-topk", 0),
        router_scaling=_number(given, "moe-router-topk-scaling-factor") or 1.0,
        router_bias=model.mlp_bias,
        selection_bias=given.has("moe-router-enable-expert-bias"),
        shared_expert_gate=given.has("moe-shared-expert-gate") and shared > 0,
    )
    found = replace(model, moe=moe)
    if [int(kind == "moe") for kind in found.layer_kinds()] != pattern:
        raise InvalidProblemError.of("--moe-layer-freq", "layers with experts must come at equal distances")
    return found


def _pattern(given: Given, num_layers: int) -> list[int]:
    """1 for each layer with experts: ``([0]*3+[1]*58)``, or every n-th layer beginning with the first."""
    text = given.word("moe-layer-freq", "1").strip()
    if text.isascii() and text.isdecimal() and 1 <= int(text[:6]) <= _MAX_LAYERS:
        return [int(layer % int(text) == 0) for layer in range(num_layers)]
    body = text.strip("()").replace(" ", "")
    pieces = [_RUNS.fullmatch(piece) for piece in body.split("+")]
    layers: list[int] = []
    for piece in pieces:
        if piece is None or len(layers) > _MAX_LAYERS:
            given.fault("moe-layer-freq", "is no pattern such as ([0]*3+[1]*58)")
            given.stop()
        else:
            count = min(int(piece[2] or 1), _MAX_LAYERS)
            layers += [int(kind) for kind in piece[1].split(",")] * count
    if len(layers) != num_layers:
        given.fault("moe-layer-freq", f"names {len(layers)} layers, --num-layers is {num_layers}")
        given.stop()
    return layers
