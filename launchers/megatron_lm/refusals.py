"""Combinations of flags that Megatron-LM's own parser refuses, reported with line and flag.

Sources: ``validate_args`` in megatron/training/arguments.py, ``TransformerConfig.__post_init__``, and
pipeline_parallel_layer_layout.py, Megatron-LM 0.16.1 and 0.19.2.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from meshwright.launchers.flags import plain_name
from meshwright.launchers.megatron_core.names import spelled, table
from meshwright.launchers.reading.given import Given
from meshwright.launchers.rules import near_divisors
from meshwright.profiles.documents import shown
from meshwright.profiles.frameworks import OPTION_NUMBERS
from meshwright.profiles.model import ModelSpec

_LAYOUT = "pipeline-model-parallel-layout"


def refuse_contradictions(given: Given, model: ModelSpec) -> None:
    """Record a fault in ``given`` for each combination that Megatron-LM refuses to start with."""
    for rule in _RULES:
        rule(given, model)


def _refuse_by_rows(given: Given, _: ModelSpec) -> None:
    """Refuse flags, unless at their defaults, without what they require or next to what they exclude."""
    for flag, value in given.values.items():
        row = table()[plain_name(flag)]
        if row.is_usual(value.first):
            continue
        usual = None if row.default is None else str(row.default)
        wrong = [
            (f"needs {one}", f"{one}, or no {flag}")
            for one in map(spelled, row.requires)
            if not _is_given(given, one)
        ] + [
            (f"contradicts {one}: Megatron-LM takes one of them", f"no {flag}")
            for one in map(spelled, row.excludes)
            if _is_given(given, one)
        ]
        for message, allowed in wrong:
            given.fault(flag.removeprefix("--"), message, allowed=usual or allowed, nearest=usual)


def _is_given(given: Given, stated: str) -> bool:
    name, _, word = stated.partition(" ")
    found = {**given.others, **given.values}.get(name)
    return found is not None and word in ("", found.first)


def refuse_words(given: Given) -> None:
    """Record a fault for each word that is not priced, or that Megatron-LM's parser stops at."""
    for flag, value in given.values.items():
        row = table()[plain_name(flag)]
        allowed = row.words or (row.choices if row.role == "priced" else ())
        known = {one.lower() for one in allowed or value.texts}
        for word in (one for one in value.texts if one.lower() not in known):  # forks write rmsnorm
            near = difflib.get_close_matches(word, allowed, n=1)
            message = f'"{shown(word)}" is not supported, or not known'
            nearest = near[0] if near else None
            given.fault(flag.removeprefix("--"), message, allowed=", ".join(allowed), nearest=nearest)


def _note_other_types(given: Given, _: ModelSpec) -> None:
    notes = (
        (
            given.word("transformer-impl") == "local",
            "--transformer-impl local is predicted as Transformer Engine, which has faster kernels",
        ),
        (given.word("main-params-dtype", "fp32") != "fp32", "--main-params-dtype is predicted as fp32"),
        (
            given.word("exp-avg-dtype") == "fp16",
            "--exp-avg-dtype fp16 is predicted as bf16, of as many bytes",
        ),
    )
    given.note(*(text for applies, text in notes if applies))


def _experts(given: Given, model: ModelSpec) -> None:
    name = "expert-model-parallel-size"
    ranks, experts = given.integer(name, 1), model.moe.num_experts if model.moe else 0
    if ranks > 1 and not experts:
        given.fault(name, f"{ranks} for a model without experts", allowed="1")
    else:
        require_divides(given, name, ranks, experts, f"{experts} experts")


def _overlapped_experts(given: Given, model: ModelSpec) -> None:
    """Check overlapped all-to-alls: ``TransformerConfig.__post_init__``, 0.16.1, lines 1852 to 1899."""
    name = "overlap-moe-expert-parallel-comm"
    if not given.has(name):
        return
    stages = given.integer("pipeline-model-parallel-size", 1) > 1
    chunked = any(
        given.has(one)
        for one in (
            "num-virtual-stages-per-pipeline-rank",
            "num-layers-per-virtual-pipeline-stage",
            _LAYOUT,
        )
    )
    full = given.word("recompute-granularity") == "full"
    for broken, needed in (
        (given.integer("expert-model-parallel-size", 1) == 1, "needs --expert-model-parallel-size > 1"),
        (stages and not chunked, "needs virtual stages next to pipeline stages"),
        (full or given.has("recompute-method"), "contradicts full recomputation"),
        (given.word("moe-token-dispatcher-type", "allgather") not in ("alltoall", "flex"),
         "needs --moe-token-dispatcher-type alltoall or flex"),
        (model.num_mtp_layers > 1, f"takes one multi-token-prediction layer, not {model.num_mtp_layers}"),
        (model.num_mtp_layers == 1 and not stages, "needs stages for a multi-token-prediction layer"),
    ):  # fmt: skip
        if broken:
            given.fault(name, needed)


def _splits(given: Given, _: ModelSpec) -> None:
    """Require a layout that begins with the embedding and has one loss."""
    text = given.word(_LAYOUT).replace(" ", "")
    if given.has(_LAYOUT) and (not text.startswith("E") or text.count("L") != 1):
        given.fault(_LAYOUT, "must begin with E and hold exactly one L", allowed="Et*8|t*8L")


def _gathered_in_8_bits(given: Given, _: ModelSpec) -> None:
    """Record a fault for 8-bit weights without a buffer; only MXFP8's fit into the gradients' one.

    Source: megatron/core/distributed/param_and_grad_buffer.py, which maps weights by Transformer Engine's
    ``replace_raw_data``; Megatron-FSDP has buffers of its own.
    """
    name, buffer = "fp8-param-gather", "reuse-grad-buf-for-mxfp8-param-ag"
    if not given.has(name) or given.has("use-megatron-fsdp") or given.has("use-custom-fsdp"):
        return
    if not given.has("use-distributed-optimizer"):
        given.fault(name, "needs --use-distributed-optimizer")
    elif given.has("fp8-format") and given.word("fp8-recipe") == "mxfp8" and not given.has(buffer):
        given.fault(name, f"needs --{buffer} with --fp8-recipe mxfp8: Transformer Engine stops without it")


def _offloaded_share(given: Given, _: ModelSpec) -> None:
    """Require an offloaded share within its range, so that some or all states are on the CPU."""
    name, (low, high) = "optimizer-offload-fraction", OPTION_NUMBERS["optimizer_offload_fraction"]
    share = given.number(name, 1.0)
    if given.has("optimizer-cpu-offload") and not low <= share <= high:
        nearest = f"{min(max(share, low), high):g}"
        given.fault(name, f"{share:g} of the states", allowed=f"{low:g} to {high:g}", nearest=nearest)


def _widths(given: Given, model: ModelSpec) -> None:
    """Require tensor ranks that divide the MLP (Megatron-Core ``ensure_divisibility``, on the cluster)."""
    name, width = "tensor-model-parallel-size", model.ffn_hidden_size
    require_divides(given, name, given.integer(name, 1), width, f"the MLP's width {width}")


def require_divides(given: Given, name: str, by: int, total: int, words: str, *, called: str = "") -> None:
    """Record a fault of a flag if a size does not divide a total; ``called``: the size in words."""
    if total % by:
        given.fault(
            name,
            f"{called}{by} does not divide {words}",
            allowed=f"divisors of {total}",
            nearest=near_divisors(by, total),
        )


def _lengths(given: Given, model: ModelSpec) -> None:
    seq, positions = given.integer("seq-length", 1), given.optional("max-position-embeddings")
    if positions is not None and positions < seq:
        given.fault(
            "max-position-embeddings",
            f"{positions} is less than --seq-length {seq}",
            allowed=f"{seq} and more",
            nearest=seq,
        )
    ring = given.integer("context-parallel-size", 1)
    if ring > 1 and seq % (2 * ring):
        given.fault(
            "context-parallel-size",
            f"2 × {ring} does not divide --seq-length {seq}",
            allowed=f"half of a divisor of {seq}",
        )
    heads = model.num_attention_heads
    if not given.has("kv-channels") and model.hidden_size % heads:
        given.fault("num-attention-heads", f"{heads} do not divide --hidden-size {model.hidden_size}")
    tensor = "tensor-model-parallel-size"
    require_divides(given, tensor, given.integer(tensor, 1), heads, f"{heads} attention heads")


def _documents(given: Given, _: ModelSpec) -> None:
    """Refuse dynamic context parallelism with what Megatron-LM excludes, or with another capacity."""
    if not given.has("hybrid-context-parallel"):
        return
    size, stages = "max-seqlen-per-dp-cp-rank", "pipeline-model-parallel-size"
    room = given.integer("seq-length", 1) // given.integer("context-parallel-size", 1)
    stated = given.integer(size, 1) if given.has(size) else None
    if stated != room:
        found = "is required" if stated is None else f"{stated} is not supported"
        allowed = f"--seq-length / --context-parallel-size, {room}"
        given.fault(size, f"{found} with --hybrid-context-parallel", allowed=allowed, nearest=room)
    if (pp := given.integer(stages, 1)) > 1:
        given.fault(stages, f"{pp} with --hybrid-context-parallel", allowed="1", nearest=1)
    if given.other("dataloader-type") not in ("", "single"):
        given.fault("hybrid-context-parallel", "contradicts --dataloader-type", allowed="single")


_RULES: tuple[Callable[[Given, ModelSpec], None], ...] = (
    _refuse_by_rows,
    _note_other_types,
    _experts,
    _overlapped_experts,
    _splits,
    _gathered_in_8_bits,
    _offloaded_share,
    _lengths,
    _documents,
    _widths,
)
