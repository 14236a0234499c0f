"""Seconds of collectives inside the pipeline, for one micro-batch and one layer.

Volumes: tensor parallelism, Shoeybi et al. 2019 (arXiv:1909.08053) and, with sequence parallelism,
Korthikanti et al. 2022 (arXiv:2205.05198); ring context parallelism, Liu et al. 2023
(arXiv:2310.01889); experts, Lepikhin et al. 2020 (arXiv:2006.16668); ZeRO-3, Rajbhandari et al. 2020
(arXiv:1910.02054).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from meshwright.profiles.collectives.collectives import (
    Group,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    point_to_point_s,
)
from meshwright.profiles.frameworks import QUANTIZED_GRADIENT_BYTES
from meshwright.profiles.model import ModelSpec
from meshwright.profiles.model_parts import MoeSpec
from meshwright.profiles.sequences import FilledSequences, Work
from meshwright.solver.clock import look
from meshwright.solver.configuration import BoolArray, FloatArray, IntArray
from meshwright.solver.cost.context import (
    Context,
    PassSeconds,
    distinct_places,
    experts_overlap,
    paired_passes,
)
from meshwright.solver.cost.parameters import Weights
from meshwright.solver.cost.scan import exchanged_widths, passed_states
from meshwright.solver.cost.sharding import SHARD_WEIGHTS
from meshwright.solver.cost.step_end import (
    OVERLAP_SLOWDOWN,
    TENSOR_COPY_S,
    all_reduced_s,
    exposed_s,
)
from meshwright.solver.cost.ways import each_way

_ACTIVATION_BYTES = 2.0
_MERGE_BYTES = 10.0  # a part's output is read in 2 bytes, the sum read and written in 4
_LOW_PRECISION_BYTES = 1.0
# Bytes of an element that sequence parallelism gathers in the products' format, with the scales of its
# blocks: one fp32 for 128, an 8-bit one for 32, an 8-bit one for 16. Other recipes have one for a tensor.
_GATHERED_BYTES: Mapping[str, float] = {
    "fp8-blockwise": 1.0 + 4.0 / 128.0, "mxfp8": 1.0 + 1.0 / 32.0, "nvfp4": 0.5 + 1.0 / 16.0,
}  # fmt: skip
_WEIGHT_GRADIENTS = 1.0 / 3.0  # of the passes of a layer: the forward's, and two products of the backward's
# Seconds of a dispatcher over an all-to-all of NCCL that sends as many bytes. HybridEP's kernels reach 632
# to 764 GB/s on GB200 (8 to 36 ranks), where the all-to-all reaches 475 to 485 (DeepEP, branch hybrid-ep,
# docs/README_Hybrid-EP.md); DeepEP's 520 to 620 there.
_DISPATCHERS: Mapping[str, float] = {"hybridep": 0.7, "deepep": 0.8}
_LIVE_WEIGHTS = 1e9  # DeepSpeed keeps no more gathered weights (its defaults, ZeRO-3)


def tensor_parallel(ctx: Context, blocks: float = 2.0) -> PassSeconds:
    """Return the collectives of ``blocks`` tensor-parallel blocks (attention, MLP): one pair each.

    With sequence parallelism a block all-gathers its input and reduce-scatters its output, and its
    backward pass all-gathers the input once more; otherwise it all-reduces once each way. Of a
    backward pass with sequence parallelism two of the three run under the input's and the weights'
    gradient products everywhere (Korthikanti et al. 2022, section 4.2.2; Megatron-LM
    ``LinearWithGradAccumulationAndAsyncCommunication``); a framework that overlaps hides part of all,
    torch's compiler in compiled stages alone (``torch/_inductor/fx_passes/micro_pipeline_tp.py``).
    Inputs and gradients of products in 8 or 4 bits may be gathered in these; sums are scattered in 2 bytes.
    Ranks that split the channels of a selective scan also add up its time steps' latent, B and C.
    """
    found = _with_sequences(ctx, ctx.tensor_group, blocks, *_gathered_bytes(ctx))
    mixer = ctx.model.own_mixer
    if mixer is None or not mixer.selected:
        return found
    summed = all_reduce_s(ctx.tokens * mixer.selected * _ACTIVATION_BYTES, ctx.tensor_group) * (ctx.t > 1)
    return found + PassSeconds(forward=summed, backward=summed)


def vocabulary_parallel(ctx: Context) -> PassSeconds:
    """Return the collective at either end of the model: a tensor-parallel block's pair, in 2 bytes."""
    return _with_sequences(ctx, ctx.vocabulary_group, 0.5, _ACTIVATION_BYTES, _ACTIVATION_BYTES)


@each_way
def _with_sequences(
    ctx: Context, ranks: Group, blocks: float, input_bytes: float, gradient_bytes: float
) -> PassSeconds:
    width = ctx.tokens * ctx.model.hidden_size
    moved_s = {
        each: all_gather_s(width * each, ranks) for each in {input_bytes, gradient_bytes, _ACTIVATION_BYTES}
    }
    inputs, gradients = moved_s[input_bytes], moved_s[gradient_bytes]
    scattered = moved_s[_ACTIVATION_BYTES]
    reduced = all_reduce_s(width * _ACTIVATION_BYTES, ranks)
    hidden = ctx.constants.tensor_exposed
    exposed = np.where(ctx.uncompiled, 1.0, hidden) if ctx.facts.overlap_tensor else 1.0
    sp, on = ctx.sequence_parallel, ranks.size > 1
    forward = np.where(sp, (inputs + scattered) * exposed, reduced) * blocks * on
    backward = np.where(sp, gradients * exposed + (inputs + scattered) * hidden, reduced) * blocks * on
    return PassSeconds(forward=forward, backward=backward)


def _gathered_bytes(ctx: Context) -> tuple[float, float]:
    """Return the bytes of an element of the inputs and of the gradients that sequence parallelism gathers.

    Transformer Engine gathers them in the products' format. Both gradient products read the gradient, one
    along its rows and one along its columns, which blocks of scales make two tensors (d0067d0d
    ``pytorch/distributed.py:gather_along_first_dim``, ``pytorch/module/base.py:grad_output_preprocess``).
    """
    if not (ctx.low_precision and ctx.facts.low_precision_sequences):
        return _ACTIVATION_BYTES, _ACTIVATION_BYTES
    blocks = _GATHERED_BYTES.get(ctx.facts.precision_recipe)
    return (blocks, 2.0 * blocks) if blocks else (_LOW_PRECISION_BYTES, _LOW_PRECISION_BYTES)


def context_parallel(ctx: Context, attention: PassSeconds) -> PassSeconds:
    """Return the seconds that context parallelism adds to attention: a ring, exchanged heads or both.

    A mixer passes on states in place of a ring (``passed_states``).

    Where both: neighbours exchange first and last, so that each ring has their tokens of its share of the
    heads (Transformer Engine 2.9, ``AttnFuncWithCPAndKVP2P``; Fang and Zhao 2024, USP, arXiv:2405.07719).
    """
    if not ctx.model.mixes_tokens:
        return ctx.nothing
    mixer = ctx.model.own_mixer
    own = (passed_states(ctx, mixer) if mixer else _ring(ctx, attention)) + _head_exchange(ctx)
    return own + context_parallel(ctx.paired, attention) if ctx.paired else own


def _head_exchange(ctx: Context) -> PassSeconds:
    """Return the all-to-alls around attention: queries, keys and values before it, its output behind it.

    Each rank sends the tokens that it has, of all its heads, and gets every token of 1 / c of them; the
    backward pass sends the gradients the other way. Nothing runs under them (Jacobs et al. 2023,
    DeepSpeed-Ulysses, arXiv:2309.14509, section 3.2: 4 N h / P on each link for as many key/value heads).
    """
    model = ctx.model
    heads, kv = model.num_attention_heads / ctx.t, np.maximum(model.num_kv_heads / ctx.t, 1.0)
    before = heads * model.head_dim + kv * (model.head_dim + model.v_head_dim)
    mixer = model.own_mixer
    widths = exchanged_widths(ctx, mixer) if mixer else (before, heads * model.v_head_dim)
    sent = [ctx.tokens * width * _ACTIVATION_BYTES for width in widths]
    once = sum(all_to_all_s(one, ctx.exchange_group) for one in sent)
    once = np.where(ctx.exchanging > 1, once, 0.0)
    return PassSeconds(forward=once, backward=once)


def _ring(ctx: Context, attention: PassSeconds) -> PassSeconds:
    """Return what ring attention adds: keys and values go round once, twice with their gradients.

    Attention hides the exchange but for a least share: ``max(attention + share * x, x) - attention``.
    Each part of the keys but the first is merged into an fp32 output, twice as much in the backward pass
    (Transformer Engine 2, ``context_parallel.py``: ``flash_attn_fwd_out_correction``).
    """
    model = ctx.model
    kv = np.maximum(model.num_kv_heads / ctx.t, 1.0) * (model.head_dim + model.v_head_dim)
    outputs = ctx.tokens * model.num_attention_heads / ctx.t * model.v_head_dim
    ranks = ctx.c / ctx.exchanging
    merged = (ranks - 1.0) * outputs * _MERGE_BYTES / ctx.hbm_bytes_per_s
    payload = ctx.tokens * ctx.c * kv / ctx.exchanging * _ACTIVATION_BYTES
    once = np.where(ranks > 1, all_gather_s(payload, ctx.ring_group), 0.0)
    forward = exposed_s(once, attention.forward, OVERLAP_SLOWDOWN)
    backward = exposed_s(2.0 * once, attention.backward, OVERLAP_SLOWDOWN)
    return PassSeconds(forward=forward + merged, backward=backward + 2.0 * merged)


@each_way
def expert_parallel(ctx: Context) -> PassSeconds:
    """Return dispatch and combine of routed tokens; the backward pass repeats both.

    Under expert tensor parallelism each is followed by an all-gather (a reduce-scatter) of the
    routed tokens among the ranks that share an expert.

    Where another micro-batch hides them, a third of a backward pass can do so only if weight gradients,
    one of its two products, are put off (``delay_wgrad``). DualPipe-V hides those of the passes that it
    runs in pairs, a forward and a whole backward pass (``paired_passes``).
    """
    moe = ctx.model.moe
    if moe is None:
        return ctx.nothing
    facts, constants = ctx.facts, ctx.constants
    visits = ctx.moe_tokens * dispatched_copies(ctx, moe) * ctx.expert_load
    sent = visits * ctx.model.expert_width * _ACTIVATION_BYTES
    once = _DISPATCHERS.get(facts.moe_dispatcher, 1.0) * all_to_all_s(sent, ctx.expert_group)
    once = np.where(ctx.e > 1, once, 0.0)
    out = once * (_LOW_PRECISION_BYTES / _ACTIVATION_BYTES if facts.low_precision_dispatch else 1.0)
    gathered: FloatArray | float = 0.0
    if (ctx.et > 1).any():
        routed = ctx.moe_tokens * moe.top_k * ctx.et * ctx.model.expert_width * _ACTIVATION_BYTES
        gathered = all_gather_s(routed, ctx.expert_tensor_group)
    forward, backward = out + once + 2.0 * gathered, 2.0 * (once + gathered)
    if facts.overlap_experts:
        hidden = experts_overlap(ctx.columns, ctx.model)
        seen = constants.expert_exposed
        late = seen if facts.delay_wgrad else seen + (1.0 - seen) * _WEIGHT_GRADIENTS
        forward = forward * np.where(hidden, seen, 1.0)
        backward = backward * np.where(hidden, late, 1.0)
        paired = np.where(hidden, 0.0, paired_passes(ctx.columns))
    else:
        paired = paired_passes(ctx.columns)
    left = 1.0 - paired * (1.0 - constants.expert_exposed)
    return PassSeconds(forward=forward * left, backward=backward * left)


def dispatched_copies(ctx: Context, moe: MoeSpec) -> FloatArray | float:
    """Return how often a token leaves its rank, however it is routed; copies that stay count as well.

    An all-to-all sends it to each of its ``top_k`` experts, an all-gather to every rank. DeepEP and
    HybridEP send it once to a rank in an island, and once to an island that has several of its experts:
    to ``k (1 - (1 - 1/k)^top_k)`` of k. Routing limited to groups of experts keeps it from further ones.
    """
    if ctx.facts.moe_dispatcher == "allgather":
        return ctx.e
    if not ctx.facts.deduplicates:
        return float(moe.top_k)
    islands = ctx.expert_group.islands
    if ctx.facts.balances_by_neighbours and ctx.facts.moe_force_balance:
        places = np.where(islands > 1, islands, ctx.e)  # experts of one place follow each other
        return np.maximum(moe.top_k * places / moe.num_experts, 1.0)
    groups, chosen = ctx.facts.routing_groups
    nearest = chosen * np.maximum(islands / groups, 1.0) if groups > 1 else islands
    across = np.minimum(distinct_places(islands, moe.top_k), nearest)
    return np.where(islands > 1, across, distinct_places(ctx.e, moe.top_k))


def _parts(ctx: Context) -> float:
    return ctx.model.mlp_matrices + 2.0 if ctx.facts.gathers_modules else 1.0


def _sharded_s(
    ctx: Context, weights: Weights, element_bytes: FloatArray | float, group: Group | None = None
) -> FloatArray:
    """Return an all-gather (or reduce-scatter) of one layer's weights over its shard sets, or ``group``.

    Of lists with a tensor for each rank, each is copied to or from the flat buffer that travels; so are
    DeepSpeed's modules, in the stream of the collective (0.19 ``partition_parameters.py
    AllGatherCoalescedHandle.wait``, ``stage3.py __add_grad_to_ipg_bucket``).
    """
    seconds, group = np.zeros_like(ctx.t), group or ctx.shard_group
    if ctx.facts.gathers_tensors or ctx.facts.gathers_modules:
        moved = (weights.dense + weights.routed) * (2.0 * np.maximum(element_bytes, 2.0))
        seconds = np.where(group.size > 1, moved / ctx.hbm_bytes_per_s, 0.0)
    if weights.dense.any():
        parts = _parts(ctx)
        payload = weights.dense * (element_bytes / parts)
        copies = TENSOR_COPY_S * ctx.operators.host * group.size if ctx.facts.gathers_tensors else 0.0
        seconds = seconds + parts * (all_gather_s(payload, group) + copies)
    if weights.routed.any():
        routed = weights.routed * np.maximum(element_bytes, ctx.sharding.gathered_expert_bytes)
        seconds = seconds + all_gather_s(routed, ctx.expert_replicas.shard_set)
    return seconds


def weight_gathers(
    ctx: Context, weights: Weights, trained: Weights, passes: PassSeconds, *, matrices: float | None
) -> PassSeconds:
    """Return the seconds that a part's weights and gradients travel in each pass.

    Args:
        ctx: the rows.
        weights: of a layer, or an end of the model; on a rank, (n,).
        trained: those of them with gradients.
        passes: seconds of the part.
        matrices: number of a layer's dense ones, 0 if all are routed; None: an end of the model.
    """
    found, sharding = ctx.nothing, ctx.sharding
    if any(rows.any() for rows in (*sharding.gathers_in_passes, sharding.reduces_every_pass)):
        found = _zero_gathers(ctx, weights, trained, passes, in_layer=matrices is not None)
    if not _shares_weights(ctx):
        return found
    return found + _shard_gathers(ctx, weights, trained, passes, matrices)


def _zero_gathers(
    ctx: Context, weights: Weights, trained: Weights, passes: PassSeconds, *, in_layer: bool
) -> PassSeconds:
    """Return the seconds that passes wait for ZeRO's gathers and reductions (see ``sharding``).

    Both run under the passes but for a least share, as in ``context_parallel``. A framework may wait for
    its reductions instead, so that all of them is seen.

    Args:
        ctx: the rows.
        weights: what passes gather, on a rank, (n,).
        trained: those of them with gradients, which are reduced.
        passes: seconds of the part. Recomputation belongs to the backward pass.
        in_layer: whether the part is a layer. Weights of the model's ends travel in 2 bytes, and once: the
            backward pass of the head follows its forward pass, and the embedding's needs no weights.
            Torch's pipeline runtime drops and gathers them as any others.
    """
    first, later, replayed = _gathered_s(ctx, weights, ctx.layer_bytes_sent if in_layer else 2.0)
    if in_layer and ctx.facts.gathers_modules:  # what a replay has gathered stays for the backward pass
        later = np.where(ctx.full & ~_are_let_go(weights), replayed, later)
    in_forward, in_backward = ctx.sharding.gathers_in_passes
    gather = later * in_backward * (in_layer | ctx.sharding.in_torch_pipeline)
    reduction, hides = _reductions_s(ctx, trained), ~ctx.sharding.waits_for_reductions
    backward = passes.backward + ctx.full * passes.forward * in_layer
    waits = _unhidden_s(ctx, weights, gather + reduction * hides, backward)
    waited = PassSeconds(
        forward=_unhidden_s(ctx, weights, first * in_forward, passes.forward),
        backward=waits + np.where(hides, 0.0, reduction),
    )
    if not ctx.facts.copies_units:
        return waited
    counts = in_forward, in_backward * (in_layer | ctx.sharding.in_torch_pipeline)
    return waited + _copied_s(ctx, weights, trained, counts, ctx.layer_bytes_sent if in_layer else 2.0)


def _copied_s(
    ctx: Context,
    weights: Weights,
    trained: Weights,
    gathers: tuple[FloatArray, FloatArray],
    sent_bytes: float,
) -> PassSeconds:
    """Return the seconds that copies round FSDP2's collectives take, which nothing hides.

    The stream that computes copies a gathered unit out of the buffer that travelled (read and written), and
    gradients into the one that will (2 bytes or, of fp32 weights, 4 are read, those that travel written):
    torch 2.13 ``fsdp/_fully_shard/_fsdp_collectives.py foreach_all_gather_copy_out``,
    ``foreach_reduce_scatter_copy_in``. A shard set of one rank copies nothing.
    """
    forward, backward = gathers
    out = (weights.dense + weights.routed) * (2.0 * sent_bytes)
    reduced = ctx.sharding.reduces_every_pass * (2.0 + ctx.sharding.gradient_bytes_sent)
    per_byte_s = (ctx.columns.zero_shard_size != 1) / ctx.hbm_bytes_per_s
    return PassSeconds(
        forward=out * forward * per_byte_s,
        backward=(out * backward + (trained.dense + trained.routed) * reduced) * per_byte_s,
    )


def _reductions_s(ctx: Context, trained: Weights) -> FloatArray:
    """Return the seconds of reducing gradients in every backward pass; 0 where only the last one does."""
    sent_bytes, whole = ctx.sharding.gradient_bytes_sent, ctx.sharding.all_reduces
    seconds = _sharded_s(ctx, trained, sent_bytes)
    if ctx.facts.quantized_reductions:
        seconds = _exchanged_s(ctx, trained)
    if ctx.facts.replicas_reduced_every_pass:
        seconds = seconds + all_reduced_s(ctx, trained, sent_bytes, shards=True)
    if whole.any():
        seconds = np.where(whole, all_reduced_s(ctx, trained, sent_bytes), seconds)
    if ctx.offloads_gradients.any():
        seconds = seconds + _kept_s(ctx, trained)
    return np.where(ctx.sharding.reduces_every_pass, seconds, 0.0)


# Bytes that casting weights for a gather reads and writes of each gathered one: 1 and 2 (the shard that is
# cast before is a rank's own alone). Of gradients in 4 bits: 2 and 1/2 before the first all-to-all, 1/2
# after it (DeepSpeed 0.19 ``partition_parameters.py _all_gather_coalesced``, ``all_to_all_quant_reduce``).
_CAST_BACK_BYTES, _CAST_GRADIENT_BYTES = 3.0, 3.0
_CAST_BYTES = 2.0  # of a weight that FSDP has cast for the products


def _gathered_s(
    ctx: Context, weights: Weights, element_bytes: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the mean gather of forward passes, one of a backward pass and one of a replay, in seconds.

    With secondary shards the first forward pass of a step gathers the shards of all ranks and leaves the
    second set behind, which every later pass gathers (ZeRO++ hpZ, arXiv:2306.10209, section 3.2; DeepSpeed
    0.19 ``partition_parameters.py all_gather_coalesced``, ``stage3.py invalidate_secondary_tensor``).
    Before DeepSpeed 0.13.2 (pull request 4906) only backward passes gather from the second set. A replay
    gathers over all ranks, except its first module, which the backward pass of the layer above prefetches.
    Weights travel in 8 bits if asked, with a scale for some thousands of them (qwZ, section 3.1). A shard
    set of one rank sends nothing, and casts whole fp32 weights (torch 2.13
    ``fsdp/_fully_shard/_fsdp_param.py all_gather_inputs``); of several ranks each casts its part.
    """
    cast: FloatArray | float = 0.0
    if ctx.facts.quantized_gathers:
        element_bytes = min(element_bytes, 1.0)
        cast = (weights.dense + weights.routed) * (_CAST_BACK_BYTES / ctx.hbm_bytes_per_s)
        cast = np.where(ctx.shard_group.size > 1, cast, 0.0)
    elif ctx.facts.weight_bytes > _CAST_BYTES and not ctx.frozen:
        moved = (weights.dense + weights.routed) * (ctx.facts.weight_bytes + _CAST_BYTES)
        cast = np.where(ctx.columns.zero_shard_size == 1, moved / ctx.hbm_bytes_per_s, 0.0)
    whole = _sharded_s(ctx, weights, element_bytes) + cast
    if ctx.offloads_weights.any():
        whole = _fetched_s(ctx, weights, whole)
    if not ctx.has_secondary_shards.any():
        return whole, whole, whole
    size = np.minimum(ctx.shard_group.size, ctx.facts.secondary_shard_size)
    near = _sharded_s(ctx, weights, element_bytes, replace(ctx.shard_group, size=size)) + cast
    later = np.where(ctx.has_secondary_shards, _fetched_s(ctx, weights, near), whole)
    if not ctx.facts.secondary_in_forward:
        return whole, later, whole + (later - whole) / _parts(ctx)
    return later + (whole - later) / np.maximum(ctx.columns.num_microbatches, 1), later, later


# Bytes of an element that weight shards gather in the products' format, with the scales of its blocks; of
# other recipes they gather bf16 (Megatron-LM d98e8a64 ``docs/api-guide/core/
# generalized_tensor_parallel.md``, section 1.3, "Communication volume breakdown").
SHARDED_BYTES: Mapping[str, float] = {"mxfp8": 1.0 + 1.0 / 32.0, "nvfp4": 0.5 + 1.0 / 16.0}


def _shard_gathers(
    ctx: Context, weights: Weights, trained: Weights, passes: PassSeconds, matrices: float | None
) -> PassSeconds:
    """Return the seconds that ranks which share weights gather them and scatter gradients' sums.

    Every pass gathers each matrix by itself, and each backward pass reduces and scatters its gradient, in
    the dtype that gradients add up in. One matrix is fetched ahead of the products, an expert layer's a
    layer ahead, so that passes hide all but a least share (section 1.1 of that guide). An end of the
    model travels in bf16.
    """
    gather = _shards_gathered_s(ctx, weights, matrices)
    reduce = _divided_s(ctx, trained, ctx.facts.gradient_bytes, matrices or 1.0)
    return PassSeconds(
        forward=exposed_s(gather, passes.forward, ctx.constants.gather_exposed),
        backward=exposed_s(gather + reduce, passes.backward, ctx.constants.gather_exposed),
    )


def _shares_weights(ctx: Context) -> bool:
    return bool((ctx.g > 1).any() or (ctx.ge > 1).any())


def _shards_gathered_s(ctx: Context, weights: Weights, matrices: float | None) -> FloatArray:
    each = 2.0 if matrices is None else SHARDED_BYTES.get(ctx.facts.precision_recipe, 2.0)
    return _divided_s(ctx, weights, each, matrices or 1.0)


_EXPERT_GATHERS = 2.0  # of all experts' first matrices together, and of their second ones


def _divided_s(ctx: Context, weights: Weights, element_bytes: float, matrices: float) -> FloatArray:
    """Return gathers (or scattered sums) of a part's matrices over the ranks that share each."""
    dense = (weights.dense - weights.whole) * ctx.g * (element_bytes / matrices)
    seconds = np.where(ctx.g > 1, matrices * all_gather_s(dense, ctx.weight_group), 0.0)
    if not weights.routed.any():
        return seconds
    routed = weights.routed * ctx.ge * (element_bytes / _EXPERT_GATHERS)
    experts = _EXPERT_GATHERS * all_gather_s(routed, ctx.expert_weight_group)
    return seconds + np.where(ctx.ge > 1, experts, 0.0)


def _shard(ctx: Context, weights: Weights) -> FloatArray:
    dense, routed = ctx.dense_replicas.sharing, ctx.expert_replicas.sharing
    return weights.dense / dense + weights.routed / routed


def _fetched_s(ctx: Context, weights: Weights, gather: FloatArray) -> FloatArray:
    """Return a gather of shards that come from the host: each rank first copies its own over its own link.

    The copy is in the gather's stream (DeepSpeed 0.19 ``partition_parameters.py``), a drive is read ahead
    of both (``partitioned_param_coordinator.py __prefetch_nvme_param_partitions``; ZeRO-Infinity,
    arXiv:2104.07857, section 6.2).
    """
    sent = _held_bytes(ctx, weights)
    read = np.where(ctx.swaps_weights, sent / ctx.host.nvme_read_bytes_per_s, 0.0)
    found = gather + fetched_s(ctx, weights)
    return np.where(ctx.offloads_weights, np.maximum(found, read), gather)


def fetched_s(ctx: Context, weights: Weights) -> FloatArray:
    """Return how long a rank copies its own shard of offloaded weights from the host, (n,)."""
    copied_s = _held_bytes(ctx, weights) / ctx.host.link_bytes_per_s
    return np.where(ctx.offloads_weights, copied_s, 0.0)


def _held_bytes(ctx: Context, weights: Weights) -> FloatArray:
    plain = 2.0 if ctx.frozen and not ctx.facts.casts_frozen else ctx.facts.weight_bytes
    held = ctx.layer_bytes_sent if ctx.packed else plain
    return np.asarray(held * _shard(ctx, weights))


def _kept_s(ctx: Context, trained: Weights) -> FloatArray:
    """Copy gradients that are kept on the host to the GPU and back for every addition (``stage3.py:1900``).

    Or there once, where the CPU reads both and writes their sum from the second micro-batch on; autograd
    waits for either (torch 2.13, ``_fsdp_collectives.py foreach_reduce``).
    """
    kept = ctx.facts.gradient_bytes * _shard(ctx, trained)
    if ctx.facts.adds_gradients_on_host:
        later = 1.0 - 1.0 / np.maximum(ctx.columns.num_microbatches, 1)
        seconds = kept / ctx.host.link_bytes_per_s + later * 3.0 * kept / ctx.host.memory_bytes_per_s
    else:
        seconds = 2.0 * kept / ctx.host.link_bytes_per_s
    return np.where(ctx.offloads_gradients, seconds, 0.0)


def _exchanged_s(ctx: Context, trained: Weights) -> FloatArray:
    """Return two all-to-alls of a layer's gradients in 4 bits: inside islands, then of their sums across.

    Each rank of an island is left with the sum over the island of its part of the gradients, which it sums
    over the islands with the ranks of equal position (ZeRO++ qgZ, arXiv:2306.10209, section 3.3). Without
    ZeRO-3 nothing is cast, which no launcher allows.
    """
    group, count = ctx.shard_group, trained.dense + trained.routed
    inside = replace(group, size=group.in_island, world=None)
    across = replace(group, size=group.islands, stride=group.stride * group.in_island, world=None)
    sent, parts = count * (QUANTIZED_GRADIENT_BYTES / _parts(ctx)), _parts(ctx)
    travels = all_to_all_s(sent, inside) + all_to_all_s(sent / group.in_island, across)
    cast = np.where(group.size > 1, count * (_CAST_GRADIENT_BYTES / ctx.hbm_bytes_per_s), 0.0)
    return parts * travels + cast


def replayed_gathers(ctx: Context, weights: Weights, forward: FloatArray, *, matrices: float) -> FloatArray:
    """Return the gathers that recomputing a layer repeats, hidden under it.

    Ranks that share weights gather them again (section 3.1 of the guide at ``SHARDED_BYTES``). A framework
    that gathers whole blocks keeps them from the recomputation to the backward pass; DeepSpeed, where every
    module's come and go, what it needs again within 1e9 weights (``stage3_max_reuse_distance``).
    """
    again = np.zeros_like(ctx.t)
    if _shares_weights(ctx):
        shared = _shards_gathered_s(ctx, weights, matrices)
        again = exposed_s(shared, forward, ctx.constants.gather_exposed)
    if not ctx.facts.gathers_modules:
        return again
    _, _, gather = _gathered_s(ctx, weights, 2.0)
    gather = np.where(ctx.columns.zero_stage == SHARD_WEIGHTS, gather, 0.0)
    return np.where(_are_let_go(weights), _unhidden_s(ctx, weights, gather, forward), 0.0) + again


def _are_let_go(weights: Weights) -> BoolArray:
    """Mark layers with too many weights to stay from the replay to the backward pass."""
    return np.asarray(2.0 * (weights.dense + weights.routed) > _LIVE_WEIGHTS)


def _unhidden_s(ctx: Context, weights: Weights, seconds: FloatArray, under: FloatArray) -> FloatArray:
    """Return the part of the gathers that the pass above them does not hide.

    Modules of a layer that is too large to stay (``stage3_max_live_parameters``) are not fetched ahead.
    """
    seen = exposed_s(seconds, under, ctx.constants.gather_exposed)
    if not ctx.facts.gathers_modules:
        return seen
    return np.where(weights.dense + weights.routed > _LIVE_WEIGHTS, seconds, seen)


def sent_bytes(ctx: Context) -> FloatArray:
    """Return the bytes that a rank sends to its pipeline neighbour for one micro-batch, of all streams.

    With the sums of earlier blocks that later layers attend to (the mean over layers).
    """
    split = ctx.t if ctx.facts.scatter_transfer else np.where(ctx.sequence_parallel, ctx.t, 1.0)
    tokens = sum(share * one.tokens for share, one in ctx.at_lengths)
    width = (ctx.model.num_streams + ctx.model.residual_rows) * ctx.model.hidden_size
    return np.asarray(tokens * width * _ACTIVATION_BYTES / split)


_SHAPE_BYTES = 24.0  # three sizes of 8 bytes


def transfer(ctx: Context) -> FloatArray:
    """Return exposed seconds of one activation between pipeline neighbours, each direction; 0 if pp = 1.

    Where micro-batches differ in length a message with the shape goes ahead of each, for which the device
    is synchronised, so that nothing hides either (``variable_seq_lengths`` of Megatron-LM d98e8a64,
    ``core/pipeline_parallel/p2p_communication.py _communicate_shapes``; DeepSpeed's
    ``runtime/pipe/engine.py _send_tensor_meta``).
    """
    seconds = point_to_point_s(sent_bytes(ctx), ctx.placement.block, ctx.p, ctx.fabric)
    hidden = (ctx.columns.virtual_pipeline_size > 1) & ctx.facts.overlap_transfer
    if ctx.pads_to_longest:
        seconds = seconds + shape_message_s(ctx)
        hidden = np.zeros_like(hidden)
    return np.where(hidden, 0.3, 1.0) * seconds * ctx.constants.transfer_exposed


def shape_message_s(ctx: Context) -> FloatArray:
    """Return seconds of a message that carries the next one's shape between neighbours; 0 if pp = 1."""
    sent = np.full_like(ctx.t, _SHAPE_BYTES)
    return point_to_point_s(sent, ctx.placement.block, ctx.p, ctx.fabric)


# --------------------------------------------------------------------------------------------------
# What a step waits for where its sequences hold documents of unequal length.


@lru_cache(maxsize=16)
def _work_of(filled: FilledSequences, model: ModelSpec) -> Work:
    return filled.work(lambda length: length * model.attended_tokens(length))


def unequal_attention(ctx: Context, attention: PassSeconds) -> PassSeconds:
    """Return the wait in attention that sequences with documents of unequal length cause.

    Ranks that exchange tokens or weights in every layer (experts, ZeRO-3) wait for the busiest of them in
    each micro-batch, stages for the slowest micro-batch in flight, replicas for the busiest at the end of
    the step: each an expected maximum (``Work.expected_maximum``). Parts of a document on the ranks of
    context parallelism are equal (two chunks each, one from either end; Transformer Engine 2, ``thd``).
    """
    filled = ctx.workload.filled
    if filled is None or not ctx.packs:
        return ctx.nothing
    share = _waiting(ctx, _work_of(filled, ctx.model), ctx.micro_batch)
    return PassSeconds(forward=attention.forward * share, backward=attention.backward * share)


def longest_wait(ctx: Context, max_stages: int) -> FloatArray:
    """Return the longest wait for documents with two to ``max_stages`` stages over the rows' own, (n,)."""
    filled = ctx.workload.filled
    if filled is None or ctx.by_document:
        return np.ones_like(ctx.t)
    if ctx.pads_to_longest:
        longest, own = (_waiting_for_longest(ctx, depth) for depth in (max_stages, 0))
    else:
        work = _work_of(filled, ctx.model)
        longest, own = (_waiting(ctx, work, ctx.micro_batch, max_stages=depth) for depth in (max_stages, 0))
    return np.where(own > 0.0, longest / np.maximum(own, 1e-30), 1.0)


def _waiting(
    ctx: Context, work: Work, units: FloatArray, rows: IntArray | None = None, *, max_stages: int = 0
) -> FloatArray:
    """Return how long ranks wait for the busiest of them, over the mean work, shape (rows,).

    Args:
        ctx: the rows' context.
        work: of one unit of a micro-batch: a sequence, or a whole micro-batch.
        units: of a micro-batch, (n,).
        rows: indices of the rows that are asked about; None: all.
        max_stages: ask for the longest wait of pipelines of two to so many stages; 0: of each row's own.
    """
    columns = ctx.columns
    in_step = np.clip(
        np.ceil(ctx.e * ctx.et / (ctx.t * ctx.c)), 1.0, ctx.d
    )  # replicas that exchange in layers
    in_step = np.where(columns.zero_stage >= SHARD_WEIGHTS, ctx.d, in_step)
    shapes = np.stack([in_step, ctx.p, ctx.d, columns.num_microbatches, units], axis=1)
    distinct, shape_of_row = np.unique(
        shapes if rows is None else shapes[rows], axis=0, return_inverse=True
    )
    waits = []
    for replicas, stages, *others in distinct.tolist():
        look()
        depths = range(2, max_stages + 1) if max_stages else (stages,)
        waits.append(max(work.waited(replicas, depth, *others) for depth in depths))
    return np.array(waits)[shape_of_row.ravel()]


@lru_cache(maxsize=64)
def _padded_work(filled: FilledSequences, model: ModelSpec, size: int) -> Work:
    """Return the work of a whole micro-batch that is padded to the longest of ``size`` documents."""
    tokens, which = np.unique(filled.longest(size), return_inverse=True)
    each = np.array([length * model.model_flops_per_token(int(length)) for length in tokens.tolist()])
    return Work.of(each[which.ravel()])


def _waiting_for_longest(ctx: Context, max_stages: int = 0) -> FloatArray:
    """Return how long ranks wait, over the mean work, for micro-batches padded to their longest document.

    ``max_stages`` as in ``_waiting``. A whole micro-batch is one unit of work, shape (n,).
    """
    filled, waits = ctx.workload.filled, np.zeros_like(ctx.t)
    for size in np.unique(ctx.micro_batch).tolist() if filled is not None else ():
        rows = np.flatnonzero(ctx.micro_batch == size)
        look()
        work = _padded_work(filled, ctx.model, int(size))
        waits[rows] = _waiting(ctx, work, np.ones_like(ctx.t), rows, max_stages=max_stages)
    return waits


# Ranks start a group of documents together; it is full once their work differs by at most this share
# (Megatron-LM d98e8a64 ``pipeline_parallel/hybrid_cp_schedule.py next_hdp_group``: ``delta``).
_UNBALANCED = 0.05


@dataclass(frozen=True, slots=True)
class OfLengths:
    """Weights of ``Context.at_lengths`` for micro-batches that differ in length."""

    shares: tuple[FloatArray, ...]  # of each length, (n,)
    grows: FloatArray  # waiting over what the longest takes beyond the shortest, (n,)
    unbalanced: float = 0.0  # waiting over the mean, where passes are dealt out to ranks by their work

    @classmethod
    def of(cls, ctx: Context) -> OfLengths:
        """Return the weights of rows with such batching.

        Equal seconds, such as launches, cause no wait: between the shortest micro-batch and the
        longest seconds grow with FLOPs, of which the mean waits as in ``Work``.
        """
        at = ctx.at_lengths
        if ctx.by_document:
            wait = _UNBALANCED if len(at) > 1 else 0.0
            return cls(tuple(share for share, _ in at), np.zeros_like(ctx.t), wait)
        flops = [own.seq_length * ctx.model.model_flops_per_token(round(own.seq_length)) for _, own in at]
        mean = sum((share * own for (share, _), own in zip(at, flops, strict=True)), np.zeros_like(ctx.t))
        grows = mean / max(flops[-1] - flops[0], 1.0) * _waiting_for_longest(ctx)
        return cls(tuple(share for share, _ in at), grows)

    def mean(self, each: Sequence[FloatArray]) -> FloatArray:
        """Return the mean of seconds at each length, shape (n,) or (n, parts)."""
        rows = _paired(each[0])
        return sum((share[rows] * one for share, one in zip(self.shares, each, strict=True)), np.zeros(1))

    def waited(self, each: Sequence[FloatArray]) -> FloatArray:
        """Return how long others wait beyond that mean, in the same shape."""
        grown = self.grows[_paired(each[0])] * (each[-1] - each[0])
        return np.asarray(grown + self.unbalanced * self.mean(each))

    def whole(self, each: Sequence[FloatArray]) -> FloatArray:
        """Return the mean and the wait beyond it."""
        return np.asarray(self.mean(each) + self.waited(each))


def _paired(seconds: FloatArray) -> tuple[slice | None, ...]:
    """Return the index that aligns one value of each row with all of its seconds."""
    return (slice(None),) + (None,) * (seconds.ndim - 1)
