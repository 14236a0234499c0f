"""Matrix products and attention by part of the model: what they take, and what they would at peak."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from profiles.model import LayerKind
from profiles.profile import Profile
from solver.columns import Columns, FloatArray
from solver.cost.adapters import adapter_gemms
from solver.cost.compute import (
    Gemm,
    PassSeconds,
    core_attention,
    gemm_seconds,
    linear_seconds,
)
from solver.cost.context import Context, context_of
from solver.cost.price import price
from solver.cost.prices import LayerLayout, RowPrices, columns_of
from solver.problem import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Seconds of a micro-batch by part, (n, P), and of the whole step at peak, (n,)."""

    gemm_s: FloatArray
    attention_s: FloatArray
    ideal_gemm_s: FloatArray
    ideal_attention_s: FloatArray


def work_of(problem: Problem, profile: Profile, columns: Columns, prices: RowPrices) -> Work:
    """The work of every row; where layers were timed, in the proportion of their formulas."""
    ctx, layout = context_of(problem, columns, profile), LayerLayout.of(problem.model)
    layers = [_layer(ctx, kind) for kind in layout.kinds]
    head_gemm, head_attention = _head(ctx)
    nothing = np.zeros_like(ctx.t)
    gemm = columns_of([*(_both(gemm) for gemm, _ in layers), nothing, head_gemm])
    attention = columns_of([*(_both(core) for _, core in layers), nothing, head_attention])
    if profile.layers is not None:
        formula = price(problem, columns, replace(profile, layers=None)).breakdown_s["compute"]
        ratio = prices.breakdown_s["compute"] / np.maximum(formula, np.finfo(np.float64).tiny)
        gemm, attention = gemm * ratio, attention * ratio
    ideal_gemm, ideal_attention = _ideal_s(problem, ctx)
    return Work(
        gemm_s=gemm,
        attention_s=attention,
        ideal_gemm_s=ideal_gemm,
        ideal_attention_s=ideal_attention,
    )


def _both(seconds: PassSeconds) -> FloatArray:
    """Forward and backward."""
    return seconds.forward + seconds.backward


def _layer(ctx: Context, kind: LayerKind) -> tuple[PassSeconds, PassSeconds]:
    """Products and attention of one layer, as ``cost.price`` adds them up."""
    gemm = linear_seconds(ctx, kind)
    if ctx.frozen:
        gemm = gemm + gemm_seconds(ctx, adapter_gemms(ctx, kind), "bf16")
    return gemm, core_attention(ctx)


def _head(ctx: Context) -> tuple[FloatArray, FloatArray]:
    """Products and attention of the head with its multi-token-prediction layers."""
    model, depth = ctx.model, ctx.model.num_mtp_layers
    logits = Gemm(m=ctx.tokens, n=model.vocab_size / ctx.t, k=model.hidden_size)
    one = _both(gemm_seconds(ctx, [logits], "bf16", trained=not ctx.frozen))
    if not depth:
        return one, np.zeros_like(ctx.t)
    project = Gemm(m=ctx.tokens, n=model.hidden_size / ctx.t, k=2.0 * model.hidden_size)
    gemm, core = _layer(ctx, "moe" if model.moe else "dense")
    more = _both(gemm_seconds(ctx, [project], ctx.linear_precision)) + _both(gemm) + one
    return one + depth * more, depth * _both(core)


def ideal_parts_s(ctx: Context) -> tuple[FloatArray, FloatArray]:
    """Seconds of one token on one GPU at its peak by part, (P,): products, and attention.

    By layer kind, then embedding and head; ``_ideal_s`` of one part.
    """
    model, seq, half = ctx.model, ctx.seq_length, ctx.gpu.peak_bf16_flops
    linear, passes = ctx.gpu.peak_flops.get(ctx.linear_precision, half), (2.0 if ctx.frozen else 3.0)
    score, kinds = model.score_flops_per_token(seq), LayerLayout.of(model).kinds
    products = {kind: model.layer_forward_flops_per_token(kind, seq) - score for kind in ("dense", "moe")}
    depth = model.num_mtp_layers
    more = products["moe" if model.moe else "dense"] + 4.0 * model.hidden_size**2
    head = (1 + depth) * model.head_forward_flops_per_token() / half + depth * more / linear
    gemm = [*(products[kind] / linear for kind in kinds), 0.0, head]
    attention = [*(score / half for _ in kinds), 0.0, depth * score / half]
    return passes * np.array(gemm), 3.0 * np.array(attention)


def _ideal_s(problem: Problem, ctx: Context) -> tuple[FloatArray, FloatArray]:
    """The model's FLOPs at the peak of what each part runs in, spread over the GPUs of each row.

    Attention counts its causal half and recomputation nothing, as in MFU.
    """
    model, workload, gpu = problem.model, problem.workload, ctx.gpu
    passes, depth = (2.0 if ctx.frozen else 3.0), model.num_mtp_layers
    whole = model.model_flops_per_token(workload.seq_length, frozen=ctx.frozen)
    scores = 3.0 * (model.num_layers + depth) * model.score_flops_per_token(workload.seq_length)
    head = passes * (1 + depth) * model.head_forward_flops_per_token()
    half = gpu.peak_bf16_flops
    linear = gpu.peak_flops.get(ctx.linear_precision, half)
    sequences = ctx.columns.data_parallel_size * ctx.columns.micro_batch_size * ctx.columns.num_microbatches
    tokens = sequences * float(workload.seq_length) / ctx.columns.num_gpus
    return tokens * ((whole - scores - head) / linear + head / half), tokens * scores / half
