"""Gradients, parameters and optimizer: the work after each micro-batch and after the last, by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.collectives.collectives import Group, all_gather_s, all_reduce_s
from meshwright.profiles.frameworks import FOREACH
from meshwright.profiles.optimizers import USUAL_INTERVAL
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.context import Context, PassSeconds, Replicas
from meshwright.solver.cost.launches import launches_left
from meshwright.solver.cost.low_rank import SVD_FLOPS_PER_S, low_rank
from meshwright.solver.cost.orthogonal import ITERATIONS, dealt_s
from meshwright.solver.cost.paging import PAGE_COPIES
from meshwright.solver.cost.parameters import Weights, copied_embedding
from meshwright.solver.cost.sharding import SHARD_GRADIENTS, SHARD_WEIGHTS
from meshwright.solver.cost.ways import each_way

# --------------------------------------------------------------------------------------------------
# What is seen of collectives that run during computing.


# What overlapped communication slows computing by: 1.126 on 2 x 8 A100 (Galvatron, overlap_coefficient),
# 1.15 (Sailor, arXiv:2504.17096).
OVERLAP_SLOWDOWN = 0.13


def exposed_s(seconds: FloatArray, hiding_s: FloatArray, least: FloatArray | float) -> FloatArray:
    """Return the visible part of a collective that runs during ``hiding_s`` of computing.

    ``max(x - h, 0)`` is left over. Of what runs at the same time at least a share is seen as well: both
    use the GPU's multiprocessors and memory, so computing goes slower meanwhile.
    """
    hidden = np.minimum(seconds, hiding_s)
    return np.asarray(seconds - hidden + least * hidden)


_OUTPUT_BYTES = 2.0  # of one element that a product writes
_GRAPHED_STEP = 0.15  # of what a step takes once: the optimizer's launches go, data loading stays
_MOSTLY = 0.5
_WEIGHT_BYTES, _FP32_BYTES = 2.0, 4.0
_ADAMW_STATES = 8.0  # bytes that ``optimizer_bytes`` counts in addition to the fp32 copy
# A gather of lists of tensors (nanotron, ``distributed.py all_gather_coalesced``): for each tensor and rank
# Python slices it twice, views it in a flat buffer and launches a copy, 6 microseconds on the host of a DGX
# A100 (ZeRO-1 against none on the open runs); its bytes are flattened, spread and copied back, each 2 + 2.
TENSOR_COPY_S, _TENSOR_COPY_BYTES = 6e-6, 12.0
_BUFFER_BYTES = 12.0  # write to zero it, read and write to scale it, fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Seconds once per step of every part, shape (P, n)."""

    data_parallel: FloatArray
    optimizer: FloatArray


def _shared_s(
    collective: Callable[[FloatArray, Group], FloatArray], payload: FloatArray, group: Group, ctx: Context
) -> FloatArray:
    """Return a part's share of a collective in which its bytes travel with those of other parts."""
    together = _together(payload, ctx)
    return collective(payload * together, group) / together


def _together(payload_bytes: FloatArray, ctx: Context) -> FloatArray:
    """Return how many parts' bytes one collective takes: no more than a bucket has room for.

    Of a part that is larger than a bucket less than one (DeepSpeed 0.19 ``stage_1_and_2.py
    reduce_independent_p_g_buckets_and_remove_grads``, ``allgather_bucket_size``). A view is sent when it is
    full; DeepSpeed's buffers are priced as sent with each layer, however large they are.
    """
    if not ctx.buckets.any():
        return ctx.layers_together
    most = ctx.layers_together if ctx.facts.keeps_buckets else ctx.layers_of_rank
    fits = ctx.bucket_bytes / np.maximum(payload_bytes, 1.0)
    if not ctx.facts.bucket_bytes:  # of the framework's own choice: no matrix is cut
        fits = np.maximum(fits, 1.0)
    return np.where(ctx.buckets, np.minimum(most, fits), ctx.layers_together)


def _last_bucket(weights: FloatArray, ctx: Context) -> FloatArray:
    """Return the share of a part's gradients in the last bucket, which no computing is left to hide.

    The last layer's own exchange is part of what is seen of every collective (``OVERLAP_SLOWDOWN``). A
    buffer that is kept is priced as sent with each layer.
    """
    together = _together(weights * ctx.sharding.gradient_bytes_sent, ctx)
    cut = ctx.buckets & (not ctx.facts.keeps_buckets)
    return np.where(cut, np.maximum(together - 1.0, 0.0) / ctx.layers_of_rank, 0.0)


def _exchange_s(
    ctx: Context, weights: FloatArray, sent_bytes: FloatArray, replicas: Replicas
) -> tuple[FloatArray, FloatArray]:
    """Return gradients' and parameters' exchange of a part's weights (P, n); 0 of frozen parts.

    Parameters of a part are ``sent_bytes`` where they are gathered. ``Sharding`` gives what is done once a
    step. Stage 0 all-reduces gradients (twice the ring volume); stage 1 reduce-scatters gradients,
    unless the framework all-reduces there too, and all-gathers weights (Rajbhandari et al. 2020,
    arXiv:1910.02054, section 7). Where a shard set is smaller than the group (hybrid sharding, Zhao et
    al. 2023, arXiv:2304.11277, section 3.2.2), its replicas all-reduce what it holds.
    """
    inner, every = replicas.shard_set, ctx.sharding.reduces_every_pass
    payload = weights * ctx.sharding.gradient_bytes_sent
    scatter = np.where(every, 0.0, _shared_s(all_gather_s, payload, inner, ctx))
    done = every & ctx.facts.replicas_reduced_every_pass
    shards = payload / replicas.sharing
    across = np.where(done, 0.0, _shared_s(all_reduce_s, shards, replicas.across, ctx))
    whole = np.where(every, 0.0, _shared_s(all_reduce_s, payload, replicas.group, ctx))
    gradients = np.where(ctx.sharding.all_reduces, whole, scatter + across)
    gathered = _shared_s(all_gather_s, sent_bytes, inner, ctx)
    parameters = np.where(ctx.sharding.gathers_once, gathered, 0.0)
    trained = weights.any(axis=1, keepdims=True)
    return np.where(trained, gradients, 0.0), np.where(trained, parameters, 0.0)


def all_reduced_s(
    ctx: Context, weights: Weights, element_bytes: FloatArray, *, shards: bool = False
) -> FloatArray:
    """Return an all-reduce of one part over all ranks that replicate it, shape (n,).

    ``shards``: of its shards alone, over the replicas of its shard sets.
    """
    seconds = np.zeros_like(ctx.t)
    for own, replicas in ((weights.dense, ctx.dense_replicas), (weights.routed, ctx.expert_replicas)):
        if own.any():
            payload, group = own * element_bytes, replicas.group
            if shards:
                payload, group = payload / replicas.sharing, replicas.across
            seconds = seconds + _shared_s(all_reduce_s, payload, group, ctx)
    return seconds


def _hiding_s(ctx: Context, passes: PassSeconds) -> FloatArray:
    """Return seconds of computing that can hide each part's exchange.

    Gradients are reduced under the last backward pass, weights gathered under the next forward
    pass. An interleaved rank goes on with its other chunks for up to pp micro-batches meanwhile.
    """
    rounds = np.minimum(ctx.p, ctx.columns.num_microbatches)
    interleaved = ctx.columns.virtual_pipeline_size > 1
    return (passes.forward + passes.backward) * np.where(interleaved, rounds, 1.0)


_CLIPPED = 3.0  # times that clipping moves a gradient: read for the norm, read and written to be scaled


def tail_of(
    ctx: Context,
    trained: Sequence[Weights],
    passes: Sequence[PassSeconds],
    tensors: Sequence[float],
    counts: Sequence[float],
) -> Tail:
    """Return exposed exchange and optimizer time of every part's trained weights.

    Where a framework overlaps, little of the exchange is seen during the passes (``exposed_s``); torch's
    pipeline runtime hides the gathers alone, under a forward pass. On top of the optimizer's traffic, a
    kept gradient buffer is zeroed and scaled once (12 bytes a weight).

    Args:
        ctx: the rows.
        trained: weights of one of each part.
        passes: seconds of one micro-batch's passes of each part.
        tensors: number of tensors that hold each part's weights.
        counts: how many of each part the model has.
    """
    weights = Weights(
        dense=np.array([own.dense for own in trained]),
        routed=np.array([own.routed for own in trained]),
        ends=np.array([own.ends + np.zeros_like(ctx.t) for own in trained]),
        whole=np.array([own.whole + np.zeros_like(ctx.t) for own in trained]),
    )
    hiding = PassSeconds(
        forward=np.array([part.forward for part in passes]),
        backward=np.array([part.backward for part in passes]),
    )
    exchange_s = _seen_exchange_s(ctx, weights, hiding)
    if ctx.facts.gathers_tensors:
        exchange_s = exchange_s + _copied_back_s(ctx, weights, tensors)
    if ctx.facts.copies_units:
        exchange_s = exchange_s + _copied_once_s(ctx, weights)
    if (ctx.g > 1).any():
        exchange_s = exchange_s + _left_whole_s(ctx, weights)
    update_s = np.maximum(_update_s(ctx, weights, hiding, counts), _launches_s(ctx, tensors))
    return Tail(data_parallel=exchange_s, optimizer=update_s)


def _seen_exchange_s(ctx: Context, weights: Weights, hiding: PassSeconds) -> FloatArray:
    """Return seconds of reducing gradients and gathering weights that no pass hides, (P, n)."""
    in_2_bytes = weights.ends * ctx.small_copies  # counted as the weights that would send as much
    reduced = weights.dense - in_2_bytes * (1.0 - 2.0 / ctx.sharding.gradient_bytes_sent)
    reduced = reduced + weights.ends * ctx.wide_ends * (4.0 / ctx.sharding.gradient_bytes_sent - 1.0)
    dense_bytes = weights.dense_bytes(ctx.sharding.gathered_bytes)
    gradients_s, parameters_s = _exchange_s(ctx, reduced, dense_bytes, ctx.dense_replicas)
    last_s = _last_bucket(reduced, ctx) * (gradients_s + parameters_s)
    if weights.routed.any():
        expert_bytes = weights.routed * ctx.sharding.gathered_expert_bytes
        experts_s = _exchange_s(ctx, weights.routed, expert_bytes, ctx.expert_replicas)
        last_s = last_s + _last_bucket(weights.routed, ctx) * sum(experts_s)
        gradients_s, parameters_s = gradients_s + experts_s[0], parameters_s + experts_s[1]
    exchange_s = gradients_s + parameters_s
    gathered_s = exposed_s(parameters_s, hiding.forward, OVERLAP_SLOWDOWN)
    overlapped_s = last_s + exposed_s(exchange_s - last_s, _hiding_s(ctx, hiding), OVERLAP_SLOWDOWN)
    visible_s = np.where(ctx.sharding.in_torch_pipeline, gradients_s + gathered_s, exchange_s)
    return np.where(ctx.sharding.hides_reductions, overlapped_s, visible_s)


def _update_s(ctx: Context, weights: Weights, hiding: PassSeconds, counts: Sequence[float]) -> FloatArray:
    """Return seconds of the optimizer's update, on the GPU and on the host, (P, n)."""
    own_dense = weights.dense / ctx.dense_replicas.sharing
    own_dense = own_dense + weights.ends * ctx.wide_ends  # twice the bytes
    own_routed = weights.routed / ctx.expert_replicas.sharing
    updated = own_dense + own_routed
    moved_bytes = updated * ctx.constants.update_bytes * ctx.moved_share
    moved_bytes = moved_bytes + updated * _CLIPPED * ctx.facts.gradient_bytes * ctx.facts.clips_apart
    if ctx.facts.optimizer_kernel == FOREACH:
        moved_bytes = moved_bytes + updated * ctx.optimizer.foreach_moved_bytes
    if ctx.facts.main_gradient:
        adds_whole = ctx.sharding.adds_whole_gradients
        buffered = np.where(adds_whole, weights.dense + weights.routed, updated)
        moved_bytes = moved_bytes + buffered * _BUFFER_BYTES
    update_s = moved_bytes / ctx.hbm_bytes_per_s
    if ctx.optimizer.newton_schulz:
        if ctx.facts.deals_updates:
            update_s = update_s + _dealt_s(ctx, weights, counts)
            update_s = update_s + _orthogonal_s(ctx, np.zeros_like(own_dense), own_routed)
        else:
            update_s = update_s + _orthogonal_s(ctx, own_dense, own_routed)
    if ctx.optimizer.low_rank:
        update_s = update_s + _projected_s(ctx, own_dense)
    # The GPU updates its share of the states while the CPU works: its update is launched first, and the CPU
    # waits for its own gradients alone (Megatron-Core 0.19 ``cpu_offloading/hybrid_optimizer.py step``).
    host_share = ctx.share_offloaded
    if host_share.any():
        on_host_s = _offloaded_s(ctx, host_share * updated, hiding, counts)
        update_s = np.maximum((1.0 - host_share) * update_s, on_host_s)
    if (alone := ctx.offloads_weights & ~ctx.offloads_optimizer).any():
        update_s = update_s + np.where(alone, _returned_s(ctx, updated), 0.0)
    if ctx.facts.cpu_update_interval > 1.0:
        update_s = update_s + _selected_s(ctx, weights)
    if ctx.share_paged.any():
        update_s = update_s + _paged_s(ctx, updated)
    return update_s


def _launches_s(ctx: Context, tensors: Sequence[float]) -> FloatArray | float:
    """Return seconds of launching the operators of a loop over every part's tensors, (P, 1)."""
    if not ctx.optimizer.operators:
        return 0.0
    return np.array(tensors)[:, None] * ctx.optimizer.operators * TENSOR_COPY_S * ctx.operators.host


def _paged_s(ctx: Context, updated: FloatArray) -> FloatArray:
    """Price pages that leave the GPU and come back for the update, of every part, (P, n)."""
    own = ctx.optimizer
    head = own.end_state_bytes if own.head_apart else own.state_bytes
    moments = [own.state_bytes] * (len(updated) - 2) + [own.end_state_bytes, head]
    pages = updated * ctx.share_paged * np.array([own.paged_bytes(one) for one in moments])[:, None]
    return np.asarray(PAGE_COPIES * pages / ctx.host.link_bytes_per_s)


def _left_whole_s(ctx: Context, weights: Weights) -> FloatArray:
    """Return seconds that ranks which share matrices add up gradients of what each has whole, (P, n).

    One all-reduce of the rank's, under nothing (Megatron-LM d98e8a64 ``core/distributed/
    finalize_model_grads.py _allreduce_replicated_grads_over_gtp_remat_group``).
    """
    layers, sent = ctx.layers_of_rank, weights.whole * ctx.facts.gradient_bytes
    return np.where(ctx.g > 1, all_reduce_s(sent * layers, ctx.weight_group) / layers, 0.0)


def _copied_back_s(ctx: Context, weights: Weights, tensors: Sequence[float]) -> FloatArray:
    """Return seconds that weights gathered by lists of tensors take on top of the collective."""
    ranks = ctx.dense_replicas.sharing
    launches = np.array(tensors)[:, None] * ranks * TENSOR_COPY_S * ctx.operators.host
    moved = (weights.dense + weights.routed) * _TENSOR_COPY_BYTES / ctx.hbm_bytes_per_s
    return np.where((ctx.columns.zero_stage == 1) & (ranks > 1), np.maximum(launches, moved), 0.0)


def _copied_once_s(ctx: Context, weights: Weights) -> FloatArray:
    """Return seconds of FSDP2's copies round collectives of once a step, (P, n).

    As those in passes (``communication._copied_s``). Gradients that added up are as wide as on the wire.
    """
    sharded = ctx.columns.zero_stage >= SHARD_GRADIENTS
    sent = ctx.sharding.gradient_bytes_sent
    read = np.where(ctx.columns.num_microbatches > 1, sent, _OUTPUT_BYTES)
    moved = np.where(ctx.sharding.reduces_every_pass, 0.0, read + sent)
    moved = moved + 2.0 * ctx.sharding.gathered_bytes * ctx.sharding.gathers_once
    copies = sharded & (ctx.columns.zero_shard_size != 1)
    return np.where(copies, (weights.dense + weights.routed) * moved / ctx.hbm_bytes_per_s, 0.0)


def _orthogonal_s(ctx: Context, dense: FloatArray, routed: FloatArray) -> FloatArray:
    """Price Newton-Schulz iterations of Muon on the updated weights.

    Five iterations of ``4 m^2 n + 2 m^3`` FLOPs for an m by n matrix, m <= n (Jordan et al. 2024, "Muon":
    at most ``6 m`` FLOPs for one weight and iteration), in bf16 and shared like the states.
    """
    model, moe = ctx.model, ctx.model.moe
    narrow = min(model.hidden_size, moe.ffn_hidden_size) if moe is not None else 0
    flops = ITERATIONS * 6.0 * (dense * model.hidden_size + routed * narrow)
    return flops / ctx.gemm_flops("bf16")


def _dealt_s(ctx: Context, weights: Weights, counts: Sequence[float]) -> FloatArray:
    """Return each layer's share of iterations on matrices that ranks deal out, by weights, (P, n)."""
    layers = weights.dense * (np.arange(weights.dense.shape[0]) < weights.dense.shape[0] - 2)[:, None]
    every = (layers * np.array(counts)[:, None]).sum(axis=0)
    seconds = dealt_s(ctx.model, ctx.dense_replicas.shard_set, ctx.gemm_flops("bf16"))
    return np.asarray(layers / np.maximum(every, 1.0) * seconds)


def _projected_s(ctx: Context, dense: FloatArray) -> FloatArray:
    """Price projections of gradients to a low rank and back, and their decompositions.

    Products are in the gradients' dtype, fp32 without tensor cores (torch's default of
    ``allow_tf32``). Steps between decompositions share the time of one.
    """
    work = ctx.workload
    each = low_rank(ctx.model, ctx.optimizer, work.optimizer_rank)
    rate = ctx.gemm_flops("fp32" if ctx.optimizer.fp32_copy else "bf16")
    trained = dense * (np.arange(dense.shape[0]) < dense.shape[0] - 2)[:, None]  # neither end
    svd_s = each.svd_flops / SVD_FLOPS_PER_S / (work.optimizer_interval or USUAL_INTERVAL)
    return np.asarray(trained * (each.product_flops / rate + svd_s))


# The host also scales a gradient that lies there, once the norm is known, which reads and writes fp32
# (DeepSpeed 0.19 ``stage_1_and_2.py unscale_and_clip_grads``, ``stage3.py``; torch's
# ``clip_grads_with_norm_``), and reads the updated fp32 copy again to cast it for the
# GPU (``stage_1_and_2.py step``; torch casts on the CPU in a copy to the GPU, ``native/cuda/Copy.cu``).
_SCALED_BYTES, _READ_TO_CAST = 8.0, 4.0
# Under DeepSpeed's ZeRO-3 torch casts into unpinned memory: a copy from there is 4 to 5 times as slow on
# nodes of 8 GPUs (pull request 5301, which pins the cast weights of stages 1 and 2; 0.19 ``stage3.py
# _reassign_or_swap_out_partitioned_parameters``).
_UNPINNED = 4.5


def _returned_s(ctx: Context, updated: FloatArray) -> FloatArray:
    """Price weights on their way to the host from an update on the GPU, of every part, (P, n).

    Their fp32 copy goes to memory that is not pinned, and the CPU casts it: it reads 4 bytes of a weight
    and writes 2 (DeepSpeed 0.19 ``stage3.py:2589``; torch ``native/cuda/Copy.cu copy_kernel_cuda``: a copy
    that blocks casts on the CPU, from a tensor of the source's type).
    """
    link_s = _FP32_BYTES * _UNPINNED / ctx.host.link_bytes_per_s
    return updated * (link_s + (_FP32_BYTES + _WEIGHT_BYTES) / ctx.host.memory_bytes_per_s)


def _offloaded_s(
    ctx: Context, updated: FloatArray, under: PassSeconds, counts: Sequence[float]
) -> FloatArray:
    """Price gradients to the host, the update there by bytes of host memory, 2-byte weights back.

    One after the other, as in ZeRO-Offload without its delayed update (arXiv:2101.06840, section 4). Where
    gradients are kept on the host their fp32 sum is copied (DeepSpeed 0.19 ``stage3.py``
    ``_offload_grad_partition_at_boundary``), and weights stay there under ZeRO-Infinity. States on drives
    are read with the gradient that was written there, and written back, group by group without a pipeline
    (``partitioned_optimizer_swapper.py``; arXiv:2104.07857, section 5.2.2). SuperOffload and ZenFlow hide
    most of it (``_hidden_update_s``).
    """
    host, facts = ctx.host, ctx.facts
    if facts.super_offload or facts.cpu_update_interval > 1.0:
        return _hidden_update_s(ctx, updated, under, counts)
    # all bytes and seconds are those of one weight
    gradient_bytes = _FP32_BYTES if facts.offloads_gradients else facts.gradient_bytes
    on_host = ctx.sharding.reduces_every_pass & facts.adds_gradients_on_host  # since each pass
    sent_bytes = np.where(on_host, 0.0, gradient_bytes)
    unpinned = facts.offloads_gradients & (ctx.columns.zero_stage == SHARD_WEIGHTS)
    weight_bytes = _WEIGHT_BYTES * np.where(unpinned, _UNPINNED, 1.0)
    returned_bytes = np.where(ctx.offloads_weights, 0.0, weight_bytes)
    cast_bytes = np.where(ctx.offloads_weights, 0.0, _READ_TO_CAST)
    passed_bytes = _SCALED_BYTES * facts.offloads_gradients + cast_bytes
    link_s = (sent_bytes + returned_bytes) / host.link_bytes_per_s
    each_s = link_s + (ctx.optimizer.moved_bytes + passed_bytes) / host.memory_bytes_per_s
    if ctx.swaps_optimizer.any():
        state_bytes = facts.optimizer_bytes - _ADAMW_STATES + ctx.optimizer.end_state_bytes + _FP32_BYTES
        swapped_s = state_bytes / host.nvme_read_bytes_per_s + state_bytes / host.nvme_write_bytes_per_s
        each_s = each_s + np.where(ctx.swaps_optimizer, swapped_s, 0.0)
    written_s = _WEIGHT_BYTES / host.nvme_write_bytes_per_s
    return updated * (each_s + np.where(ctx.swaps_weights, written_s, 0.0))


# Groups of weights that SuperOffload updates one after the other, as exported. The last one has no backward
# pass above it.
UPDATE_GROUPS = 20


def _hidden_update_s(
    ctx: Context, updated: FloatArray, under: PassSeconds, counts: Sequence[float]
) -> FloatArray:
    """Price updates that a process on the host runs under the passes.

    Weights come back in fp32, cast on the GPU, and the rank waits for them (DeepSpeed 0.19.8
    ``superoffload_stage3.py _reassign_or_swap_out_partitioned_parameters``, ``zenflow_stage_1_and_2.py
    wait_last_update_and_copy``). SuperOffload sends and updates each group as soon as its gradients of the
    last micro-batch are there (``partition_grads``). ZenFlow updates once in several steps of one
    micro-batch each, under those steps. Meanwhile gradients add up on the GPU and lie on the host between
    passes (``stage_1_and_2.py async_accumulate_grad_in_cpu_via_gpu``). That one update is hidden by the
    passes of all parts, and every part waits for its share of what is left.
    """
    host, facts = ctx.host, ctx.facts
    sent_s = updated * (_FP32_BYTES / host.link_bytes_per_s)  # to the host, and as long back
    scaled_s = updated * (_SCALED_BYTES / host.memory_bytes_per_s)  # by the rank, which the passes wait for
    waited_s = sent_s + scaled_s
    computed_s = updated * (ctx.optimizer.moved_bytes / host.memory_bytes_per_s)
    if facts.super_offload:
        hidden_s = sent_s + computed_s
        seen_s = np.maximum(hidden_s - under.backward, hidden_s / UPDATE_GROUPS)
        return np.asarray(seen_s + waited_s)
    steps, of_part = facts.cpu_update_interval, np.array(counts)
    rank_s, passes_s = of_part @ computed_s, steps * (of_part @ (under.forward + under.backward))
    share_seen = np.maximum(rank_s - passes_s, 0.0) / np.where(rank_s > 0.0, rank_s, 1.0)
    # 2-byte gradients go to the host in every pass, and from the second one on come back before
    copies = 1.0 + 2.0 * (steps - 1.0)
    added_s = updated * (copies * _WEIGHT_BYTES / host.link_bytes_per_s)
    return np.asarray((added_s + sent_s + computed_s * share_seen + waited_s) / steps)


# The GPU's update of selected gradients: weights, gradients and two moments of 2 bytes are read, all but
# the gradients written (DeepSpeed 0.19.8 ``zenflow_torch_adam.py _step_without_offload``: ``zeros_like``).
_SELECTED_MOVED_BYTES = 14.0


def _selected_s(ctx: Context, weights: Weights) -> FloatArray:
    """Price the update of the largest gradients, which every rank repeats for whole matrices."""
    moved = (weights.dense + weights.routed) * ctx.facts.selected_gradient_share * _SELECTED_MOVED_BYTES
    return np.where(ctx.offloads_optimizer, moved / ctx.hbm_bytes_per_s, 0.0)


def copies_s(ctx: Context) -> FloatArray:
    """Price adding up both ends' gradients of the embedding that each has a copy of, shape (n,).

    An all-reduce of two ranks, the first and the last stage's, after the gradients' own reduction and
    under nothing (Megatron-Core 0.16, ``finalize_model_grads._allreduce_word_embedding_grads``).
    """
    copied = np.zeros_like(ctx.t) if ctx.frozen else copied_embedding(ctx)
    apart = ctx.placement.block * np.maximum(ctx.p - 1.0, 1.0)
    pair = Group(np.full_like(ctx.t, 2.0), apart, ctx.fabric)
    return np.where(copied > 0, all_reduce_s(copied * ctx.sharding.gradient_bytes_sent, pair), 0.0)


def rank_tail_s(ctx: Context) -> FloatArray:
    """Return the latency of a rank's last collectives: gradient reduction and the norm over all ranks."""
    return np.where(ctx.d > 0, ctx.constants.collective_latency_s, 0.0)


def accumulation(ctx: Context, weights: FloatArray) -> PassSeconds:
    """Price adding weight gradients of one micro-batch to those of the micro-batches before.

    Into an fp32 buffer it is a fact of the framework how; in 2 bytes autograd reads both and writes
    one, from the second micro-batch on. Gradients that are reduced in every pass add up in shards, which is
    left out but for a shard set of one rank, where the shard is the whole. FSDP2
    casts whole ones to the dtype that they are reduced in, then adds there (torch 2.13,
    ``fsdp/_fully_shard/_fsdp_param.py:802-820``): 2 bytes read, 4 written; 2 and 4 read, 4 written.
    """
    facts = ctx.facts
    if ctx.adds_every_gradient:
        moved = np.full_like(ctx.t, facts.accumulation_bytes)
    else:
        each = _OUTPUT_BYTES * (1.0 + ctx.wide_weights)  # gradients of fp32 weights are fp32
        moved = 3.0 * each * (1.0 - 1.0 / ctx.columns.num_microbatches)
    if facts.reduced_gradient_bytes > _OUTPUT_BYTES and not facts.main_gradient:
        cast = 10.0 - 4.0 / ctx.columns.num_microbatches
        moved = np.where(ctx.columns.zero_stage >= SHARD_GRADIENTS, cast, moved)
    kept = ctx.sharding.adds_whole_gradients | (ctx.columns.zero_shard_size == 1)
    seconds = np.where(kept, moved * weights / ctx.hbm_bytes_per_s, 0.0)
    return PassSeconds(forward=np.zeros_like(ctx.t), backward=seconds)


@each_way
def fixed_s(ctx: Context) -> FloatArray | float:
    """Return seconds of every step: data loading, logging, launches of the optimizer."""
    graphed = launches_left(ctx.facts, "dense") < _MOSTLY
    return ctx.constants.fixed_s * (_GRAPHED_STEP if graphed else 1.0)
