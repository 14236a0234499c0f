"""What a launcher can express; the search only proposes what the chosen launcher can run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import yaml

from profiles.catalog import CATALOG
from profiles.errors import ProfileError, UnknownNameError
from profiles.model import ModelSpec

_FILE = CATALOG / "frameworks" / "capabilities.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The configurations that one launcher accepts."""

    launcher: str
    schedules: tuple[str, ...]
    zero_stages: tuple[int, ...]
    max_zero_stage_with_pipeline: int  # the highest ZeRO stage beside pipeline parallelism
    uneven_stages: bool  # stages may hold different numbers of layers
    recompute: tuple[str, ...]
    recompute_layer_counts: bool  # full recomputation of some layers of each chunk only
    context_parallel: bool
    expert_parallel: bool
    source: str
    recompute_per_stage: bool = False  # a count of its own for every stage
    expert_tensor_parallel: bool = False  # experts split otherwise than attention
    hybrid_sharding: bool = False  # shard sets smaller than the data-parallel group, from ZeRO 1 on
    offload: tuple[str, ...] = ("none",)
    offload_note: str = ""  # why what the launcher calls offloading is not what is planned
    experts_need_sequence_parallel: bool = False  # beside tensor parallelism
    context_parallel_modes: tuple[str, ...] = ("ring",)
    rank_orders: tuple[str, ...] = (
        "tp-cp-dp-pp",
    )  # mesh axes, fastest first; the launcher's own comes first
    data_parallel_alike: bool = False  # in another order experts have as many replicas as attention
    precisions: tuple[str, ...] = ("bf16", "fp16")
    optimizers: tuple[str, ...] = ()  # empty: not limited by the launcher
    recipes: tuple[
        str, ...
    ] = ()  # of 8-bit runs (``precision_recipe``); empty: not limited by the launcher
    adapters: bool = False  # low-rank ones beside a frozen model
    sequence_parallel: bool = True  # beside tensor parallelism; else ranks repeat norms
    heads_whole_on_ranks: bool = False  # tensor_parallel_size divides the key/value heads too
    halves_on_ranks: bool = False  # tp * 2 cp divides the sequence, not only tp * cp and 2 cp
    overlaps_experts: bool = False  # all-to-alls of experts run under another micro-batch's computing
    balances_stages: bool = False  # it splits the layers itself (``solver.splits.nanotron_split``)
    model_lacks: tuple[str, ...] = ()  # of ``model_features``: what its models cannot have
    constraints: tuple[str, ...] = ()  # expressions of ``solver.expressions`` that every plan satisfies


@cache
def _catalog() -> dict[str, Any]:
    """The capability file, parsed once."""
    loaded: dict[str, Any] = yaml.load(_FILE.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return loaded


def launcher_names() -> tuple[str, ...]:
    """Launchers whose limits are known."""
    return tuple(sorted(_catalog()))


def launchers_of(launcher: str) -> tuple[str, ...]:
    """The launchers that a request means: every one whose limits are known for ``any``."""
    return tuple(name for name in launcher_names() if name != "none") if launcher == "any" else (launcher,)


# What takes something away from a launcher: "any" lacks only what all of them lack.
_LIMITING = ("experts_need_sequence_parallel", "heads_whole_on_ranks", "halves_on_ranks", "balances_stages",
             "data_parallel_alike")  # fmt: skip
_LIMITING_WORDS = ("model_lacks", "constraints")


def _union(parts: list[Capabilities]) -> Capabilities:
    """What some launcher or other can run."""
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(Capabilities)):
        found = [getattr(part, name) for part in parts]
        if name in _LIMITING_WORDS:
            values[name] = tuple(word for word in found[0] if all(word in words for words in found))
        elif isinstance(found[0], tuple):
            values[name] = tuple(dict.fromkeys(value for part in found for value in part))
        elif isinstance(found[0], bool):
            values[name] = all(found) if name in _LIMITING else any(found)
        elif isinstance(found[0], int):
            values[name] = max(found)
    for name in ("optimizers", "recipes"):
        if not all(getattr(part, name) for part in parts):
            values[name] = ()  # some launcher limits none
    return Capabilities(**{**values, "launcher": "any", "source": "; ".join(part.source for part in parts)})


@cache
def launcher_capabilities(launcher: str) -> Capabilities:
    """The limits of one launcher; ``none`` has no launcher's limits, ``any`` those that all of them share.

    Raises:
        UnknownNameError: no such launcher.
        ProfileError: its entry lacks a capability or has one too many.
    """
    if launcher == "any":
        return _union([launcher_capabilities(name) for name in launchers_of(launcher)])
    if launcher not in _catalog():
        raise UnknownNameError.among("/launcher", launcher, launcher_names())
    entry: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in _catalog()[launcher].items()
    }
    try:
        return Capabilities(launcher=launcher, **entry)
    except TypeError as error:
        raise ProfileError(f"catalog/frameworks/capabilities.yaml, {launcher}: {error}") from error


def model_features(model: ModelSpec) -> frozenset[str]:
    """What a model has beside a plain Llama (rotary positions, RMSNorm, gated MLP, own output head)."""
    moe = model.moe
    found = {
        "experts": moe is not None,
        "shared experts": moe is not None and moe.shared_ffn_hidden_size > 0,
        "layers without experts": moe is not None and "dense" in model.layer_kinds(),
        "latent attention": model.mla is not None,
        "multi-token prediction": model.num_mtp_layers > 0,
        "sliding windows": model.sliding_window is not None,
        "learned positions": model.learned_position_embeddings,
        "layernorm": model.normalization == "layernorm",
        "linear bias": model.linear_bias,
        "ungated MLP": not model.gated_mlp,
        "tied embeddings": model.tied_embeddings,
        "free head size": model.head_dim * model.num_attention_heads != model.hidden_size,
    }
    return frozenset(name for name, there in found.items() if there)
