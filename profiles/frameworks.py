"""What a training framework keeps in memory, runs as one kernel, and can overlap.

One YAML file per framework under ``catalog/frameworks``: its facts, and under ``sources`` the place in
the public source or paper that each of them comes from; ``like`` names another framework whose facts and
sources hold where the file has none of its own. A request may override single facts through
``workload.framework_options``; unknown options are refused, not ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import yaml

from meshwright.profiles.catalog import CATALOG
from meshwright.profiles.errors import FieldError, InvalidProblemError, ProfileError, UnknownNameError

_CATALOG = CATALOG / "frameworks"
_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
# Gradients reduced in 8 bits: quantised blockwise, one fp32 scale for a block of 256 (ZeRO++ qgZ,
# arXiv:2306.10209, section 3.3; DeepSpeed `zero_quantized_gradients`).
_REDUCED_BYTES = {**_BYTES, "int8": 1.0 + 4.0 / 256.0}
# Options that take a word, and the words they take.
OPTION_WORDS: Mapping[str, tuple[str, ...]] = {
    "attention_kernel": ("flash1", "flash2", "flash3", "cudnn", "triton", "megatron-fused", "torch"),
    "gradient_dtype": tuple(_BYTES),
    "reduced_gradient_dtype": tuple(_REDUCED_BYTES),
    "precision_recipe": (
        "none", "fp8-delayed", "fp8-current", "fp8-rowwise", "fp8-blockwise", "mxfp8", "mxfp8-experts",
        "nvfp4",
    ),
}  # fmt: skip
_NOT_OPTIONS = {
    "name", "stack", "weight_bytes", "optimizer_bytes", "own_gradient_bytes", "selective_keeps",
    "logit_bytes", "accumulation_bytes", "bucket_bytes", "gathered_layers", "vocabulary_multiple",
    "reduced_every_pass", "all_reduced_stages", "blocking_stages", "replicas_reduced_every_pass",
    "reshards_after_backward", "torch_pipelines", "replicated_gradient_dtype",
}  # fmt: skip
FLASH_KERNELS = ("flash1", "flash2", "flash3", "cudnn", "triton")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkFacts:
    """Facts of one framework; each may be overridden by ``workload.framework_options``."""

    name: str
    stack: str  # the set of constants fitted for it
    attention_kernel: str  # flash*, cudnn, triton: no score matrix; megatron-fused, torch: one
    elementwise_fused: bool  # bias, activation, rotary embedding and residual: one kernel for each group
    norm_fused: bool  # norms keep their input only
    loss_fused: bool  # logits are never kept in fp32
    logits_sharded: bool  # the logits of a rank are V / tp wide
    gradient_dtype: str  # of the gradients that are kept
    weight_bytes: float  # of one weight as the framework stores it (fp32 where shards are)
    optimizer_bytes: float  # AdamW's states of one weight, the fp32 copy included where there is one
    own_gradient_bytes: float  # of the model's gradients, kept beside an fp32 buffer
    accumulation_bytes: float  # moved to add one weight's gradient to an fp32 buffer, beyond its product
    main_gradient: bool  # gradients stay in a buffer of gradient_dtype for the whole step
    overlap_gradients: bool  # reduction runs under the backward pass
    overlap_tensor: bool  # tensor-parallel collectives run under GEMMs (with sequence parallel)
    overlap_transfer: bool  # interleaved schedules hide point-to-point transfers
    gathers_modules: bool  # ZeRO-3 gathers each linear layer's weights apart, not a whole block's
    low_precision_gathers: bool  # ZeRO-3 gathers weights in the GEMMs' 8 bits
    scatter_transfer: bool  # transfers are split over tp even without sequence parallel
    dropout: bool  # dropout masks are kept
    selective_keeps: float  # share of activations that selective recomputation keeps, scores aside
    overlap_experts: bool  # all-to-alls run under the computing of another micro-batch
    cuda_graphs: bool  # layers are captured and replayed, so the CPU hardly limits them
    logit_bytes: float  # of one logit at the loss's peak: itself, fp32 copies, gradients
    bucket_bytes: float  # of buckets for reduction and gathering that are there for the whole step
    gathered_layers: float  # layers whose weights ZeRO-3 holds whole at a time, prefetched ones counted
    keeps_gathered_inputs: bool  # sequence parallelism keeps gathered inputs, not their shards
    vocabulary_multiple: int  # the vocabulary is padded to a multiple of it for each tp rank
    low_precision_weights: bool  # 8-bit recipes hold the weights in 8 bits, no 2-byte copy
    # ZeRO stages that reduce gradients after every micro-batch. Others add whole gradients up and reduce
    # them once a step.
    reduced_every_pass: tuple[int, ...]
    all_reduced_stages: tuple[int, ...]  # ZeRO stages that all-reduce gradients of which they keep a shard
    blocking_stages: tuple[int, ...]  # ZeRO stages that wait for reductions whatever overlap_gradients says
    replicas_reduced_every_pass: bool  # replicas of shard sets reduce with every reduction, not once a step
    reshards_after_backward: bool  # ZeRO-2 drops weights after a backward pass, gathers them in the next
    # Stages run under torch.distributed.pipelining: it reduces once a step, and weights stay after a
    # backward pass.
    torch_pipelines: bool
    reduced_gradient_dtype: str = ""  # of gradients on the wire; empty: as they are kept
    replicated_gradient_dtype: str = ""  # the same without ZeRO; empty: as with it
    precision_recipe: str = "none"  # recipe of fp8 / fp4 runs

    @property
    def flash(self) -> bool:
        """Whether attention keeps no score matrix."""
        return self.attention_kernel in FLASH_KERNELS

    @property
    def gradient_bytes(self) -> float:
        """Bytes of one gradient element as it is kept."""
        return _BYTES[self.gradient_dtype]

    @property
    def reduced_gradient_bytes(self) -> float:
        """Bytes of one gradient element on the wire."""
        return _REDUCED_BYTES[self.reduced_gradient_dtype or self.gradient_dtype]

    @property
    def replicated_gradient_bytes(self) -> float:
        """Bytes of one gradient element on the wire where nothing is sharded."""
        name = self.replicated_gradient_dtype
        return _REDUCED_BYTES[name] if name else self.reduced_gradient_bytes


@cache
def framework_names() -> tuple[str, ...]:
    """Frameworks of the catalog."""
    return tuple(sorted(p.stem for p in _CATALOG.glob("*.yaml") if p.stem != "capabilities"))


@cache
def framework_facts(name: str) -> FrameworkFacts:
    """The facts of one framework.

    Raises:
        UnknownNameError: no such framework.
        ProfileError: its file lacks a fact or has one too many.
    """
    raw = _file_of(name)
    raw.pop("sources", None)
    stages = {key: tuple(value) for key, value in raw.items() if isinstance(value, list)}
    try:
        return FrameworkFacts(name=name, **{**raw, **stages})
    except TypeError as error:
        raise ProfileError(f"catalog/frameworks/{name}.yaml: {error}") from error


def framework_sources(name: str) -> Mapping[str, str]:
    """Where each fact of one framework comes from, by fact.

    Raises:
        UnknownNameError: no such framework.
    """
    sources: dict[str, str] = _file_of(name).get("sources", {})
    return sources


def _file_of(name: str) -> dict[str, Any]:
    """One framework's file."""
    if name not in framework_names():
        raise UnknownNameError.among("/framework", name, framework_names())
    text = (_CATALOG / f"{name}.yaml").read_text(encoding="utf-8")
    raw: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    if "like" in raw:
        other = _file_of(raw.pop("like"))
        raw = {**other, **raw, "sources": {**other["sources"], **raw["sources"]}}
    return raw


def _checked(name: str, value: object, current: object) -> object:
    """One option's value, of the type of the fact it overrides."""
    pointer = f"/workload/framework_options/{name}"
    if name in OPTION_WORDS:
        if value not in OPTION_WORDS[name]:
            raise InvalidProblemError.of(
                pointer, "is not a known value", allowed=", ".join(OPTION_WORDS[name])
            )
        return value
    if isinstance(current, bool) and value in (0, 1, True, False):
        return bool(value)
    raise InvalidProblemError([FieldError(pointer=pointer, message="must be true or false")])


def with_options(facts: FrameworkFacts, options: Mapping[str, str | int | float | bool]) -> FrameworkFacts:
    """The facts with the request's overrides.

    Raises:
        UnknownNameError: an option that is no fact.
        InvalidProblemError: a value of the wrong kind.
    """
    allowed = {f.name for f in fields(FrameworkFacts)} - _NOT_OPTIONS
    changed = {}
    for name, value in options.items():
        if name == "flash_attention":
            kernel = facts.attention_kernel if facts.flash == bool(value) else None
            changed["attention_kernel"] = kernel or ("flash2" if value else "megatron-fused")
        elif name not in allowed:
            raise UnknownNameError.among("/workload/framework_options", name, allowed)
        else:
            changed[name] = _checked(name, value, getattr(facts, name))  # type: ignore[assignment]
    return replace(facts, **changed)  # type: ignore[arg-type]
