"""Prices of every pipeline rank of a plan, in quantities that a launcher can report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.launchers.megatron_lm.flags import FRAMEWORK
from meshwright.launchers.target import Target
from meshwright.profiles.capabilities import launcher_capabilities
from meshwright.profiles.model import LayerKind, LayerShape
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.configuration import Columns, Configuration, FloatArray
from meshwright.solver.cost.compute import Gemm, layer_gemms, products, replayed_products
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.memory import memory_prices
from meshwright.solver.cost.parameters import (
    base_bytes_beyond,
    part_weights,
    trained_parts,
    unread_products,
)
from meshwright.solver.cost.pipelines import LaidOut
from meshwright.solver.cost.price import price_memory
from meshwright.solver.cost.stages import LayerLayout, chunks_of, fullest_moment, layers_held
from meshwright.solver.predict import predict

# Products of flash attention: two forward, five backward (Dao 2022, arXiv:2205.14135, algorithm 4).
_ATTENTION_TRAINED = 3.5
_LINEAR_TRAINED = 3.0  # forward, gradient of the input, gradient of the weight
_NOT_TENSORS = ("context", "reserve")  # terms of memory that no tensor of a rank is


def context_for(target: Target) -> Context:
    """Return the context of the formulas for one plan."""
    problem = target.problem
    return context_of(
        problem, Columns.of([target.config]), default_profile(problem.cluster, problem.launcher)
    )


def chunk_weights(target: Target) -> tuple[list[int], FloatArray]:
    """Return the rank of every chunk, and the weights of it that each rank of its stage holds.

    With multi-token prediction Megatron-Core keeps the final norm with the last layer, also if the head has
    a stage of its own (0.19 ``TransformerBlock.has_final_layernorm_in_this_stage``); it is priced with the
    head.
    """
    layout = LayerLayout.of(target.model, target.problem.training)
    ctx = context_for(target)
    chunks = chunks_of(ctx.columns, layout, np.array([target.config.stage_layers]))
    each = np.array([part.dense[0] + part.routed[0] for part in part_weights(ctx, layout.kinds)])
    weights, model = chunks.parts[0] @ each, target.model
    if model.num_mtp_layers and ctx.facts.name == FRAMEWORK:
        last = max(chunk for chunk, layers in enumerate(target.config.stage_layers) if layers)
        weights[last] += model.final_norm_parameters
        weights[-1] -= model.final_norm_parameters
    return chunks.rank[0].tolist(), weights


def rank_layers(target: Target) -> list[list[int]]:
    """Return the layers of every chunk of every pipeline rank."""
    ranks, _ = chunk_weights(target)
    layers = target.config.stage_layers
    return [
        [layers[chunk] for chunk, rank in enumerate(ranks) if rank == mine]
        for mine in range(target.config.pipeline_parallel_size)
    ]


def rank_weights(target: Target) -> list[int]:
    """Return the weights of every pipeline rank."""
    ranks, weights = chunk_weights(_with_its_own_routers(target))
    return [
        round(sum(weights[chunk] for chunk, rank in enumerate(ranks) if rank == mine))
        for mine in range(target.config.pipeline_parallel_size)
    ]


def _with_its_own_routers(target: Target) -> Target:
    """Return the model as the launcher builds it: the untrained bias is a buffer of its routers.

    Some of transformers' classes count it among the parameters (torchtitan 0.3.0, models/common/moe: the
    buffer ``expert_bias``; Megatron-Core 0.19, moe/router.py: the buffer of that name).
    """
    model, able = target.model, launcher_capabilities(target.problem.launcher)
    if model.moe is None or not model.moe.selection_bias_counted or "any" in able.model_facts:
        return target
    return replace(
        target,
        problem=replace(
            target.problem, model=replace(model, moe=replace(model.moe, selection_bias_counted=False))
        ),
    )


def rank_kinds(target: Target) -> list[list[LayerKind]]:
    """Return the kind of every layer of every pipeline rank, chunk after chunk."""
    return [[shape.kind for shape in shapes] for shapes in rank_shapes(target)]


def rank_shapes(target: Target) -> list[list[LayerShape]]:
    """Return the shape of every layer of every pipeline rank, chunk after chunk."""
    ranks, _ = chunk_weights(target)
    shapes, first = target.model.layer_shapes(), 0
    found: list[list[LayerShape]] = [[] for _ in set(ranks)]
    for rank, count in zip(ranks, target.config.stage_layers, strict=True):
        found[rank] += shapes[first : first + count]
        first += count
    return found


def rank_matrices(target: Target, *, whole: bool = False) -> list[list[list[int]]]:
    """Return rows, columns and number of the matrices that the layers of every pipeline rank multiply by.

    ``whole``: before tensor and expert parallelism split them.
    """
    alone = Configuration(stage_layers=(target.model.num_layers,))  # on one rank
    plan = replace(target.plan, config=alone) if whole else target.plan
    ctx, found = context_for(replace(target, plan=plan)), []
    for layers in rank_shapes(target):
        matrices = Counter[tuple[int, int]]()
        for layer in layers:
            for gemm in layer_gemms(ctx.of(layer), layer.kind):
                rows, columns, count = (round(_first(x)) for x in (gemm.n, gemm.k, gemm.count))
                matrices[rows, columns] += count
        found.append(sorted([*sides, count] for sides, count in matrices.items()))
    return found


def rank_flops(target: Target) -> list[float]:
    """Return the FLOPs of one micro-batch on every pipeline rank: forward, backward, recomputation.

    Attention is counted without its mask, as torch's counter counts it, and experts as equally loaded, as
    a step without data loads them. Routers and the look-up of the embedding are left out.
    """
    ctx, config, model = context_for(target), target.config, target.model
    ranks, _ = chunk_weights(target)
    busiest = _first(ctx.expert_load)

    def flops(gemms: Iterable[Gemm]) -> float:
        return sum(_flops(gemm) / (busiest if gemm.grouped else 1.0) for gemm in gemms)

    linear, core, spared = dict[LayerShape, float](), dict[LayerShape, float](), dict[LayerShape, float]()
    for one in {*model.shapes(), model.mtp_shape}:
        its, kind = ctx.of(one), one.kind
        linear[one] = flops(layer_gemms(its, kind))
        core[one] = _core_flops(its, config, target.workload.seq_length)
        spared[one] = flops(unread_products(its, kind))
    trained = {one: _LINEAR_TRAINED * linear[one] + _ATTENTION_TRAINED * core[one] for one in linear}
    further, plain = model.mtp_shape, trained[model.mtp_shape]
    full = config.recompute_granularity == "full"
    if config.recompute_granularity == "selective" and "core_attn" in ctx.facts.recomputed:
        trained = {one: work + core[one] for one, work in trained.items()}
    if config.recompute_granularity == "selective":
        replayed = {one: flops(replayed_products(ctx.of(one), one.kind)) for one in linear}
        trained = {one: work + replayed[one] for one, work in trained.items()}
    again = {one: linear[one] + core[one] - spared[one] for one in linear}
    shapes, first, found = model.layer_shapes(), 0, [0.0] * config.pipeline_parallel_size
    for chunk, (rank, count) in enumerate(zip(ranks, config.stage_layers, strict=True)):
        own = shapes[first : first + count]
        found[rank] += sum(trained[one] for one in own)
        found[rank] += sum(again[one] for one in own[: _recomputed(target, chunk)] if full)
        first += count
    logits, project = (flops(products(ctx, [one])) for one in (model.head[0], model.prediction))
    head = logits * _first(ctx.padded_vocabulary) / model.vocab_size
    found[ranks[-1]] += _LINEAR_TRAINED * head
    found[ranks[0]] += 2.0 * head * ctx.facts.embedding_products  # one-hot rows need no gradient
    for _ in range(model.num_mtp_layers):  # each a layer behind a projection, and logits of its own
        alike = ctx.facts.prediction_recomputed
        found[ranks[-1]] += (trained[further] if alike else plain) + _LINEAR_TRAINED * (project + head)
        if full and alike and _recomputes_every_layer(config):
            found[ranks[-1]] += again[further] + project
    return found


def _recomputes_every_layer(config: Configuration) -> bool:
    """Return whether prediction layers are recomputed, too: not where some layers of a chunk are not.

    (Megatron-Core 0.19 ``multi_token_prediction.py _checkpointed_forward``: skipped by the method "block".)
    """
    return not config.stage_recompute_layers and config.recompute_layers >= max(config.stage_layers)


def _core_flops(ctx: Context, config: Configuration, keys: int) -> float:
    """Return the forward FLOPs of one layer's scores and weighted values, with every key read."""
    model = ctx.model
    if not model.mixes_tokens:
        return 0.0
    if mixer := model.own_mixer:
        return 2.0 * _first(ctx.tokens) * mixer.scan_products() / config.tensor_parallel_size
    heads = model.num_attention_heads / config.tensor_parallel_size
    core = 2.0 * _first(ctx.tokens) * keys * heads * (model.head_dim + model.v_head_dim)
    if model.crossing and model.diffusion:
        core *= 1.0 + model.diffusion.context_tokens / keys
    paired = _core_flops(ctx.paired, config, keys) if ctx.paired else 0.0
    return core / max(1, config.context_parallel_size) + paired


def _recomputed(target: Target, chunk: int) -> int:
    config = target.config
    if config.stage_recompute_layers:
        return config.stage_recompute_layers[chunk]
    return config.recompute_layers


def rank_bytes(target: Target, profile: Profile | None = None) -> list[dict[str, int]]:
    """Return bytes of each pipeline rank by term; at the peak, tensors as ``tensors``, others as ``rest``.

    Of the buffers, workspaces of libraries (``base_bytes``) are not tensors; buckets and gathered weights
    are. Of gradients, as ``most_gradients`` the most at any moment, also where the peak is at another one,
    without copies in buckets of replicas; of weights, as ``own_weights`` those without autocast's casts.
    """
    costs = profile or default_profile(target.problem.cluster, target.problem.launcher)
    ctx = context_for(target)
    base, found = ctx.constants.base_bytes, []
    copies = _first(ctx.copies_of_gradients(ctx.dense_replicas))
    most, casts = _most_gradients(target, costs) / copies, _casts_bytes(ctx)
    for stage in predict(target.problem, costs, target.config).stages:
        terms: dict[str, int] = dict(stage.memory_bytes)
        rest = sum(terms.get(name, 0) for name in _NOT_TENSORS)
        rest += min(round(base), terms.get("buffers", 0))
        tensors = {"tensors": sum(terms.values()) - rest, "rest": rest}
        own = {"most_gradients": round(most[stage.stage]), "own_weights": terms["weights"] - casts}
        found.append(terms | tensors | own)
    return found


def _casts_bytes(ctx: Context) -> int:
    """Casts of trained fp32 weights that are priced among them, of a layout without stages; 0 of others."""
    if ctx.frozen or _first(ctx.p) > 1:
        return 0
    layout = LayerLayout.of(ctx.model, ctx.training)
    casts = base_bytes_beyond(ctx, layout.kinds, part_weights(ctx, layout.kinds))
    numbers: list[int] = [*layout.cumulative[-1].tolist(), 1, 1]
    return round(sum(number * _first(cast) for number, cast in zip(numbers, casts, strict=True)))


def _most_gradients(target: Target, profile: Profile) -> FloatArray:
    """Return the most bytes of gradients that every pipeline rank holds at once.

    Prices count gradients that grow as activations go beyond these alone; here they are whole.
    """
    columns, laid = Columns.of([target.config]), LaidOut.of(target.problem, [target.config])
    chunks = chunks_of(columns, laid.layout, laid.splits)
    prices = laid.prices(price_memory(laid.problem, columns, profile))
    if target.config.pipeline_parallel_size == 1:
        ctx = context_of(laid.problem, columns, profile)
        kept = replace(ctx, facts=replace(ctx.facts, frees_gradients=False))
        weights = part_weights(kept, laid.layout.kinds)
        memory = memory_prices(kept, laid.layout, weights, trained_parts(kept, laid.layout.kinds, weights))
        prices = replace(prices, gradients_bytes=memory["gradients_bytes"])
    _, gradients = fullest_moment(
        prices,
        columns,
        chunks,
        layers_held(chunks),
        np.zeros(laid.splits.shape),
    )
    return np.asarray(gradients[0])


def _flops(gemm: Gemm) -> float:
    return 2.0 * _first(gemm.m) * _first(gemm.n) * _first(gemm.k) * _first(gemm.count)


def _first(value: Any) -> float:  # noqa: ANN401 - a column of one row, or a number
    return float(np.ravel(value)[0])
