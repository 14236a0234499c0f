"""What follows the last micro-batch: gradients, parameters, optimizer; by part of the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.collectives import Group, all_gather_s, all_reduce_s
from solver.columns import FloatArray
from solver.cost.compute import PassSeconds
from solver.cost.context import SHARD_GRADIENTS, SHARD_WEIGHTS, Context
from solver.cost.overlap import OVERLAP_SLOWDOWN, exposed_s
from solver.cost.parameters import Weights, copied_embedding

_WEIGHT_BYTES = 2.0
_BUFFER_BYTES = 12.0  # write to zero it, read and write to scale it, fp32


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Seconds once per step, shape (n,)."""

    data_parallel: FloatArray
    optimizer: FloatArray


def _gather_s(payload_bytes: FloatArray, group: Group, ctx: Context) -> FloatArray:
    """An all-gather (or reduce-scatter) of one part's bytes, which travel with those of other parts."""
    together = _together(ctx)
    return all_gather_s(payload_bytes * together, group, ctx.fabric) / together


def _reduce_s(payload_bytes: FloatArray, group: Group, ctx: Context) -> FloatArray:
    """An all-reduce of one part's bytes, which travel with those of other parts."""
    together = _together(ctx)
    return all_reduce_s(payload_bytes * together, group, ctx.fabric) / together


def _together(ctx: Context) -> FloatArray:
    """Layers whose gradients travel in one collective.

    A framework that overlaps sends a layer as soon as it has it, any other the whole rank at once.
    """
    if ctx.facts.overlap_gradients:
        return np.ones_like(ctx.p)
    return np.maximum(ctx.model.num_layers / ctx.p, 1.0)


def _exchange_s(ctx: Context, weights: FloatArray, group: Group, stride: FloatArray) -> FloatArray:
    """Gradients and parameters of weights that are replicated over ``group``, ``stride`` ranks apart.

    Stage 0 all-reduces gradients (twice the ring volume); stage 1 reduce-scatters gradients and
    all-gathers weights (Rajbhandari et al. 2020, arXiv:1910.02054, section 7). Stage 2 reduces in every
    backward pass, stage 3 gathers in every pass. Where a shard set is smaller than the group (hybrid
    sharding, Zhao et al. 2023, arXiv:2304.11277, section 3.2.2), its replicas all-reduce what it holds.
    """
    sharing, stage = shards(ctx, group), ctx.columns.zero_stage
    inner = ctx.stage_group(sharing, stride)
    replicas = ctx.stage_group(group.size / sharing, stride * sharing)
    payload = weights * ctx.facts.reduced_gradient_bytes
    whole, across = _reduce_s(payload, group, ctx), _reduce_s(payload / sharing, replicas, ctx)
    scatter = _gather_s(payload, inner, ctx)
    parameters = _gather_s(weights * _WEIGHT_BYTES, inner, ctx)
    own = np.where(stage < SHARD_GRADIENTS, scatter, 0.0) + np.where(stage < SHARD_WEIGHTS, parameters, 0.0)
    return np.where(stage == 0, whole, own + across)


def shards(ctx: Context, group: Group) -> FloatArray:
    """Ranks that share the optimizer states of weights replicated over ``group``."""
    whole = np.minimum(group.size, ctx.shard_group.size * group.size / ctx.data_group.size)
    return np.where(ctx.columns.zero_stage > 0, np.maximum(whole, 1.0), 1.0)


def _hiding_s(ctx: Context, passes: PassSeconds) -> FloatArray:
    """Seconds of computing that can hide a part's exchange.

    Gradients are reduced under the last backward pass, weights gathered under the next forward
    pass. An interleaved rank goes on with its other chunks for up to pp micro-batches meanwhile.
    """
    rounds = np.minimum(ctx.p, ctx.columns.num_microbatches)
    interleaved = ctx.columns.virtual_pipeline_size > 1
    return (passes.forward + passes.backward) * np.where(interleaved, rounds, 1.0)


def tail_of(ctx: Context, weights: Weights, passes: PassSeconds) -> Tail:
    """Exposed exchange and optimizer time of one part's trained weights.

    Where a framework overlaps, little of the exchange is seen beside the passes (``exposed_s``). Beside
    the optimizer's own traffic, a kept gradient buffer is zeroed and scaled once (12 bytes a weight).
    """
    exchange = np.zeros_like(ctx.t)
    if weights.dense.any():  # else frozen
        exchange = exchange + _exchange_s(ctx, weights.dense, ctx.data_group, ctx.t)
    if weights.routed.any():
        exchange = exchange + _exchange_s(ctx, weights.routed, ctx.expert_data_group, ctx.e * ctx.et)
    if ctx.facts.overlap_gradients:
        exchange = exposed_s(exchange, _hiding_s(ctx, passes), OVERLAP_SLOWDOWN)
    dense = weights.dense / shards(ctx, ctx.data_group)
    routed = weights.routed / shards(ctx, ctx.expert_data_group)
    updated = dense + routed
    moved = updated * ctx.constants.update_bytes * ctx.optimizer.moved_share
    if ctx.facts.main_gradient:
        whole = ctx.columns.zero_stage < SHARD_GRADIENTS
        moved = moved + np.where(whole, weights.dense + weights.routed, updated) * _BUFFER_BYTES
    seconds = moved / ctx.hbm_bytes_per_s + _orthogonal_s(ctx, dense, routed)
    seconds = np.where(ctx.offloads_optimizer, _offloaded_s(ctx, updated), seconds)
    return Tail(data_parallel=exchange, optimizer=seconds)


def _orthogonal_s(ctx: Context, dense: FloatArray, routed: FloatArray) -> FloatArray | float:
    """Newton-Schulz iterations of Muon on the updated weights; none for other optimizers.

    Five iterations of ``4 m^2 n + 2 m^3`` FLOPs for an m by n matrix, m <= n (Jordan et al. 2024, "Muon":
    at most ``6 m`` FLOPs for one weight and iteration), in bf16 and shared like the states.
    """
    if not ctx.optimizer.newton_schulz:
        return 0.0
    model, moe = ctx.model, ctx.model.moe
    narrow = min(model.hidden_size, moe.ffn_hidden_size) if moe is not None else 0
    flops = 5.0 * 6.0 * (dense * model.hidden_size + routed * narrow)
    return flops / ctx.gemm_flops("bf16")


def _offloaded_s(ctx: Context, updated: FloatArray) -> FloatArray:
    """Gradients to the host, the update there by bytes of host memory, 2-byte weights back.

    One after the other, as in ZeRO-Offload without its delayed update (arXiv:2101.06840, section 4).
    """
    copied = (ctx.facts.gradient_bytes + _WEIGHT_BYTES) / ctx.host.link_bytes_per_s
    return updated * (copied + ctx.optimizer.moved_bytes / ctx.host.memory_bytes_per_s)


def copies_s(ctx: Context) -> FloatArray:
    """Both ends add the gradients of the embedding up that each of them has a copy of, shape (n,).

    An all-reduce of two ranks, the first and the last stage's, after the gradients' own reduction and
    under nothing (Megatron-Core 0.16, ``finalize_model_grads._allreduce_word_embedding_grads``).
    """
    copied = np.zeros_like(ctx.t) if ctx.frozen else copied_embedding(ctx)
    apart = ctx.placement.block * np.maximum(ctx.p - 1.0, 1.0)
    pair = Group.of(np.full_like(ctx.t, 2.0), apart, ctx.fabric)
    return np.where(
        copied > 0, all_reduce_s(copied * ctx.facts.reduced_gradient_bytes, pair, ctx.fabric), 0.0
    )


def rank_tail_s(ctx: Context) -> FloatArray:
    """Latency of a rank's last collectives: gradient reduction and the norm over all ranks."""
    return np.where(ctx.d > 0, ctx.constants.collective_latency_s, 0.0)
