"""Facts of training frameworks: memory they keep, operations they fuse, and transfers they overlap.

One YAML file per framework under ``catalog/frameworks``: its facts, and under ``sources`` the place in the
public source or paper that each of them comes from; ``like`` names another framework, and its facts and
sources hold where the file has none of its own, and ``common.yaml`` has the facts that most frameworks
share. A request may override single facts through ``workload.framework_options``; unknown options are
refused, not ignored, and so are facts that contradict each other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property, lru_cache
from math import nan
from typing import Any

from meshwright.profiles.attention import EAGER, HYBRID, SDPA, transformers_releases
from meshwright.profiles.catalog import CATALOG, catalog_file
from meshwright.profiles.errors import FieldError, InvalidProblemError, ProfileError, UnknownNameError

_CATALOG = CATALOG / "frameworks"
_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
# Gradients reduced in 8 bits: quantised blockwise, one fp32 scale for a block of 256.
_REDUCED_BYTES = {**_BYTES, "int8": 1.0 + 4.0 / 256.0}
# Gradients summed in 4 bits by two all-to-alls; a scale for each row of a matrix is not counted (ZeRO++
# qgZ, arXiv:2306.10209, section 3.3; DeepSpeed 0.19 ``comm/coalesced_collectives.py
# all_to_all_quant_reduce``).
QUANTIZED_GRADIENT_BYTES = 0.5
# Options that take a word, and the words they take.
OPTION_WORDS: Mapping[str, tuple[str, ...]] = {
    "attention_kernel": (
        "flash1", "flash2", "flash3", "flash4", "cudnn", "triton", "flex", "megatron-fused", "torch",
        "efficient", "sdpa", "flash2+sdpa", "auto",
    ),
    "transformers_release": transformers_releases(),
    "gradient_dtype": tuple(_BYTES),
    "reduced_gradient_dtype": tuple(_REDUCED_BYTES),
    "precision_recipe": (
        "none", "fp8-delayed", "fp8-current", "fp8-rowwise", "fp8-blockwise", "mxfp8", "mxfp8-experts",
        "nvfp4",
    ),
    "loss_kernel": ("whole", "compared", "masked", "chunked", "liger", "cut"),
    "optimizer_kernel": ("fused", "foreach"),
    "moe_dispatcher": ("allgather", "alltoall", "deepep", "hybridep"),
    "grouped_gemm": ("grouped", "multi_stream", "loop", "batched"),
    # inputs and weights of linear layers, rounded as they are to be served (quantisation-aware training)
    "fake_quantization": (
        "none", "bf16-int4", "int8-int4", "fp8-int4", "fp8-fp8", "mxfp4", "int8-ternary", "nvfp4-merged",
    ),
}  # fmt: skip
FOREACH = "foreach"  # of optimizer_kernel
TERNARY = "int8-ternary"  # of fake_quantization
MERGED = "nvfp4-merged"  # of fake_quantization: sums of frozen weights and adapters
FORMATS = ("mxfp8", "nvfp4")  # recipes that are also the name of a precision
# Options about experts alone: a model without them does nothing of the kind.
EXPERT_OPTIONS = (
    "moe_dispatcher", "multiplies_absent", "dispatch_buffer_bytes", "low_precision_dispatch",
    "moe_force_balance", "moe_capacity_factor",
    "moe_routing_groups", "moe_permute_fusion", "moe_router_fusion", "moe_grouped_mlp_fused",
    "grouped_gemm",
    "shared_expert_overlap",
)  # fmt: skip
# Options that join several parts with +: the parts, and the words that are used alone.
OPTION_PARTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cuda_graph": (
        ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"),
        ("none", "layer", "full_iteration"),
    ),
    "recompute_modules": (
        (
            "core_attn",
            "mla_up_proj",
            "attn_proj",
            "layernorm",
            "mlp_up",
            "every_second_mm",
            "mlp",
            "shared_experts",
            "moe_act",
            "moe",
        ),
        (),
    ),
    "offload_modules": (
        (
            "attn_norm",
            "qkv_linear",
            "core_attn",
            "attn_proj",
            "mlp_norm",
            "mlp_act",
            "expert_fc1",
            "moe_act",
        ),
        ("all",),
    ),
}
# Options that take a number: the least and the greatest that mean anything.
OPTION_NUMBERS: Mapping[str, tuple[float, float]] = {
    "moe_capacity_factor": (0.0, 64.0),
    "dispatch_buffer_bytes": (0.0, 1e12),
    "layer_launch_s": (0.0, 1.0),
    "logit_bytes": (0.0, 64.0),
    "bucket_bytes": (0.0, 1e12),
    "pipeline_batch": (0.0, 1e6),
    "offload_layers": (0.0, 1e4),
    "mlp_tile_tokens": (0.0, 1e9),
    "optimizer_offload_fraction": (0.01, 1.0),
    "secondary_shard_size": (1.0, 1024.0),
    "sub_group_size": (1.0, 1e15),
    "cpu_update_interval": (1.0, 1000.0),
    "selected_gradient_share": (0.01, 1.0),
    "evaluation_batch_size": (0.0, 1e6),
    "power_limit_w": (0.0, 1e9),  # each GPU has a range of its own
    "fake_quantized_group": (2.0, 1e6),
}
_WHOLE = {
    "secondary_shard_size": "ranks",
    "cpu_update_interval": "steps",
    "sub_group_size": "weights",
    "evaluation_batch_size": "samples",
    "offload_layers": "layers",
    "mlp_tile_tokens": "tokens",
    "fake_quantized_group": "weights",
}  # what a launch file counts
_GROUPS = re.compile(r"(\d{1,4})/(\d{1,4})")
_NOT_OPTIONS = {
    "name", "stack", "weight_bytes", "optimizer_bytes", "own_gradient_bytes", "selective_keeps",
    "accumulation_bytes", "gathered_layers", "vocabulary_multiple", "unstated_recompute",
    "reduced_every_pass", "all_reduced_stages", "blocking_stages", "replicas_reduced_every_pass",
    "reshards_after_backward", "torch_pipelines", "replicated_gradient_dtype", "offloads_gradients",
    "adds_gradients_on_host", "stages_replay_whole", "compilers_end_replays", "keeps_remainders",
    "casts_frozen", "replays_frozen", "head_reaches_inputs", "casts_copies", "autocasts", "clips_apart",
    "wide_outputs",
    "frees_gradients",
    "weights_read_by", "joins_packed_rows", "reduces_copies", "bucketed_stages", "bucket_weights",
    "keeps_buckets", "deals_updates",
    "copies_units", "latents_whole", "low_precision_sequences", "balances_by_neighbours", "routes_padding",
    "layer_operators",
}  # fmt: skip
# Kernels with a backward pass in 8 bits (Transformer Engine: cuDNN's fused attention; FlashAttention 3).
FP8_KERNELS = ("cudnn", "flash3")
_DEDUPLICATING = ("deepep", "hybridep")
# Of MaxText's ``remat_policy``, and what torchtitan replays.
_FOREIGN_MODULES = ("attn_proj", "mlp_up", "every_second_mm")
_FOREIGN_OFFLOADS = ("mlp_act",)  # MaxText's mlpwi
# files of the directory that describe no framework
_NO_FRAMEWORKS = ("built_models", "capabilities", "common", "judged")
# Of torch's ``scaled_dot_product_attention``: documents and windows are a mask.
MASKING_KERNELS = ("efficient", "sdpa", "auto")
FLASH_KERNELS = (
    "flash1", "flash2", "flash3", "flash4", "cudnn", "triton", "flex", HYBRID, *MASKING_KERNELS,
)  # fmt: skip
_WITHOUT_MASKS = frozenset(FLASH_KERNELS) - {*MASKING_KERNELS}  # they take no mask of pairs of tokens


@dataclass(frozen=True, kw_only=True)
class FrameworkFacts:
    """Facts of one framework; each may be overridden by ``workload.framework_options``."""

    name: str
    stack: str  # the set of constants fitted for it
    # flash*, cudnn, triton, flex, efficient: no score matrix; megatron-fused, torch: one
    attention_kernel: str
    transformers_release: str  # with the rules of ``profiles/attention.py``
    elementwise_fused: bool  # bias, activation, rotary embedding and residual: one kernel for each group
    norm_fused: bool  # norms keep their input only
    separate_projections: bool  # queries, keys, values, gate and up are layers of their own, run one by one
    loss_fused: bool  # logits are never kept in fp32
    # whole: all logits of a micro-batch at once; compared: and a reference model's; masked: of tokens that
    # were masked; others make a part of them at a time
    loss_kernel: str
    logits_sharded: bool  # the logits of a rank are V / tp wide
    embedding_sharded: bool  # the embedding of a rank has V / tp rows also where the head is not tied to it
    embedding_products: bool  # rows of the embedding are found by products with one-hot rows
    prediction_sharded: bool  # multi-token prediction's projection of 2 h to h is split over tp
    latents_whole: bool  # each tensor rank projects all rows to latents, also with sequence parallel
    prediction_recomputed: bool  # multi-token prediction's layers are recomputed as the others are
    gradient_dtype: str  # of the gradients that are kept
    weight_bytes: float  # of one weight as the framework stores it (fp32 where shards are)
    optimizer_bytes: float  # AdamW's states of one weight, the fp32 copy included where there is one
    keeps_remainders: bool  # of the fp32 copy what bf16 weights lack, where states have dtypes of their own
    own_gradient_bytes: float  # of the model's gradients, in addition to an fp32 buffer
    accumulation_bytes: float  # moved to add one weight's gradient to an fp32 buffer, beyond its product
    clips_apart: bool  # clipping moves gradients on top of what the constant of an update has
    optimizer_kernel: str  # fused: AdamW in one kernel; foreach: in torch's list operators, with a copy
    deals_updates: bool  # ranks that share matrices send each to one of them, for Muon to orthogonalise it
    joins_packed_rows: bool  # packing joins the rows of a micro-batch to one, and a mask covers all of it
    weights_read_by: str  # who reads whole weights into host memory: nobody, or readers below
    evaluation_batch_size: float  # samples of a rank that are evaluated together between steps; 0: none
    main_gradient: bool  # gradients stay in a buffer of gradient_dtype for the whole step
    frees_gradients: bool  # after an update there are none until the next backward pass
    overlap_gradients: bool  # reduction runs under the backward pass
    overlap_tensor: bool  # tensor-parallel collectives run under GEMMs (with sequence parallel)
    overlap_transfer: bool  # interleaved schedules hide point-to-point transfers
    gathers_modules: bool  # ZeRO-3 gathers each linear layer's weights apart, not a whole block's
    low_precision_sequences: bool  # sequence parallelism gathers in the GEMMs' 8 or 4 bits
    low_precision_gathers: bool  # ZeRO-3 gathers weights in the GEMMs' 8 bits
    quantized_gathers: bool  # ZeRO-3 gathers all weights in 8 bits, cast for each gather and cast back
    quantized_reductions: bool  # ZeRO-3 sums gradients in 4 bits
    secondary_shard_size: float  # ranks with a second set of ZeRO-3's shards; 1: there is none
    sub_group_size: float  # weights of which ZeRO-3 copies gradients to fp32 at a time; 0: it copies none
    secondary_in_forward: bool  # forward passes and replays gather from it too, not only backward passes
    scatter_transfer: bool  # transfers are split over tp even without sequence parallel
    dropout: bool  # dropout masks are kept
    tf32_products: bool  # products of fp32 run in TF32 where the GPU has it
    selective_keeps: float  # share of activations that selective recomputation keeps, scores aside
    dynamic_context_parallel: bool  # each document is split over only as many ranks as it needs
    dynamic_context_packing: bool  # and documents of as many ranks fill passes together
    overlap_experts: bool  # all-to-alls run under the computing of another micro-batch
    delay_wgrad: bool  # weight gradients are put off, so that more runs under overlapped exchanges
    shared_expert_overlap: bool  # shared experts run during the exchange of routed tokens
    cuda_graph: str  # what is captured: none, layer, full_iteration, or parts of a layer joined by +
    launch_blocking: bool  # CUDA_LAUNCH_BLOCKING=1: the CPU waits for every kernel
    synchronous_transfers: bool  # the CPU waits for every message between stages before it launches more
    layer_operators: float  # that a dense layer's forward pass launches
    layer_launch_s: float  # CPU seconds of a dense layer's forward pass on a DGX A100; 0: as fitted
    moe_dispatcher: str  # how tokens reach their experts: allgather, alltoall, deepep, hybridep
    low_precision_dispatch: bool  # tokens travel to their experts in 8 bits (and back in 16)
    multiplies_absent: bool  # grouped products have a row for each expert of a token that DeepEP delivers
    dispatch_buffer_bytes: float  # that DeepEP keeps beside the tensors
    moe_force_balance: bool  # every expert gets as many tokens as any other, as benchmarks force it
    balances_by_neighbours: bool  # forced balance sends a token to experts that follow each other
    routes_padding: bool  # padding tokens go to experts like any other token
    moe_capacity_factor: float  # tokens of an expert over the mean: more are dropped; 0: none is
    moe_routing_groups: str  # "8/4": tokens go to 4 of 8 groups of experts; 1/1: to any
    moe_permute_fusion: bool  # one kernel permutes tokens
    moe_router_fusion: bool  # one kernel turns scores into a map of tokens, one adds up the balancing loss
    moe_grouped_mlp_fused: bool  # one kernel for both layers of experts, with permutation and activation
    # grouped: experts in one kernel; multi_stream: a product each; loop: one by one; batched: by rows
    grouped_gemm: str
    fp8_attention: bool  # attention in 8 bits
    replay_stops_early: bool  # recomputing a layer ends before its last product, which nothing reads
    compilers_end_replays: bool  # the same where blocks are compiled, that is where operators are fused
    stages_replay_whole: bool  # but not in pipelines, which have checkpoints of their own
    recompute_modules: str  # what selective recomputation replays, joined by +
    offload_modules: str  # modules with offloaded activations: all, or joined by +
    offload_layers: float  # layers with activations on the host; 0: all
    # tokens of a sequence that an MLP computes at a time, which keeps its input alone and computes each of
    # these tiles again in its backward pass; 0: all of them, once
    mlp_tile_tokens: float
    optimizer_offload_fraction: float  # of the states that go to the host where optimizer states do
    super_offload: bool  # the host updates offloaded states under the backward pass
    cpu_update_interval: float  # steps between the host's updates of offloaded states, which run behind
    selected_gradient_share: float  # of gradients that GPUs apply at once in steps between those updates
    offloads_gradients: bool  # shards of gradients lie on the host where optimizer states do
    adds_gradients_on_host: bool  # and the CPU adds them up there; else they are fetched for every addition
    power_limit_w: float  # watts that each GPU may draw (nvidia-smi -pl); 0: as many as its type
    unstated_recompute: str  # of runs that do not state recomputation: none, or unknown
    logit_bytes: float  # of one logit at the loss's peak: itself, fp32 copies, gradients
    bucket_bytes: float  # of gradients that replicas reduce together; 0: the framework's own choice
    bucket_weights: tuple[
        int, int
    ]  # of the framework's own choice, the larger one: so many, or of a replica
    bucketed_stages: tuple[int, ...]  # ZeRO stages that reduce gradients bucket by bucket
    keeps_buckets: bool  # a bucket is a buffer of its own for the whole step; else a view, or a copy
    gathered_layers: float  # layers with all weights gathered by ZeRO-3 at once, prefetched ones included
    keeps_gathered_inputs: bool  # sequence parallelism keeps gathered inputs, not their shards
    vocabulary_multiple: int  # the vocabulary is padded to a multiple of it for each tp rank
    low_precision_weights: bool  # 8-bit recipes hold the weights in 8 bits, no 2-byte copy
    # ZeRO stages that reduce gradients after every micro-batch. Others add whole gradients up and reduce
    # them once a step.
    reduced_every_pass: tuple[int, ...]
    all_reduced_stages: tuple[int, ...]  # ZeRO stages that all-reduce gradients of which they keep a shard
    blocking_stages: tuple[int, ...]  # ZeRO stages that wait for reductions even with overlap_gradients
    replicas_reduced_every_pass: bool  # replicas of shard sets reduce with every reduction, not once a step
    # Units that ZeRO-3 gathers are copied out of the buffer that travels, their gradients into it, in the
    # stream that computes.
    copies_units: bool
    gathers_tensors: bool  # ZeRO-1 and 3 gather weights by lists: a slice and a copy for each rank
    reshards_after_backward: bool  # ZeRO-2 drops weights after a backward pass, gathers them in the next
    # Stages run under torch.distributed.pipelining: it reduces once a step, and weights stay after a
    # backward pass.
    torch_pipelines: bool
    casts_frozen: bool  # ZeRO-3 cuts frozen weights as it stores trained ones; else in their own dtype
    replays_frozen: bool  # recomputes layers of frozen weights alone, too
    # A trained head makes the first layer's inputs require gradients, which then go through every layer
    head_reaches_inputs: bool
    autocasts: bool  # without ZeRO weights are fp32, and autocast casts them for each product
    wide_outputs: bool  # what the model returns is cast to fp32, logits included
    reduces_copies: bool  # without ZeRO, replicas reduce buckets that are copies of the gradients
    adapter_dropout: bool  # inputs of adapters are dropped out of
    dora: bool  # adapters' outputs are scaled by a trained norm of each row of the adapted weight
    oft: bool  # adapters rotate blocks of a layer's inputs, ``lora_rank`` wide, instead of adding products
    # Adapters of experts that lie in one tensor are added to their weights, else to their outputs
    wraps_experts: bool
    quantizes_experts: bool  # experts that lie in one tensor are of fewer bits too, as the linear layers
    fake_quantization: str  # what inputs and weights of linear layers are rounded to, and back, in passes
    fake_quantized_group: float  # weights with one scale, where those are of 4 bits
    pipeline_batch: float  # micro-batches after which a pipeline drains; 0: all of a step
    fp32_ends: bool  # without ZeRO embedding, head and norms are fp32 next to matrices of bf16 alone
    redraws_layers: bool  # the trained layers are drawn anew now and then, and moments of all stay (LISA)
    casts_copies: bool  # modules trained in full with adapters are fp32; else, below ZeRO-3, unchanged
    reduced_gradient_dtype: str = ""  # of gradients on the wire; empty: as they are stored
    replicated_gradient_dtype: str = ""  # the same without ZeRO; empty: as with it
    precision_recipe: str = "none"  # recipe of fp8 / fp4 runs

    @property
    def ends_are_shared(self) -> bool:
        """Return whether every stage has a share of embedding and head, not only the first and last.

        No launcher does that. Who divides the vocabulary inside a stage is ``Context.vocabulary_group``.
        """
        return False

    @cached_property
    def priced_by_stages(self) -> bool:
        """Return whether prices read how many stages and micro-batches there are, not only if several."""
        counted = self.torch_pipelines or self.synchronous_transfers or bool(self.pipeline_batch)
        return counted or self.ends_are_shared

    @cached_property
    def priced_by_chunks(self) -> bool:
        """Return whether prices read the number of chunks and their order (``gathers_in_passes``)."""
        return self.torch_pipelines or self.ends_are_shared

    @cached_property
    def balanced(self) -> bool:
        """Return whether no expert gets more tokens than others, by force or by dropping."""
        return self.moe_force_balance or self.moe_capacity_factor > 0.0

    @cached_property
    def recomputed(self) -> tuple[str, ...]:
        """Return the modules that selective recomputation replays."""
        return tuple(self.recompute_modules.split("+"))

    @cached_property
    def deduplicates(self) -> bool:
        """Return whether a token is sent once to a rank or node with several of its experts."""
        return self.moe_dispatcher in _DEDUPLICATING

    @cached_property
    def permutes_in_dispatch(self) -> bool:
        """Return whether tokens arrive in the order of their experts, which combine what they write."""
        return self.deduplicates and not self.multiplies_absent

    @cached_property
    def routing_groups(self) -> tuple[int, int]:
        """Return the groups of experts, and to how many of them a token may go; (1, 1): to any."""
        groups, chosen = self.moe_routing_groups.split("/")
        return int(groups), int(chosen)

    @cached_property
    def gathers_8_bits(self) -> bool:
        """Return whether ZeRO-3 gathers 8-bit weights: a scale each (torchao 0.18 float8/config.py:270)."""
        return self.low_precision_gathers and self.precision_recipe != "fp8-rowwise"

    @cached_property
    def flash(self) -> bool:
        """Return whether attention keeps no score matrix."""
        return self.attention_kernel in FLASH_KERNELS

    @cached_property
    def knows_documents(self) -> bool:
        """Return whether attention's kernel skips what lies between packed documents."""
        return self.flash and self.attention_kernel not in MASKING_KERNELS

    @cached_property
    def gradient_bytes(self) -> float:
        """Return the bytes of one stored gradient element."""
        return _BYTES[self.gradient_dtype]

    @cached_property
    def reduced_gradient_bytes(self) -> float:
        """Return the bytes of one gradient element on the wire."""
        return _REDUCED_BYTES[self.reduced_gradient_dtype or self.gradient_dtype]

    @cached_property
    def replicated_gradient_bytes(self) -> float:
        """Return the bytes of one gradient element on the wire where nothing is sharded."""
        name = self.replicated_gradient_dtype
        return _REDUCED_BYTES[name] if name else self.reduced_gradient_bytes


@cache
def framework_names() -> tuple[str, ...]:
    """Return the frameworks of the catalog."""
    return tuple(sorted(p.stem for p in _CATALOG.glob("*.yaml") if p.stem not in _NO_FRAMEWORKS))


@cache
def framework_facts(name: str) -> FrameworkFacts:
    """Return the facts of one framework.

    Raises:
        UnknownNameError: no such framework.
        ProfileError: its file lacks a fact or has one too many.
    """
    if name not in framework_names():
        raise UnknownNameError.among("/framework", name, framework_names())
    raw, nearest = dict[str, Any](), name
    while nearest:
        own = catalog_file(_CATALOG / f"{nearest}.yaml")
        raw = own | raw
        nearest = own.get("like", "" if nearest == "common" else "common")
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in raw.items()
        if key not in ("sources", "like")  # only for readers of the file
    }
    try:
        return FrameworkFacts(name=name, **values)
    except TypeError as error:
        raise ProfileError(f"catalog/frameworks/{name}.yaml: {error}") from error


def allowed_values(name: str) -> str:
    """Return, in words, the values that an option may have."""
    if name in OPTION_WORDS:
        return ", ".join(OPTION_WORDS[name])
    if name in OPTION_PARTS:
        parts, alone = OPTION_PARTS[name]
        return ", ".join((*alone, f"{', '.join(parts)} joined by +"))
    if name in OPTION_NUMBERS:
        least, most = OPTION_NUMBERS[name]
        return f"{least:g} to {most:g}"
    return 'as in "8/4": 4 of 8 groups' if name == "moe_routing_groups" else "true or false"


def _checked(name: str, value: object, current: object) -> object:
    pointer = f"/workload/framework_options/{name}"
    if name in OPTION_WORDS:
        if value not in OPTION_WORDS[name]:
            raise _unknown_value(pointer, value, name)
        return value
    if name in OPTION_PARTS:
        return _joined(pointer, value, name)
    if name in OPTION_NUMBERS:
        number = _number(pointer, value, name)
        if name in _WHOLE and number != int(number):
            message = f"{number:g} is not a whole number"
            raise InvalidProblemError.of(
                pointer, message, allowed=f"a whole number of {_WHOLE[name]}", nearest=str(int(number))
            )
        return number
    if name == "moe_routing_groups":
        return _groups(pointer, value)
    if isinstance(current, bool) and value in (0, 1, True, False):
        return bool(value)
    raise _unknown_value(pointer, value, name)


def _unknown_value(pointer: str, value: object, name: str) -> InvalidProblemError:
    parts, alone = OPTION_PARTS.get(name, ((), ()))
    words = OPTION_WORDS.get(name) or (*alone, *parts) or ("true", "false")
    near = difflib.get_close_matches(str(value).lower(), words, n=1)
    message = f'"{str(value)[:40]}" is not a known value'
    return InvalidProblemError.of(
        pointer, message, allowed=allowed_values(name), nearest=near[0] if near else None
    )


def _joined(pointer: str, value: object, name: str) -> str:
    """Return parts joined by + in the order of the catalog's list, or a word that is used alone."""
    (parts, alone), given = OPTION_PARTS[name], str(value).split("+")
    if value in alone:
        return str(value)
    unknown = [part for part in given if part not in parts]
    if unknown:
        raise _unknown_value(pointer, unknown[0], name)
    return "+".join(part for part in parts if part in given)


def _number(pointer: str, value: object, name: str) -> float:
    least, most = OPTION_NUMBERS[name]
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else nan
    if not least <= number <= most:
        message = f"{str(value)[:40]} is not a number in range"
        nearest = f"{most:g}" if number > most else f"{least:g}" if number < least else None
        raise InvalidProblemError.of(pointer, message, allowed=allowed_values(name), nearest=nearest)
    return float(number)


def _groups(pointer: str, value: object) -> str:
    found = _GROUPS.fullmatch(str(value))
    if not found or not 0 < int(found[2]) <= int(found[1]):
        message = f'"{str(value)[:40]}" is not groups/chosen groups'
        raise InvalidProblemError.of(pointer, message, allowed='as in "8/4": 4 of 8 groups')
    return found[0]


_FIELDS = tuple(f.name for f in fields(FrameworkFacts))
_OPTIONS = frozenset(_FIELDS) - _NOT_OPTIONS


def option_names() -> frozenset[str]:
    """Return the names of all options."""
    return _OPTIONS | {"cuda_graphs", "flash_attention"}


def with_options(facts: FrameworkFacts, options: Mapping[str, str | int | float | bool]) -> FrameworkFacts:
    """Return the facts with the request's overrides.

    Raises:
        UnknownNameError: an option that is not a fact.
        InvalidProblemError: a value of the wrong kind, or one that contradicts another.
    """
    if not options:
        return facts
    stated = tuple((name, type(value), value) for name, value in options.items())  # True is equal to 1
    return _with_stated(facts, stated)


@lru_cache(maxsize=128)  # a search asks about the options of its few variants hundreds of times
def _with_stated(facts: FrameworkFacts, stated: tuple[tuple[str, type, Any], ...]) -> FrameworkFacts:
    options = {name: value for name, _, value in stated}
    found = _changed(facts, options)
    faults = [
        FieldError(
            pointer=f"/workload/framework_options/{name}",
            message=f"{str(options[name])[:40]} contradicts {against}",
            allowed=instead,
        )
        for name, holds, against, instead in _contradictions(found)
        if holds and name in options
    ]
    if faults:
        raise InvalidProblemError(faults)
    return found


def with_options_if_legal(
    facts: FrameworkFacts, options: Mapping[str, str | int | float | bool]
) -> FrameworkFacts | None:
    """Return what ``with_options`` does, None where options contradict each other: for thousands of them.

    Raises:
        UnknownNameError: an option that is not a fact.
        InvalidProblemError: a value of the wrong kind.
    """
    found = _changed(facts, options) if options else facts
    contradicts = any(holds and name in options for name, holds, _, _ in _contradictions(found))
    return None if contradicts else found


def _changed(facts: FrameworkFacts, options: Mapping[str, Any]) -> FrameworkFacts:
    changed = dict[str, Any]()
    for name, value in options.items():
        if name == "flash_attention":
            kernel = facts.attention_kernel if facts.flash == bool(value) else None
            changed["attention_kernel"] = kernel or ("flash2" if value else "megatron-fused")
        elif name == "cuda_graphs":  # whole layers, or nothing
            captured = "layer" if _checked(name, value, current=False) else "none"
            scope = str(options.get("cuda_graph", captured))
            changed["cuda_graph"] = scope
            if (scope == "none") != (captured == "none"):
                raise InvalidProblemError.of(
                    f"/workload/framework_options/{name}",
                    f"contradicts cuda_graph = {scope[:40]}",
                    allowed="one of the two options",
                )
        elif name not in _OPTIONS:
            raise UnknownNameError.among("/workload/framework_options", name, {*_OPTIONS, "cuda_graphs"})
        else:
            changed[name] = _checked(name, value, getattr(facts, name))
    if changed.get("loss_kernel") == "masked" and "attention_kernel" not in changed:
        kernel = facts.attention_kernel  # which tokens attend to which is a mask of pairs
        changed["attention_kernel"] = SDPA if kernel in _WITHOUT_MASKS else kernel
    # ``dataclasses.replace`` would set each field of a frozen class by a call: ten times the time of this
    found = object.__new__(FrameworkFacts)
    found.__dict__.update({name: getattr(facts, name) for name in _FIELDS}, **changed)
    return found


# An option, whether it contradicts, what, and what would not.
_Contradiction = tuple[str, bool, str, str]


def _contradictions(facts: FrameworkFacts) -> list[_Contradiction]:
    return [
        *_exchange_contradictions(facts), *_mask_contradictions(facts), *_module_contradictions(facts),
    ]  # fmt: skip


def _mask_contradictions(facts: FrameworkFacts) -> list[_Contradiction]:
    """Return kernels that take no mask of pairs, which a loss of masked tokens gives.

    Axolotl 0.18 ``integrations/diffusion/utils.py create_bidirectional_attention_mask``.
    """
    unlike = facts.loss_kernel == "masked" and facts.attention_kernel in _WITHOUT_MASKS
    instead = f"attention_kernel = {SDPA} or {EAGER}"
    return [
        (name, unlike, "loss_kernel = masked, which masks pairs of tokens", instead)
        for name in ("attention_kernel", "flash_attention")
    ]


def _exchange_contradictions(facts: FrameworkFacts) -> list[_Contradiction]:
    """Return contradictions about work during the exchange of tokens, and about 8-bit attention.

    Megatron-LM d98e8a64 ``megatron/core/transformer/transformer_config.py:3002-3100``: delayed weight
    gradients need overlapped exchanges, which exclude the overlap of shared experts and the recomputation
    of whole experts, and need, as the overlap of shared experts does (1820), an all-to-all or a flexible
    dispatcher; DeepEP and HybridEP alone dispatch in 8 bits; attention in 8 bits needs cuDNN or
    FlashAttention 3.
    """
    experts, dispatch, kernel = facts.overlap_experts, facts.moe_dispatcher, facts.attention_kernel
    gathers, words = dispatch == "allgather", "moe_dispatcher = allgather"
    travelling = "moe_dispatcher = alltoall, deepep or hybridep"
    return [
        ("overlap_experts", experts and gathers, words, travelling),
        ("shared_expert_overlap", facts.shared_expert_overlap and gathers, words, travelling),
        (
            "delay_wgrad", facts.delay_wgrad and not experts, "overlap_experts = false",
            "overlap_experts = true",
        ),
        (
            "shared_expert_overlap", facts.shared_expert_overlap and experts, "overlap_experts = true",
            "overlap_experts = false",
        ),
        (
            "low_precision_dispatch", facts.low_precision_dispatch and not facts.deduplicates,
            f"moe_dispatcher = {dispatch}", "moe_dispatcher = deepep or hybridep",
        ),
        (
            "fp8_attention", facts.fp8_attention and kernel not in FP8_KERNELS,
            f"attention_kernel = {kernel}", f"attention_kernel = {' or '.join(FP8_KERNELS)}",
        ),
    ]  # fmt: skip


def _module_contradictions(facts: FrameworkFacts) -> list[_Contradiction]:
    """Return modules that are recomputed, captured and offloaded.

    Megatron-LM d98e8a64 ``transformer_config.py``: 1940 (its modules), 1991 (shared experts), 2148-2170
    (offloaded modules), 2790-2850 (CUDA graphs), 2929 (a graph of whole steps offloads nothing by modules),
    3030 and 3066 (overlapped exchanges).
    """
    replayed, sent = facts.recomputed, facts.offload_modules.split("+")
    foreign = [name for name in replayed if name in _FOREIGN_MODULES and facts.stack == "megatron-core"]
    graph = facts.cuda_graph.split("+")
    router = "moe_router" in graph
    inside = [name for name in ("expert_fc1", "moe_act") if name in sent]
    captured = [name for name in ("mlp", "moe") if name in graph]
    return [
        (
            "recompute_modules", bool(foreign), f"{facts.name}: it can't recompute {' or '.join(foreign)}",
            "mlp or full recomputation",
        ),
        (
            "offload_modules", not {*sent}.isdisjoint(_FOREIGN_OFFLOADS) and facts.stack == "megatron-core",
            f"{facts.name}: it can't offload {' or '.join(_FOREIGN_OFFLOADS)}", "other modules",
        ),
        (
            "recompute_modules", "moe" in replayed and facts.overlap_experts, "overlap_experts = true",
            "moe_act",
        ),
        (
            "recompute_modules", "shared_experts" in replayed and facts.shared_expert_overlap,
            "shared_expert_overlap = true", "shared_expert_overlap = false",
        ),
        (
            "cuda_graph", "moe" in replayed and router, f"recompute_modules = {facts.recompute_modules}",
            "a scope without moe_router",
        ),
        ("cuda_graph", "moe" in graph and router, "itself: moe contains moe_router", "moe or moe_router"),
        (
            "cuda_graph", "moe_preprocess" in graph and not router,
            "itself: moe_preprocess needs moe_router", "moe_router+moe_preprocess",
        ),
        (
            "cuda_graph", bool(captured) and facts.overlap_experts, "overlap_experts = true",
            "a scope without mlp and moe",
        ),
        (
            "cuda_graph", facts.cuda_graph != "none" and facts.dynamic_context_parallel,
            "dynamic_context_parallel = true", "none",
        ),
        (
            "dynamic_context_parallel", facts.cuda_graph != "none" and facts.dynamic_context_parallel,
            f"cuda_graph = {facts.cuda_graph}", "false, or cuda_graph = none",
        ),
        (
            "offload_modules", "attn_proj" in sent and "core_attn" not in sent,
            "itself: attn_proj needs core_attn", "core_attn+attn_proj",
        ),
        (
            "offload_modules", facts.cuda_graph == "full_iteration" and facts.offload_modules != "all",
            "cuda_graph = full_iteration", "another scope, or none",
        ),
        (
            "cuda_graph", facts.cuda_graph == "full_iteration" and facts.offload_modules != "all",
            f"offload_modules = {facts.offload_modules}", "another scope, or none",
        ),
        (
            "offload_modules", bool(inside) and "moe" in replayed,
            f"recompute_modules = {facts.recompute_modules}", "modules outside the experts",
        ),
    ]  # fmt: skip
