"""The model that the flags of a Megatron-LM command describe, with Megatron-LM's own defaults."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from meshwright.launchers.reading.base import Include
from meshwright.launchers.reading.given import Given, Value
from meshwright.launchers.reading.known import named_model
from meshwright.launchers.reading.vocabulary import vocabulary_of
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.mixers import MixerSpec
from meshwright.profiles.model import Activation, ModelSpec
from meshwright.profiles.model_parts import (
    MODEL_LIMITS,
    MlaSpec,
    MoeSpec,
    RotaryScaling,
    expert_placement,
    spaced,
)
from meshwright.shell.values import (
    UNKNOWN,
    unknown_fault,
    unknown_in,
)

_NEEDED = ("num-layers", "hidden-size", "num-attention-heads")
_MAX_LAYERS = 10_000
_MAX_TEXT = 100_000
_USUAL_MULTIPLE = 128
_USUAL_TOKENIZER = "GPT2BPETokenizer"  # of pretrain_gpt.py, with a --vocab-file
# Flags that name the tokenizer; the last ones are of forks (Megatron-DeepSpeed, Pai-Megatron-Patch).
_TOKENIZERS = (
    "tokenizer-model", "vocab-file", "tokenizer-name-or-path", "tokenizer-file", "hf-tokenizer-path",
    "tokenizer-hf-path", "load",
)  # fmt: skip


def model_of(given: Given, name: str, include: Include = lambda _: None) -> ModelSpec:
    """Return the model's shape; the tokenizer sets the vocabulary if no flag does.

    Raises:
        InvalidProblemError: a size is missing, or the shape is not priced.
    """
    pattern = pattern_of(given)
    if pattern:
        given.values["--num-layers"] = Value((str(len(pattern)),), given.values[f"--{PATTERN}"].line)
    for flag in _NEEDED:
        if not given.has(flag):
            given.fault(flag, "is not given; add it, or name the model with --model")
    least, most = MODEL_LIMITS["num_layers"]
    if (layers := given.integer("num-layers", 0)) > most:  # before a list of them is made
        given.fault("num-layers", f"{layers} is out of range", allowed=f"{least} to {most}")
    vocabulary = _vocabulary(given, include)
    given.stop()
    hidden, heads = given.integer("hidden-size", 0), given.integer("num-attention-heads", 0)
    ffn = given.integer("ffn-hidden-size", _usual_ffn(hidden, gated=given.has("swiglu")))
    mla = _mla(given)
    channels = hidden // max(heads, 1)
    head_dim = (
        mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else given.integer("kv-channels", channels)
    )
    if given.integer("kv-channels", head_dim) != head_dim:
        given.note("--kv-channels does nothing with --multi-latent-attention")
    positions = given.word("position-embedding-type", "learned_absolute")
    learned = positions == "learned_absolute"
    if positions not in ("learned_absolute", "rope", "yarn") and not (positions == "none" and pattern):
        given.note(f"--position-embedding-type {positions} is predicted as rope")
    biased = not given.has("disable-bias-linear")
    model = ModelSpec(
        name=name,
        num_layers=given.integer("num-layers", 0),
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_kv_heads=_kv_heads(given, heads),
        head_dim=head_dim,
        vocab_size=vocabulary,
        gated_mlp=given.has("swiglu") or given.has("quick-geglu"),
        activation=_activation(given),
        activation_clamp=_number(given, "activation-func-clamp-value"),
        gate_offset=_number(given, "glu-linear-offset") or 0.0,
        tied_embeddings=not given.has("untie-embeddings-and-output-weights"),
        mla=mla,
        mixer=_mixer(given),
        attention_gate="per_element" if given.has("attention-output-gate") else "none",
        gate_in_queries=given.has("attention-output-gate"),
        num_mtp_layers=given.integer("mtp-num-layers", 0),
        sliding_window=_window(given),
        **_global_layers(given),
        learned_position_embeddings=learned,
        max_position_embeddings=given.optional("max-position-embeddings"),
        rotary_base=None if learned else given.optional("rotary-base"),
        **_no_rotary(given, positions),
        rotary_fraction=1.0 if learned else _number(given, "rotary-percent") or 1.0,
        rotary_scaling=None if learned else _rotary_scaling(given, mla),
        normalization="rmsnorm"
        if given.word("normalization", "LayerNorm").lower() == "rmsnorm"
        else "layernorm",
        norm_epsilon=_number(given, "norm-epsilon"),
        zero_centered_norm=given.has("apply-layernorm-1p"),
        query_key_norm="per_head" if given.has("qk-layernorm") and not mla else "none",
        attention_sinks=given.word("softmax-type", "vanilla") == "learnable",
        qkv_bias=(biased or given.has("add-qkv-bias")) and not mla,
        attention_output_bias=biased,
        mlp_bias=biased,
    )
    model = _with_experts(given, model, ffn, pattern)
    state_space = _state_space(given) if "M" in pattern else None
    return replace(model, layer_pattern=pattern, mixer=state_space) if pattern else model


PATTERN = "hybrid-layer-pattern"
_SYMBOLS = "M*-E"  # GDN, latent and sparse attention of such patterns are not planned


def pattern_of(given: Given) -> str:
    """Return the layers of a pattern, without the marks between stages; empty without one."""
    text = given.word(PATTERN)
    main, _, prediction = text.partition("/")
    if prediction:
        given.fault(PATTERN, "prediction layers behind a pattern are not supported", allowed="no / in it")
    letters = main.replace("|", "")
    wrong = next((letter for letter in letters if letter not in _SYMBOLS), None)
    if wrong is not None or (text and not letters):
        given.fault(
            PATTERN,
            f"has {wrong!r}, which is not a layer that is planned" if wrong else "names no layer",
            allowed="M (Mamba 2), * (attention), - (MLP), E (experts), |",
        )
    stated = given.optional("num-layers")
    if letters and stated not in (None, len(letters)):
        given.note(f"--num-layers {stated} does nothing: --{PATTERN} has {len(letters)} layers")
    given.stop()
    return letters


def _state_space(given: Given) -> MixerSpec:
    """Return Megatron-Core's Mamba 2 mixer, with its defaults where they are not given."""
    width = given.integer("mamba-head-dim", 64)
    heads = given.integer("mamba-num-heads", 2 * given.integer("hidden-size", 0) // max(width, 1))
    return MixerSpec(
        kind="mamba2",
        num_heads=heads,
        num_key_heads=given.integer("mamba-num-groups", 8),
        key_head_dim=given.integer("mamba-state-dim", 128),
        value_head_dim=width,
        chunk=128,  # ssm/mamba_mixer.py: chunk_size, which no flag sets
        convolution_bias=True,
    )


def _vocabulary(given: Given, include: Include) -> int:
    """Return the model's tokens, stated or the tokenizer's, with the command's padding.

    ``vocab_size_with_padding`` of Megatron-LM: up to a multiple of --make-vocab-size-divisible-by times the
    tensor-parallel size. Padding to 128 is left to the cost model.
    """
    size, rows = given.optional("vocab-size"), given.optional("padded-vocab-size")
    size = rows if size is None else size
    if size is None and given.has("extra-vocab-size"):
        return _extended_vocabulary(given)
    if size is None:
        kind = given.other("tokenizer-type")
        names = tuple(given.partly(name) for name in _TOKENIZERS)
        found = vocabulary_of(
            kind or (_USUAL_TOKENIZER if "--vocab-file" in given.others else ""), names, include
        )
        if found is None:
            for name in _TOKENIZERS:
                unknown = unknown_in(given.partly(name))
                if unknown is not None:
                    given.faults.append(unknown_fault(f"--{name}", unknown, given.others[f"--{name}"].line))
            called = f"the tokenizer {kind or names[0] or 'of the command'}"[:60].replace(UNKNOWN, "$")
            given.fault(
                "vocab-size",
                f"is not given, and {called} is not one with a known size",
                allowed="--set vocab_size=…, --model, or tokenizer.json next to the file",
            )
            return 0
        size, whose = found
        given.note(f"the vocabulary is {size}, the tokenizer's ({whose})")
        for name in _TOKENIZERS:
            if UNKNOWN in given.partly(name):
                given.note(
                    f"line {given.others[f'--{name}'].line}: --{name} is not known: {whose} is taken"
                )
    multiple = given.integer("make-vocab-size-divisible-by", _USUAL_MULTIPLE)
    unit = multiple * given.integer("tensor-model-parallel-size", 1)
    padded = -(-size // unit) * unit
    if multiple == _USUAL_MULTIPLE and rows in (None, padded):
        return size
    if rows not in (None, padded):
        given.note(
            f"--vocab-size and --make-vocab-size-divisible-by do nothing next to --padded-vocab-size {rows}"
        )
    return rows or padded


def _extended_vocabulary(given: Given) -> int:
    """Return the tokens of the tokenizer and those that --extra-vocab-size adds.

    Pai-Megatron-Patch's megatron_patch/tokenizer, which pads no further. Where the tokenizer is not known,
    the model that --load names has as many.
    """
    extra, own = given.integer("extra-vocab-size", 0), _PAI_TOKENS.get(given.other("patch-tokenizer-type"))
    if own is not None:
        given.note(f"the vocabulary size is {own + extra}: {own} in the tokenizer and {extra} extra")
        return own + extra
    for part in reversed(given.partly("load").rstrip("/").split("/")):
        model = named_model(part) if part else None
        if model is not None:
            given.note(f"the vocabulary size is {model.vocab_size}, that of {model.title} in --load")
            return model.vocab_size
    given.fault(
        "extra-vocab-size",
        "is added to the tokenizer's own vocabulary, and its size is not known",
        allowed="--set vocab_size=…, or --model",
    )
    return 0


_PAI_TOKENS = {
    "Qwen2Tokenizer": 151643, "Qwen3Tokenizer": 151643, "LLama2Tokenizer": 32000, "MixtralTokenizer": 32000,
    "LLama3Tokenizer": 128000,
}  # fmt: skip


def _usual_ffn(hidden: int, *, gated: bool) -> int:
    """Return Megatron-LM's default MLP width: 4 h, or with SwiGLU two thirds of it in multiples of 64."""
    return int(4 * hidden * 2 / 3) // 64 * 64 if gated else 4 * hidden


def _kv_heads(given: Given, heads: int) -> int:
    """Return the query groups; without the switch their number is ignored."""
    if given.has("group-query-attention"):
        return given.integer("num-query-groups", 1)
    if given.has("num-query-groups") and given.integer("num-query-groups", heads) != heads:
        given.note("--num-query-groups does nothing without --group-query-attention")
    return heads


def _mla(given: Given) -> MlaSpec | None:
    if not given.has("multi-latent-attention"):
        return None
    sizes = given.fields(
        "model.mla", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
    )
    return MlaSpec(**{"q_lora_rank": 0, **sizes}, norms=given.has("qk-layernorm"))


def _mixer(given: Given) -> MixerSpec | None:
    """Return the mixer of layers that the frequency marks: all but every n-th (``4``), or ones in a list.

    The sizes are Megatron-Core's where they are not given (``TransformerConfig``).
    """
    variant = "experimental-attention-variant"
    if not given.has(variant):
        return None
    if given.word(variant) != "gated_delta_net":
        given.fault(variant, "other kinds of attention are not supported", allowed="gated_delta_net")
        given.stop()
    name, num_layers = "linear-attention-freq", given.integer("num-layers", 0)
    mixing = _layers_of(given, name, lambda every: lambda layer: (layer + 1) % every != 0)
    if not mixing:
        given.fault(name, "leaves no layer without full attention", allowed="2 and more")
        given.stop()
    every, listed = spaced([layer for layer in range(num_layers) if layer not in mixing], num_layers)
    return MixerSpec(
        kind="gated_delta_net",
        num_heads=given.integer("linear-num-value-heads", 32),
        num_key_heads=given.integer("linear-num-key-heads", 16),
        key_head_dim=given.integer("linear-key-head-dim", 128),
        value_head_dim=given.integer("linear-value-head-dim", 128),
        convolution=given.integer("linear-conv-kernel-dim", 4),
        attention_every=every,
        attention_layers=listed,
    )


def _number(given: Given, name: str) -> float | None:
    return given.number(name, 0.0) if given.has(name) else None


def _activation(given: Given) -> Activation | None:
    # transformer_config.py: the offset goes with quick_gelu alone; files of Bridge name no activation
    if given.has("quick-geglu") or _number(given, "glu-linear-offset"):
        return "quick_gelu"
    return "squared_relu" if given.has("squared-relu") else None


def _no_rotary(given: Given, positions: str) -> dict[str, Any]:
    """Return the layers without positions: every n-th (``4``), or a list (``([0]*3+[1])*12``)."""
    if positions == "learned_absolute":
        return {}
    if positions == "none" and given.has(PATTERN):
        return {"no_rotary_every": 1}
    layers = _layers_of(given, "no-rope-freq", lambda every: lambda layer: (layer + 1) % every == 0)
    every, listed = spaced(layers, given.integer("num-layers", 0))
    return {"no_rotary_every": every, "no_rotary_layers": listed}


def _global_layers(given: Given) -> dict[str, Any]:
    """Return the layers that attend to all tokens: every n-th (``4``), or zeros in a list."""
    num_layers = given.integer("num-layers", 0)
    local = _layers_of(given, "window-attn-skip-freq", lambda every: lambda layer: (layer + 1) % every != 0)
    if not given.has("window-size") or not local:
        return {}
    every, listed = spaced([layer for layer in range(num_layers) if layer not in local], num_layers)
    return {"global_layers": listed} if listed else {"sliding_window_every": every or 1}


def _layers_of(
    given: Given, name: str, rule: Callable[[int], Callable[[int], bool]], default: str = "0"
) -> list[int]:
    """Return the layers that a flag marks: by a rule of every n-th, or by a list of 0 and 1 per layer."""
    text, num_layers = given.word(name, default).strip(), given.integer("num-layers", 0)
    if text.isascii() and text.isdecimal():
        every = int(text[:6])
        return [layer for layer in range(num_layers) if every and rule(every)(layer)]
    marks = _marks(text)
    if marks is None:
        given.fault(
            name, "is not a list of layers", allowed="a number, or 0 or 1 for each layer: ([0]*3+[1]*58)"
        )
        given.stop()
    elif len(marks) != num_layers:
        given.fault(name, f"names {len(marks)} layers, --num-layers is {num_layers}")
        given.stop()
    return [layer for layer, mark in enumerate(marks or []) if mark]


def _marks(text: str) -> list[int] | None:
    """Return the 0 and 1 of an expression of lists, sums and multiples; None for anything else."""
    try:
        return _evaluated(ast.parse(text[:_MAX_TEXT], mode="eval").body)
    except (SyntaxError, ValueError, RecursionError):
        return None


def _evaluated(node: ast.expr) -> list[int]:
    """Return the value of one part of such an expression.

    Raises:
        ValueError: it is not such an expression, or has too many layers.
    """
    if isinstance(node, ast.List):
        marks = [part.value for part in node.elts if isinstance(part, ast.Constant)]
        if len(marks) == len(node.elts) and all(mark in (0, 1) for mark in marks):
            return [int(bool(mark)) for mark in marks]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _evaluated(node.left) + _evaluated(node.right)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        times = node.right.value if isinstance(node.right, ast.Constant) else None
        one = _evaluated(node.left)
        if type(times) is int and 0 <= times * len(one) <= _MAX_LAYERS:
            return one * times
    raise ValueError("no list of layers")


def _rotary_scaling(given: Given, mla: MlaSpec | None) -> RotaryScaling | None:
    """Return the scaling of rotary frequencies; YaRN is the default with latent attention."""
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
    if given.word("position-embedding-type") == "yarn":
        return _yarn(given)
    if given.has("use-rope-scaling"):
        factor = _number(given, "rope-scaling-factor") or 8.0
        return RotaryScaling(kind="llama3", factor=factor, original_max_position_embeddings=8192)
    factor = _number(given, "rotary-seq-len-interpolation-factor") or 1.0
    return RotaryScaling(kind="linear", factor=factor) if factor != 1 else None


def _yarn(given: Given) -> RotaryScaling:
    """Return YaRN of plain attention, with Megatron-LM's defaults of ``_apply_yarn_config_from_args``."""
    mscale, of_all = _number(given, "mscale"), _number(given, "mscale-all-dim")
    usual = mscale in (None, 1.0) and not of_all  # YaRN's default
    return RotaryScaling(
        kind="yarn",
        factor=_number(given, "rotary-scaling-factor") or 1.0,
        original_max_position_embeddings=given.integer("yarn-original-max-position-embeddings", 4096),
        beta_fast=_number(given, "yarn-beta-fast") or 32.0,
        beta_slow=_number(given, "yarn-beta-slow") or 1.0,
        mscale=None if usual else mscale,
        mscale_all_dim=None if usual else of_all,
        truncate=not given.has("no-yarn-correction-range-round-to-int"),
    )


def _window(given: Given) -> int | None:
    """Return the window in tokens; ``(127, 0)`` neighbours are a window of 128."""
    if not given.has("window-size"):
        return None
    left = given.word("window-size").strip("()").partition(",")[0].strip()
    if not (left.isascii() and left.isdecimal() and len(left) < 10):  # noqa: PLR2004 - digits of a size
        given.fault("window-size", "is not LEFT,RIGHT", allowed="two whole numbers")
        given.stop()
    return int(left) + 1


def _with_experts(given: Given, model: ModelSpec, ffn: int, pattern: str) -> ModelSpec:
    if not given.has("num-experts") or (pattern and "E" not in pattern):
        return model
    width = given.integer("moe-ffn-hidden-size", ffn)
    shared = given.integer("moe-shared-expert-intermediate-size", 0)
    layers = _layers_of(given, "moe-layer-freq", lambda every: lambda layer: layer % every == 0, "1")
    if pattern:  # which states the layers with experts
        layers = list(range(model.num_layers))
    if not layers:
        raise InvalidProblemError.of("--moe-layer-freq", "leaves no layer for experts")
    top_k, sigmoid = (
        given.integer("moe-router-topk", 2),
        given.word("moe-router-score-function") == "sigmoid",
    )
    moe = MoeSpec(
        **given.fields("model.moe", *_OF_ROUTER),
        top_k=top_k,
        ffn_hidden_size=width,
        num_shared_experts=max(round(shared / max(width, 1)), 1) if shared else 0,
        shared_ffn_hidden_size=shared,
        **expert_placement(layers, model.num_layers),
        router_score="sigmoid" if sigmoid else "softmax",
        normalized_top_k=_normalizes(given, top_k, sigmoid=sigmoid),
        router_bias=model.mlp_bias and "--deepspeed" not in given.others,  # DeepSpeed's gate has none
        **_balance(given),
        shared_expert_gate=given.has("moe-shared-expert-gate") and shared > 0,
    )
    return replace(model, moe=moe)


_OF_ROUTER = ("num_experts", "router_groups", "router_top_groups", "router_scaling", "selection_bias")


def _normalizes(given: Given, top_k: int, *, sigmoid: bool) -> bool:
    """Return whether the weights of the chosen experts sum to 1.

    Sigmoid scores of several experts always do, with any ``--moe-router-pre-softmax``; the score of a
    single one stays (megatron-core 0.16.1 to 0.19.2, moe_utils.py, ``topk_routing_with_score_function``).
    """
    early = given.has("moe-router-pre-softmax")
    if sigmoid and early:
        given.note(
            "--moe-router-pre-softmax changes nothing: sigmoid scores are normalised after the choice"
        )
    return top_k > 1 if sigmoid else not early


def _balance(given: Given) -> dict[str, Any]:
    """Return the loss that balances experts if a flag sets its weight; the first of several kinds."""
    kind = given.other("moe-router-load-balancing-type") or "aux_loss"
    try:
        weight = float(given.other("moe-aux-loss-coeff") or 0)
    except ValueError:  # an undefined variable
        return {}
    if not kind.endswith("aux_loss") or not 0 < weight <= MoeSpec.LIMITS["balance_coefficient"][1]:
        return {}
    return {"balance_coefficient": weight, "balanced_by_sequence": kind == "seq_aux_loss"}
