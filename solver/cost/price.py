"""Prices of every row: the one place where compute, communication, tails and memory meet.

A layer pass costs ``(x^8 + floor^8)^(1/8)`` with x its compute and exposed collectives: below the
floor the CPU launches kernels slower than the GPU runs them. A million rows are a few hundred array
operations; nothing here loops over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from meshwright.profiles.adapters import EMBEDDING, HEAD
from meshwright.profiles.collectives.collectives import Group
from meshwright.profiles.model import LayerKind, LayerShape
from meshwright.profiles.profile import Profile
from meshwright.profiles.trained_layers import TRAINED
from meshwright.solver.clock import look
from meshwright.solver.configuration import (
    ALL_LAYERS,
    OFFLOAD,
    Columns,
    FloatArray,
    IntArray,
    distinct,
)
from meshwright.solver.cost.casts import cast_bytes
from meshwright.solver.cost.communication import (
    OfLengths,
    context_parallel,
    expert_parallel,
    fetched_s,
    replayed_gathers,
    tensor_parallel,
    transfer,
    unequal_attention,
    vocabulary_parallel,
    weight_gathers,
)
from meshwright.solver.cost.compute import (
    Gemm,
    core_attention,
    gemm_seconds,
    layer_gemms,
    linear_seconds,
    memory_bound,
    products,
    replayed_s,
    tiled_again_s,
)
from meshwright.solver.cost.context import (
    Context,
    PassSeconds,
    adds_every_gradient,
    context_of,
    facts_as_run,
    is_offloaded,
    on_slowest,
    paired_passes,
    total,
)
from meshwright.solver.cost.fake_quantization import fake_quantized
from meshwright.solver.cost.launches import (
    issued,
    launched,
    launched_again,
    launched_backward,
    launches_left,
    layer_floor_s,
    lead_s,
    runs_modules,
    surplus_s,
)
from meshwright.solver.cost.losses import (
    further_bytes,
    gathered_bytes,
    logits_are_replayed,
    loss_is_fused,
    parts_of_logits,
)
from meshwright.solver.cost.memory import (
    layer_activation_bytes,
    memory_prices,
    one_hot_bytes,
    spilled_s,
    state_bytes,
)
from meshwright.solver.cost.merged_adapters import adapter_moved_bytes, adapter_seconds
from meshwright.solver.cost.parameters import (
    Part,
    Weights,
    again_gemms,
    converted_bytes,
    embedding_weights,
    layer_weights,
    norm_gemms,
    normalized_head_weights,
    output_weights,
    part_weights,
    prediction_copies,
    prediction_weights,
    trained_parts,
    trained_weights,
    unread_products,
    weight_tensors,
)
from meshwright.solver.cost.reference import scoring
from meshwright.solver.cost.residuals import with_residuals
from meshwright.solver.cost.stages import LayerLayout, RowPrices
from meshwright.solver.cost.step_end import (
    OVERLAP_SLOWDOWN,
    accumulation,
    copies_s,
    exposed_s,
    fixed_s,
    rank_tail_s,
    tail_of,
)
from meshwright.solver.cost.timed_layers import (
    beyond_price,
    is_issued,
    issuing_s,
    shared_out,
)
from meshwright.solver.cost.towers import (
    LAYER,
    end_seconds,
    images_of,
    passes_gradients,
    tower_context,
)
from meshwright.solver.cost.ways import DisputedFactError, Ways, each_way
from meshwright.solver.problem import Problem, Workload

# --------------------------------------------------------------------------------------------------
# The part of a backward pass that zero-bubble schedules run later: weight gradients.


def weight_gradients_s(ctx: Context, kinds: tuple[LayerShape, ...]) -> FloatArray:
    """Return seconds of each part's weight gradients for one micro-batch, (n, P); 0 if none is split.

    Of the two products of a linear layer's backward pass, which have equal FLOPs, one is the weight
    gradient (frozen matrices have none); attention, norms and collectives belong to the input gradient
    (Qi et al. 2023, arXiv:2401.10241, section 2). The embedding has no input gradient to split from.
    """
    split = ctx.splits_backward
    if ctx.frozen or not split.any():
        return np.zeros((len(split), len(kinds) + 2))
    each = list[FloatArray]()
    for _, one in ctx.at_lengths:
        output = products(one, one.model.head[:1])
        halves = [
            0.5 * linear_seconds(one.of(shape), shape.kind).backward * (shape.trains == TRAINED)
            for shape in kinds
        ]
        of_head = 0.5 * gemm_seconds(one, output, "bf16").backward * (HEAD in one.trained_modules)
        columns = [*halves, np.zeros_like(one.t), of_head]
        each.append(np.where(split[:, None], np.stack(columns, axis=1), 0.0))
    return OfLengths.of(ctx).whole(each) if ctx.varies else each[0]


UNEQUAL_LENGTHS = "unequal_lengths"  # a cause of passes, where the request states lengths
REFERENCE = "reference"  # and where it states a reference model
CAUSES = (
    "compute", "tensor_parallel", "context_parallel", "expert_parallel", "recompute", "data_parallel",
    "rest",
)  # fmt: skip


Launching = Callable[[PassSeconds], PassSeconds]  # makes passes as long as their launches take


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPrice:
    """Time of one part: passes, replay and causes, shape (n,) each."""

    passes: PassSeconds
    replay: FloatArray
    causes: dict[str, FloatArray]  # of forward + backward; sums to their sum


def _layer_price(ctx: Context, kind: LayerKind, ahead_s: FloatArray | float = 0.0) -> PartPrice:
    look()
    attention = core_attention(ctx)
    weights = layer_weights(ctx, kind)
    trained = trained_weights(ctx, weights, kind)
    pieces = [linear_seconds(ctx, kind), attention, memory_bound(ctx, kind)]
    pieces.append(_moved_s(ctx, cast_bytes(ctx, kind)))
    if ctx.frozen:
        pieces.append(adapter_seconds(ctx, kind))
        pieces.append(gemm_seconds(ctx, again_gemms(ctx, kind), "bf16", trained=False))
        made = gemm_seconds(ctx, norm_gemms(ctx, kind), "bf16")
        pieces.append(replace(made, backward=np.zeros_like(made.backward)))
        pieces.append(_moved_s(ctx, adapter_moved_bytes(ctx, kind)))
    if ctx.facts.fake_quantization != "none":
        pieces.append(fake_quantized(ctx, kind))
    if ctx.held_precision != "bf16":
        pieces.append(_moved_s(ctx, converted_bytes(ctx, kind)))
    compute = total(*pieces, accumulation(ctx, trained.dense + trained.routed))
    # blocks: attention, the MLP or the shared experts; routed ones have a tensor parallelism of their own
    layer = ctx.model.layer(kind)
    tensor = tensor_parallel(ctx, float(layer.closings))
    rings = context_parallel(ctx, attention)
    experts = _under_shared_experts(ctx, expert_parallel(ctx)) if kind == "moe" else ctx.nothing
    uneven = unequal_attention(ctx, attention) if ctx.packs else ctx.nothing
    again = np.zeros_like(ctx.t)
    if ctx.selective.any():
        again = replayed_s(ctx, kind, attention + uneven, experts)
    again = again + tiled_again_s(ctx, kind)
    replayed = PassSeconds(forward=np.zeros_like(again), backward=again)
    busy = total(compute, uneven, tensor, rings, experts, replayed)
    floor_s = layer_floor_s(ctx, kind)
    launching = _launching(ctx, kind, floor_s, ahead_s)
    passes = _passes(ctx, kind, launching, busy, (compute, tensor))
    passes, busy, compute, uneven, tensor, rings, experts = as_far(
        ctx, passes, busy, compute, uneven, tensor, rings, experts
    )
    replay = np.zeros_like(ctx.t)
    if ctx.full.any():
        again_s = passes.forward - _unreplayed_s(ctx, kind, launching, busy, tensor)
        modules = runs_modules(ctx)
        if modules.any() and ctx.layers is None:
            spared_s = np.maximum(passes.forward - again_s, 0.0)
            lead = ahead_s + surplus_s(ctx, passes.forward, floor_s)
            issued_s, left = launched_again(ctx, kind, busy.forward - spared_s, floor_s, lead)
            behind = launched_backward(ctx, kind, busy.backward, floor_s, left)
            again_s = np.where(modules, issued_s, again_s)
            passes = replace(passes, backward=np.where(ctx.full & modules, behind, passes.backward))
        replay = np.where(ctx.full, again_s, 0.0)
    if ctx.offloads_activations.any():
        longer = replace(passes, backward=passes.backward + replay)
        waits = spilled_s(ctx, kind, longer, fetched_s(ctx, weights))
        replay = replay + np.where(ctx.full, waits.backward, 0.0)
        passes += replace(waits, backward=np.where(ctx.full, 0.0, waits.backward))
    matrices = float(layer.dense_products)
    (gathers,) = as_far(ctx, weight_gathers(ctx, weights, trained, passes, matrices=matrices))
    causes = {
        "compute": compute.forward + compute.backward,
        "tensor_parallel": tensor.forward + tensor.backward,
        "context_parallel": rings.forward + rings.backward,
        "expert_parallel": experts.forward + experts.backward,
        "recompute": again,
        "data_parallel": gathers.forward + gathers.backward,
        "rest": passes.forward + passes.backward - busy.forward - busy.backward,
    }
    if ctx.workload.lengths is not None:
        causes[UNEQUAL_LENGTHS] = uneven.forward + uneven.backward
    whole = passes + gathers
    if ctx.full.any():
        replay = replay + replayed_gathers(ctx, weights, replay, matrices=matrices)
    return PartPrice(
        passes=whole,
        replay=np.where(ctx.full, replay, 0.0),
        causes=causes if ctx.layers is None else shared_out(causes, whole.forward + whole.backward),
    )


def as_far(ctx: Context, *passes: PassSeconds) -> list[PassSeconds]:
    """Return passes of a layer; below all trained weights their forward halves alone."""
    if not ctx.below:
        return [*passes]
    return [replace(one, backward=np.zeros_like(ctx.t)) for one in passes]


def _unreplayed_s(
    ctx: Context, kind: LayerKind, launching: Launching, busy: PassSeconds, tensor: PassSeconds
) -> FloatArray | float:
    """Return the part of a forward pass that recomputing skips: the last product and its collective.

    Of the collectives of two tensor-parallel blocks that is the last of two all-reduces, or of four
    gathers and reductions under sequence parallelism; of one block the only one, or half.
    """
    unread = unread_products(ctx, kind)
    if not unread or ctx.facts.mlp_tile_tokens:  # whose tiles end before what they read is saved
        return 0.0
    spared = gemm_seconds(ctx, unread, ctx.linear_precision).forward
    last = np.where(ctx.sequence_parallel, 0.5, 1.0) / ctx.model.num_blocks
    spared = spared + tensor.forward * last * unread[0].count
    return launching(busy).forward - launching(replace(busy, forward=busy.forward - spared)).forward


@on_slowest
def _moved_s(ctx: Context, moved_bytes: tuple[FloatArray, FloatArray]) -> PassSeconds:
    forward, backward = moved_bytes
    return PassSeconds(forward=forward * ctx.elementwise_byte_s, backward=backward * ctx.elementwise_byte_s)


@each_way
def _under_shared_experts(ctx: Context, exchange: PassSeconds) -> PassSeconds:
    shared = layer_gemms(ctx, "moe", "shared")
    if not (shared and ctx.facts.shared_expert_overlap):
        return exchange
    under = gemm_seconds(ctx, shared, ctx.linear_precision, trained=not ctx.frozen)
    return PassSeconds(
        forward=exposed_s(exchange.forward, under.forward, OVERLAP_SLOWDOWN),
        backward=exposed_s(exchange.backward, under.backward, OVERLAP_SLOWDOWN),
    )


def _passes(
    ctx: Context, part: Part, launching: Launching, busy: PassSeconds,
    alone: tuple[PassSeconds, PassSeconds],
) -> PassSeconds:  # fmt: skip
    """Return the passes of a part with its launches; ``alone``: what is timed, without further parts."""
    if ctx.layers is None:
        return launching(busy)
    compute, tensor = alone
    timed = compute + tensor if ctx.layers.with_collectives else compute
    if is_issued(ctx, part):
        return launching(busy + beyond_price(ctx, part, timed))
    return launching(busy) + beyond_price(ctx, part, launching(timed))


def _launching(
    ctx: Context, part: Part, floor_s: FloatArray | float, ahead_s: FloatArray | float = 0.0
) -> Launching:
    """Return the function that makes passes as long as their launches take, measured or counted."""
    if is_issued(ctx, part):
        return partial(issued, ctx, both_s=issuing_s(ctx, part))
    if not np.any(floor_s):
        return lambda busy: busy
    kind: LayerKind = "moe" if part == "moe" else "dense"
    return partial(launched, ctx, kind, floor_s=floor_s + np.zeros_like(ctx.t), ahead_s=ahead_s)


def _causes(ctx: Context) -> tuple[str, ...]:
    return (*CAUSES, *further_causes(ctx.workload))


def further_causes(workload: Workload) -> tuple[str, ...]:
    """Return the causes that only some workloads have."""
    found = {UNEQUAL_LENGTHS: workload.lengths is not None, REFERENCE: workload.reference != "none"}
    return tuple(name for name, there in found.items() if there)


def _end_price(
    ctx: Context,
    compute: PassSeconds,
    tensor: PassSeconds,
    *,
    own: Weights,
    layers: list[PartPrice],
    part: Part,
    further: Sequence[tuple[PassSeconds, PassSeconds]] = (),
    floor_s: FloatArray | float = 0.0,
) -> PartPrice:
    """Price the embedding or the head, with multi-token-prediction layers if it has them.

    ``own`` are the weights that are not those layers', ``further`` the computing and the collectives of
    their predictions, ``floor_s`` what launching a forward pass takes.
    """
    zero = np.zeros_like(ctx.t)
    trained = trained_weights(ctx, own, part)
    compute = compute + accumulation(ctx, trained.dense)
    alone = (compute, tensor)
    for computing, collectives in further:
        compute, tensor = compute + computing, tensor + collectives
    busy = compute + tensor
    passes = _passes(ctx, part, _launching(ctx, part, floor_s), busy, alone)
    gathers = weight_gathers(ctx, own, trained, passes, matrices=None)
    causes = dict.fromkeys(_causes(ctx), zero)
    causes["compute"] = compute.forward + compute.backward
    causes["tensor_parallel"] = tensor.forward + tensor.backward
    causes["data_parallel"] = gathers.forward + gathers.backward
    causes["rest"] = passes.forward + passes.backward - busy.forward - busy.backward
    passes = total(passes, gathers, *(layer.passes for layer in layers))
    for layer in layers:
        causes |= {name: causes[name] + value for name, value in layer.causes.items()}
    if ctx.layers is not None:
        causes = shared_out(causes, passes.forward + passes.backward)
    return PartPrice(passes=passes, replay=zero, causes=causes)


# Launches of the head's forward pass over a dense layer's (some 14 kernels): a norm, the product, and of
# Megatron's loss some 25 kernels and three all-reduces (Megatron-LM d98e8a64 ``core/tensor_parallel/
# cross_entropy.py``), half of them where the loss is fused.
_HEAD_LAUNCHES, _FUSED_LOSS = 1.5, 0.5
# Bytes moved for a bf16 weight of a head of unit rows (torch ``functional.normalize``): forward the norm
# and a quotient read 2 each, one writes 2; backward two quotients, a product, its sum, the norm's gradient.
_NORMALIZED_FORWARD, _NORMALIZED_BACKWARD = 6.0, 24.0
_ENCODED = (512.0, 4096.0)  # tokens of a text and numbers of each, as T5-XXL and umT5-XXL have them


@on_slowest
def head_seconds(ctx: Context) -> PassSeconds:
    """Price final norm, projection to the vocabulary, and the loss, for one token prediction."""
    made = products(ctx, ctx.model.head)
    if split := parts_of_logits(ctx):
        rows, parts = split
        made = [replace(one, m=np.minimum(one.m, rows), count=one.count * parts) for one in made]
    product = gemm_seconds(ctx, made, "bf16", trained=HEAD in ctx.trained_modules)
    if logits_are_replayed(ctx):
        product = replace(product, backward=product.backward + product.forward)
    logits = ctx.tokens * ctx.model.head_outputs / ctx.logits_ranks
    loss = logits * ctx.constants.loss_bytes * (0.5 if loss_is_fused(ctx) else 1.0) / ctx.hbm_bytes_per_s
    rows = normalized_head_weights(ctx) / ctx.hbm_bytes_per_s
    back = rows * _NORMALIZED_BACKWARD * (HEAD in ctx.trained_modules)
    again = gathered_bytes(ctx) / ctx.single_bytes_per_s
    further = [logits * each / ctx.single_bytes_per_s for each in further_bytes(ctx)]
    return product + PassSeconds(
        forward=0.5 * loss + rows * _NORMALIZED_FORWARD + again + further[0],
        backward=0.5 * loss + back + further[1],
    )


@each_way
def head_floor_s(ctx: Context) -> FloatArray | float:
    """Return seconds of launching the head's forward pass: norm, product and loss, in no layer's graph."""
    facts = ctx.facts
    share = _HEAD_LAUNCHES * (_FUSED_LOSS if loss_is_fused(ctx) else 1.0) * launches_left(facts, "head")
    return (facts.layer_launch_s or ctx.constants.floor_s) * ctx.operators.host * share


def embedding_seconds(ctx: Context) -> PassSeconds:
    """Price the look-up: it reads and writes a row per token; its backward pass adds into fp32 rows."""
    moved = ctx.tokens * ctx.model.embedding_width / ctx.hbm_bytes_per_s
    look_up = PassSeconds(forward=4.0 * moved, backward=10.0 * (EMBEDDING in ctx.trained_modules) * moved)
    if ctx.facts.embedding_products:
        look_up = _one_hot_seconds(ctx)
    model, diffusion = ctx.model, ctx.model.diffusion
    if diffusion and diffusion.encoder_products:  # text encoders: as long as one product of as many FLOPs
        tokens, k = _ENCODED
        product = Gemm(m=ctx.micro_batch * tokens, n=diffusion.encoder_products / (tokens * k), k=k)
        encoded = gemm_seconds(ctx, [product], "bf16", trained=False).forward
        look_up = replace(look_up, forward=look_up.forward + encoded)
    if width := model.num_layers * model.layer_embedding_size:
        share = width / model.embedding_width  # of the look-up: as many rows, so much longer
        look_up = look_up + PassSeconds(forward=share * look_up.forward, backward=share * look_up.backward)
    further = products(ctx, model.first)
    return look_up + gemm_seconds(ctx, further, "bf16", trained=not ctx.frozen) if further else look_up


def _one_hot_seconds(ctx: Context) -> PassSeconds:
    """Price the product of one-hot rows with the embedding: written first, and they need no gradient."""
    wide = ctx.model.vocab_size / ctx.vocabulary_ranks
    product = [Gemm(m=ctx.tokens, n=ctx.model.embedding_width, k=wide)]
    whole, inputs = (gemm_seconds(ctx, product, "bf16", trained=trained) for trained in (True, False))
    written = one_hot_bytes(ctx) / ctx.hbm_bytes_per_s
    weights = (whole.backward - inputs.backward) * (EMBEDDING in ctx.trained_modules)
    return PassSeconds(forward=whole.forward + written, backward=weights)


def _projection_seconds(ctx: Context) -> PassSeconds:
    return gemm_seconds(ctx, products(ctx, [ctx.model.prediction]), ctx.linear_precision)


def _prediction_prices(ctx: Context) -> dict[str, FloatArray]:
    """Return ``RowPrices.prediction``: the head's share that leaves it with the prediction layers.

    Their logits and losses stay with the head's, which gets their hidden states in addition to its own
    (Megatron-Core 0.19.2 ``gpt_model.py _postprocess``; ``stages.Chunks.sent``); the copy of the embedding
    goes with them.
    """
    copies, depth = prediction_copies(ctx), ctx.model.num_mtp_layers
    own = Weights(dense=copies, routed=np.zeros_like(ctx.t), ends=copies)

    each = list[list[PartPrice]]()
    for _, one in ctx.at_lengths:
        project, layer = one.nothing, _layer_price(one.of_prediction, one.model.mtp_shape.kind)
        for _ in range(depth):
            project = project + _projection_seconds(one)
        each.append(
            [_end_price(one, project, one.nothing, own=own, layers=[layer] * depth, part="prediction")]
        )
    (part,) = _on_the_mean(ctx, each)
    weights = own + prediction_weights(ctx)
    trained = trained_weights(ctx, weights, "prediction")
    tail = tail_of(ctx, [trained], [part.passes], [0.0], [1.0])
    exchange = tail.data_parallel[0] + copies_s(ctx) / (1.0 + ctx.model.tied_embeddings)
    return {
        "forward_s": part.passes.forward,
        "backward_s": part.passes.backward,
        "tail_s": exchange + tail.optimizer[0],
        **_prediction_bytes(ctx, weights, trained),
        **part.causes,
        "data_parallel of the tail": exchange,
        "optimizer of the tail": tail.optimizer[0],
    }


def _prediction_bytes(ctx: Context, weights: Weights, trained: Weights) -> dict[str, FloatArray]:
    matrices = not (ctx.optimizer.head_apart or ctx.model.tied_embeddings)
    states = state_bytes(ctx, weights, trained, matrices=matrices)
    activations = layer_activation_bytes(ctx.of_prediction, ctx.model.mtp_shape.kind)
    return {
        "weights_bytes": states.weights,
        "gradients_bytes": states.gradients,
        "reduced_gradients_bytes": states.reduced_gradients,
        "optimizer_bytes": states.optimizer,
        "activation_bytes": activations * ctx.model.num_mtp_layers,
    }


def _on_the_mean(ctx: Context, each: list[list[PartPrice]]) -> list[PartPrice]:
    """Price parts at the mean over ``ctx.at_lengths``, plus the wait for the longest document.

    Not attention alone but all work of a micro-batch is then as unequal as its length. Where each document
    is a pass of its own, the price is the sum of the passes, plus the wait of ranks that are not balanced.
    """
    if not ctx.varies:
        return each[0]
    of_lengths, found = OfLengths.of(ctx), list[PartPrice]()
    for same in zip(*each, strict=True):
        forward, backward = [one.passes.forward for one in same], [one.passes.backward for one in same]
        causes = {name: of_lengths.mean([one.causes[name] for one in same]) for name in same[0].causes}
        causes[UNEQUAL_LENGTHS] = of_lengths.waited(forward) + of_lengths.waited(backward)
        passes = PassSeconds(forward=of_lengths.whole(forward), backward=of_lengths.whole(backward))
        replay = of_lengths.whole([one.replay for one in same])
        found.append(PartPrice(passes=passes, replay=replay, causes=causes))
    return found


def _part_prices(ctx: Context, layout: LayerLayout) -> list[PartPrice]:
    parts = _own_prices(ctx, layout)
    if again := ctx.workload.scored:
        scored = _own_prices(scoring(ctx), layout)
        parts = [_with_reference(*pair, again) for pair in zip(parts, scored, strict=True)]
    return _drained(ctx, parts) if ctx.facts.pipeline_batch else parts


def _with_reference(part: PartPrice, scored: PartPrice, again: float) -> PartPrice:
    """Return a part's price with ``again`` passes through the reference for each forward pass."""
    seconds = again * scored.passes.forward
    passes = replace(part.passes, forward=part.passes.forward + seconds)
    return replace(part, passes=passes, causes=part.causes | {REFERENCE: seconds})


def _own_prices(ctx: Context, layout: LayerLayout) -> list[PartPrice]:
    each = list[list[PartPrice]]()
    for _, at in ctx.at_lengths:
        compute, tensor, table = embedding_seconds(at), vocabulary_parallel(at), embedding_weights(at)
        tower = _tower_prices(at) if at.model.tower else []
        first = _end_price(at, compute, tensor, own=table, layers=tower, part="embedding")
        # the head: one prediction, and one with a layer and a projection for each further token
        depth, predicted = at.model.num_mtp_layers, head_seconds(at)
        lead = lead_s(at, predicted)
        layers = {one: _layer_price(at.of(one), one.kind, lead) for one in layout.kinds}
        further, own = at.model.mtp_shape, at.of_prediction  # of layers that predict further tokens
        known = layers.get(further) if own is at.of(further) else None
        head = _end_price(
            at, predicted, tensor, own=output_weights(at), part="head", floor_s=head_floor_s(at),
            layers=[known or _layer_price(own, further.kind)] * depth if depth else [],
            further=[(predicted + _projection_seconds(at), tensor)] * depth if depth else [],
        )  # fmt: skip
        each.append([*layers.values(), first, head])
    return _on_the_mean(ctx, each)


def _tower_prices(ctx: Context) -> list[PartPrice]:
    """Price the tower's layers, and its ends with the projector; nothing without images."""
    tower = ctx.model.tower
    if tower is None or not images_of(ctx).rows:
        return []
    layer = _layer_price(tower_context(ctx), LAYER.kind)
    count, trained = float(tower.num_layers), float(passes_gradients(ctx))
    own = (layer.passes.forward, trained * (layer.passes.backward + layer.replay))
    ends = end_seconds(ctx, tower)
    return [
        PartPrice(
            passes=PassSeconds(forward=count * own[0], backward=count * own[1]),
            replay=np.zeros_like(ctx.t),
            causes=shared_out(layer.causes, count * (own[0] + own[1])),
        ),
        PartPrice(
            passes=ends,
            replay=np.zeros_like(ctx.t),
            causes={"compute": ends.forward + ends.backward},
        ),
    ]


def straggler_share(columns: Columns, profile: Profile) -> FloatArray:
    """Return the step over the step without a slowest of many nodes, shape (n,); 1 on one node."""
    nodes = np.maximum(columns.num_gpus / profile.group.gpus_per_node, 1.0)
    return np.asarray(1.0 + profile.constants.straggler * np.log2(nodes))


def _of_every_step(ctx: Context, columns: Columns, profile: Profile) -> dict[str, FloatArray]:
    """Return what a step takes once, and the wait for the slowest node, (n,) each, by their names."""
    return {"fixed_s": np.full(len(columns), fixed_s(ctx)), "straggler": _wait_of_nodes(columns, profile)}


def _wait_of_nodes(columns: Columns, profile: Profile) -> FloatArray:
    return profile.time_factor * straggler_share(columns, profile)


def _of_every_rank(ctx: Context, profile: Profile) -> dict[str, FloatArray]:
    """Return the seconds of the part that every rank has, ``stages.OF_EVERY_RANK``, by their names."""
    message_s = transfer(ctx)
    return {
        "every_forward_s": message_s,
        "every_backward_s": message_s,
        "transfer_s": message_s,
        "rank_tail_s": rank_tail_s(ctx),
        **_of_every_step(ctx, ctx.columns, profile),
    }


def _priced(
    problem: Problem, ctx: Context, profile: Profile, num_parts: int, known: dict[str, FloatArray],
    **apart: dict[str, FloatArray],
) -> RowPrices:  # fmt: skip
    """Return prices with some fields known, and residuals applied: all prices leave the cost model here."""
    prices = RowPrices.partly(len(ctx.columns), num_parts, known, **apart)
    return with_residuals(prices, problem, ctx.columns, profile)


def _pass_prices(parts: list[PartPrice], shape: tuple[int, ...] = ()) -> dict[str, FloatArray]:
    """Return passes by name, (n, P) each, or (w, n, P) of rows under each of w ways (``shape``: w, n)."""
    each = {
        "forward_s": [part.passes.forward for part in parts],
        "backward_s": [part.passes.backward for part in parts],
        "replay_s": [part.replay for part in parts],
    }
    if shape:
        each = {name: [np.broadcast_to(one, shape) for one in own] for name, own in each.items()}
    return {name: np.stack(own, axis=-1) for name, own in each.items()}


def _drained(ctx: Context, parts: list[PartPrice]) -> list[PartPrice]:
    """Price parts of pipelines that drain within a step: each pass bears its share of filling again.

    Of n batches of micro-batches all but one wait for p - 1 passes of a chunk more than one schedule of the
    whole step would: over its m micro-batches that is (n - 1) (p - 1) / (v m) of each pass.
    """
    c = ctx.columns
    again = np.maximum(c.num_microbatches / ctx.facts.pipeline_batch, 1.0) - 1.0
    longer = 1.0 + again * (ctx.p - 1.0) / (c.virtual_pipeline_size * c.num_microbatches)
    return [
        replace(
            part,
            passes=PassSeconds(
                forward=part.passes.forward * longer, backward=part.passes.backward * longer
            ),
            replay=part.replay * longer,
            causes={name: value * longer for name, value in part.causes.items()},
        )
        for part in parts
    ]


def price_memory(
    problem: Problem, columns: Columns, profile: Profile, *, ways: Ways | None = None
) -> RowPrices:
    """Return prices with the memory alone filled in, all times 0: memory refutes most rows by itself.

    Raises:
        InvalidProblemError: as ``price``.
    """
    look()
    ctx = context_of(problem, columns, profile, ways)
    layout = LayerLayout.of(problem.model, problem.training)
    weights = part_weights(ctx, layout.kinds)
    memory = memory_prices(ctx, layout, weights, trained_parts(ctx, layout.kinds, weights))
    moments, prediction = memory.pop("moments"), {}
    if problem.counts_prediction:
        copies = prediction_copies(ctx)
        own = Weights(dense=copies, routed=np.zeros_like(ctx.t), ends=copies) + prediction_weights(ctx)
        prediction = _prediction_bytes(ctx, own, trained_weights(ctx, own, "prediction"))
    return _priced(problem, ctx, profile, len(weights), memory, moments=moments, prediction=prediction)


_SEVERAL, _MANY = 2, 8  # distinguish several from one, and stand for more
_ACTIVATIONS = OFFLOAD.index("activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """Rows with different passes if no weights are shared, and which of them each of all rows equals."""

    columns: Columns
    groups: dict[str, Any]  # fields of a context, by name
    ways: Ways | None
    of_row: IntArray  # (n,)

    def under(self, problem: Problem, profile: Profile, ways: Ways | None = None) -> Context:
        """Return these rows' context under a problem, or ways of it, with equal passes for equal rows."""
        return replace(context_of(problem, self.columns, profile, ways or self.ways), **self.groups)


def _passes_of(ctx: Context, *, least: bool = False) -> _Passes:
    """Return the rows whose passes differ; ``least``: fewer rows, none with passes that take longer.

    Of the size of a pipeline and its chunks passes then read whether there are several, of micro-batches
    whether gradients add up, of shard sets whether a rank shares with others, of replicas nothing, of the
    order of ranks the links that their groups cross. Where activations are offloaded, documents are
    unequal, layers are timed, or the framework counts stages (``priced_by_stages``), all may count.
    Copies of offloaded shards are free: they depend on the number of ranks that share weights. Where the
    first micro-batch adds to no gradients, ``_MANY`` spare more of a pass than a larger number does.
    """
    c, facts = ctx.columns, ctx.facts
    c = replace(c, offload=np.where(is_offloaded(c.offload, "activations"), _ACTIVATIONS, 0))
    varied = ctx.layers is not None or ctx.workload.lengths is not None
    plain = (c.offload == 0) & (not (varied or facts.priced_by_stages))
    plain &= paired_passes(c) == 0.0  # their number depends on the pipeline's length
    most = _SEVERAL if ctx.adds_every_gradient else _MANY
    m = np.minimum(c.num_microbatches, most) if ctx.adds_every_gradient or least else c.num_microbatches
    read = {
        "pipeline_parallel_size": np.minimum(c.pipeline_parallel_size, _SEVERAL),
        "virtual_pipeline_size": np.minimum(c.virtual_pipeline_size, _SEVERAL),
        "num_microbatches": m,
        "zero_stage": np.maximum(c.zero_stage, 1),
        "zero_shard_size": np.minimum(c.zero_shard_size, _SEVERAL),
        "data_parallel_size": 1,
        **dict.fromkeys(("recompute_layers", "pipeline_schedule", "rank_order"), 0),
    }
    c = replace(c, **{name: np.where(plain, value, getattr(c, name)) for name, value in read.items()})
    rings = [] if ctx.ring_group is ctx.exchange_group else [ctx.ring_group]  # mostly the same
    shards = (ctx.weight_group, ctx.expert_weight_group)
    links = [
        one
        for group in (*rings, ctx.exchange_group, ctx.expert_group, *shards)
        for one in (group.in_island, group.islands)
    ]
    compared = [*(getattr(c, f.name) for f in fields(c)), *(one.astype(np.int64) for one in links)]
    if ctx.ways is not None and ctx.ways.of_row is not None:
        compared.append(ctx.ways.of_row)
    first, of_row = distinct(compared)
    alone = Group(np.ones(len(first)), np.ones(len(first)), ctx.fabric)
    groups = {
        "exchange_group": ctx.exchange_group.take(first), "ring_group": ctx.ring_group.take(first),
        "expert_group": ctx.expert_group.take(first), "data_group": alone, "shard_group": alone,
        "expert_data_group": alone, "weight_group": ctx.weight_group.take(first),
        "expert_weight_group": ctx.expert_weight_group.take(first),
    }  # fmt: skip
    ways = None if ctx.ways is None else ctx.ways.take(first)
    return _Passes(columns=c.take(first), groups=groups, ways=ways, of_row=of_row)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPasses:
    """Passes of a micro-batch that no size of the shard sets shortens, and what a step adds; (n,) each."""

    whole_s: FloatArray  # forward and backward of all layers and both ends, with what is replayed
    forward_s: FloatArray  # of the kind of layer where it is shortest
    backward_s: FloatArray  # likewise, with what is replayed if every layer is
    straggler: FloatArray
    fixed_s: FloatArray

    def step_s(self, pipeline_s: FloatArray) -> FloatArray:
        """Return the step of a pipeline that takes so long, (n,)."""
        return np.asarray(self.straggler * pipeline_s + self.fixed_s)


def _passes_under_each(
    few: _Passes, numbers: Sequence[int], problems: Sequence[Problem], profile: Profile
) -> Iterator[tuple[int, dict[str, FloatArray]]]:
    """Yield the index of each problem with its passes of few rows, (n, P) each, and ``fixed_s``, (n,)."""
    work = problems[0].workload
    varied = profile.layers is not None or work.lengths is not None or work.precision == "fp32"
    if varied and len(numbers) > 1:
        for number in numbers:
            yield from _passes_under_each(few, [number], problems, profile)
        return
    look()
    ways = Ways.of_each_row([problems[number] for number in numbers], profile)
    layout = LayerLayout.of(problems[0].model, problems[0].training)
    shape = (len(numbers), len(few.columns))
    try:
        ctx = few.under(ways.problems[0], profile, ways)
        passes, once_s = _pass_prices(_part_prices(ctx, layout), shape), fixed_s(ctx)
    except DisputedFactError as disputed:
        for own, _ in ways.by(disputed.fact):
            yield from _passes_under_each(few, [numbers[at] for at in own.tolist()], problems, profile)
        return
    passes["fixed_s"] = np.broadcast_to(once_s, shape)
    for at, number in enumerate(numbers):
        yield number, {name: one[at] for name, one in passes.items()}


def _passes_by_way(
    problems: Sequence[Problem], columns: Columns, profile: Profile
) -> Iterator[tuple[int, dict[str, FloatArray], IntArray]]:
    """Yield what ``_passes_under_each`` does, and the index of each row's passes, (n,)."""
    alike = dict[tuple[bool, bool], list[int]]()
    for number, problem in enumerate(problems):
        facts = facts_as_run(problem, profile)
        alike.setdefault((facts.priced_by_stages, adds_every_gradient(facts)), []).append(number)
    for numbers in alike.values():
        few = _passes_of(context_of(problems[numbers[0]], columns, profile), least=True)
        for number, passes in _passes_under_each(few, numbers, problems, profile):
            yield number, passes, few.of_row


def shared_passes(problems: Sequence[Problem], columns: Columns, profile: Profile) -> list[SharedPasses]:
    """Return the passes of every row; rows share few of them, so that this is far cheaper than prices.

    ``problems``: one problem under several switches, which change no groups of ranks; passes for each.
    """
    found = dict[int, SharedPasses]()
    layout = LayerLayout.of(problems[0].model, problems[0].training)
    parts = np.append(layout.cumulative[-1], (1.0, 1.0))
    every, wait = columns.recompute_layers == ALL_LAYERS, _wait_of_nodes(columns, profile)
    for number, few, of_row in _passes_by_way(problems, columns, profile):
        forward, backward, replay = (few[name] for name in ("forward_s", "backward_s", "replay_s"))
        once, again = (forward + backward) @ parts, replay @ parts
        whole, back = once[of_row], backward[:, :-2].min(axis=1)[of_row]
        if again.any():
            whole = whole + np.where(every, again[of_row], 0.0)
            back = np.where(every, (backward + replay)[:, :-2].min(axis=1)[of_row], back)
        step = {"fixed_s": np.full(len(columns), few["fixed_s"][0]), "straggler": wait}
        known = RowPrices.partly(len(columns), len(parts), step)
        prices = with_residuals(known, problems[number], columns, profile)
        found[number] = SharedPasses(
            whole_s=whole,
            forward_s=forward[:, :-2].min(axis=1)[of_row],
            backward_s=back,
            straggler=prices.straggler,
            fixed_s=prices.fixed_s,
        )
    return [found[number] for number in range(len(problems))]


def least_passes_s(problems: Sequence[Problem], columns: Columns, profile: Profile) -> FloatArray | None:
    """Return the seconds of a micro-batch's passes on all ranks of a pipeline together, (n,).

    No row with these sizes runs shorter ones under any of the problems, as ``shared_passes`` takes them,
    whatever its stages, replicas, shards and the links between its ranks: gathers, replays and exchanges
    between context-parallel ranks are free, and ranks that exchange tokens lie side by side. None where
    passes read more of a row than that.
    """
    look()
    ctx = context_of(problems[0], columns, profile)
    counted = any(facts_as_run(one, profile).priced_by_stages for one in problems)
    if ctx.layers is not None or ctx.workload.lengths is not None or counted:
        return None
    alone = Group(np.ones_like(ctx.t), np.ones_like(ctx.t), ctx.fabric)
    free = dict.fromkeys(
        ("exchange_group", "ring_group", "data_group", "shard_group", "expert_data_group", "weight_group",
         "expert_weight_group"), alone,
    )  # fmt: skip
    beside = replace(ctx.expert_group, blocks=None, world=None)
    rows = _Passes(
        columns=columns, groups={**free, "expert_group": beside}, ways=None, of_row=np.arange(len(columns))
    )
    layout = LayerLayout.of(problems[0].model, problems[0].training)
    parts, least = np.append(layout.cumulative[-1], (1.0, 1.0)), np.full(len(columns), np.inf)
    for _, passes in _passes_under_each(rows, range(len(problems)), problems, profile):
        least = np.minimum(least, (passes["forward_s"] + passes["backward_s"]) @ parts)
    return least


_COMPUTING = ("compute", "recompute")  # causes of a pass during which a GPU computes


def busy_of_passes(
    layout: LayerLayout, causes: Mapping[str, FloatArray], replay_s: FloatArray
) -> FloatArray:
    """Return computing of all layers, their replay, and that of the quickest one, of a pass, (3, n)."""
    parts = np.concatenate([layout.cumulative[-1], [1, 1]]).astype(np.float64)
    computing = sum(causes[name] @ parts for name in _COMPUTING)
    replay = replay_s[:, :-2]
    return np.stack([computing, replay @ parts[:-2], replay.min(axis=1)])


def least_busy(problem: Problem, columns: Columns, profile: Profile) -> FloatArray:
    """Return ``busy_of_passes`` of every row, (3, n), none larger than under any size of the shard sets."""
    look()
    found, layout = (
        _passes_of(context_of(problem, columns, profile)),
        LayerLayout.of(problem.model, problem.training),
    )
    parts = _part_prices(found.under(problem, profile), layout)
    causes = {name: np.stack([part.causes[name] for part in parts], axis=1) for name in _COMPUTING}
    return busy_of_passes(layout, causes, _pass_prices(parts)["replay_s"]).take(found.of_row, axis=1)


def price_every_rank(problem: Problem, columns: Columns, profile: Profile) -> RowPrices:
    """Return prices with only the seconds of the part that every rank has.

    Raises:
        InvalidProblemError: as ``price``.
    """
    look()
    ctx = context_of(problem, columns, profile)
    parts = LayerLayout.of(problem.model, problem.training).num_kinds + 2
    return _priced(problem, ctx, profile, parts, _of_every_rank(ctx, profile))


def counts_chunks(profile: Profile) -> bool:
    """Return whether prices depend on the number of chunks and their order: residuals do, too."""
    calibrated = profile.residual is not None or profile.memory_residual is not None
    return calibrated or profile.framework.priced_by_chunks


def priced_alike(columns: Columns, profile: Profile) -> tuple[IntArray, IntArray]:
    """Return the first row of each distinct price, and the place of each row's price among them, (n,).

    Prices depend on neither the number of recomputed layers nor, mostly, the number of chunks beyond one.
    """
    chunks, apart = columns.virtual_pipeline_size, {"recompute_layers", "virtual_pipeline_size"}
    read = [getattr(columns, one.name) for one in fields(columns) if one.name not in apart]
    return distinct([*read, chunks if counts_chunks(profile) else np.minimum(chunks, 2)])


def price(
    problem: Problem, columns: Columns, profile: Profile, *, with_memory: bool = True,
    ways: Ways | None = None,
) -> RowPrices:  # fmt: skip
    """Price every row; prices are linear in the split, so any split's time and memory are their sums.

    ``with_memory`` false leaves all memory 0: times alone are a fifth quicker. ``ways``: the switches
    that each row is under (``ways.priced_together``); None: the problem's.

    Raises:
        DisputedFactError: the ways differ in more than terms of the price.
        InvalidProblemError: a framework option is unknown or has a wrong value.
    """
    look()
    ctx = context_of(problem, columns, profile, ways)
    layout = LayerLayout.of(problem.model, problem.training)
    parts = _part_prices(ctx, layout)
    weights = part_weights(ctx, layout.kinds)
    trained = trained_parts(ctx, layout.kinds, weights)
    look()
    counts = [*layout.cumulative[-1].tolist(), 1, 1]
    looped = ctx.optimizer.operators > 0
    tensors = weight_tensors(ctx, layout.kinds, apart=looped) if looped or ctx.facts.gathers_tensors else []
    passes = [part.passes for part in parts]
    tail = tail_of(ctx, trained, passes, tensors, counts)
    tail.data_parallel[-2:] += copies_s(ctx)
    look()
    memory = memory_prices(ctx, layout, weights, trained) if with_memory else {}
    moments = memory.pop("moments", {})
    known = {
        **_pass_prices(parts),
        "tail_s": np.ascontiguousarray((tail.data_parallel + tail.optimizer).T),
        "weight_gradient_s": weight_gradients_s(ctx, layout.kinds),
        **_of_every_rank(ctx, profile),
        **memory,
    }
    return _priced(
        problem, ctx, profile, len(parts), known,
        moments=moments,
        prediction=_prediction_prices(ctx) if problem.counts_prediction else {},
        breakdown_s={
            name: np.stack([part.causes[name] for part in parts], axis=1) for name in _causes(ctx)
        },
        tail_breakdown_s={
            "data_parallel": np.ascontiguousarray(tail.data_parallel.T),
            "optimizer": np.ascontiguousarray(tail.optimizer.T),
        },
    )  # fmt: skip
