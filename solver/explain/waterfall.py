"""Waterfall from the ideal step to the real one; its terms add up to the step.

Everything inside the pipeline is the mean over its stages, each of which has GPUs of its own; what the
slowest stage does beyond the mean is ``imbalance``. ``ideal`` is the model's FLOPs spread over all GPUs in
use in proportion to each one's own peak, so that what another spread costs is ``imbalance`` too.
``bubble`` is what remains: waiting that no other term explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from meshwright.profiles.adapters import HEAD
from meshwright.profiles.model import LayerKind
from meshwright.profiles.trained_layers import BELOW, FROZEN, TRAINED
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.compute import core_attention, gemm_seconds, linear_seconds, products
from meshwright.solver.cost.context import WITHOUT_ACTIVATIONS, Context, PassSeconds, is_offloaded
from meshwright.solver.cost.evaluation import Evaluation, StageTable
from meshwright.solver.cost.merged_adapters import adapter_seconds
from meshwright.solver.cost.pipelines import PricedPipelines
from meshwright.solver.cost.price import (
    REFERENCE,
    UNEQUAL_LENGTHS,
    as_far,
    further_causes,
    price,
    straggler_share,
)
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.problem import Problem, real_tokens

# --------------------------------------------------------------------------------------------------
# Matrix products and attention by part of the model: what they take, and what they would at peak.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Seconds of products and attention by part, (n, P): of a micro-batch, and of a token at peak."""

    gemm_s: FloatArray
    attention_s: FloatArray
    ideal_gemm_s: FloatArray
    ideal_attention_s: FloatArray

    @classmethod
    def of(cls, on: PricedPipelines) -> _Work:
        """Return the work of every row; timed layers in the proportion of their formulas."""
        ctx, layout = on.context, LayerLayout.of(on.problem.model, on.problem.training)
        each = [(share[:, None], _products_and_attention(one, layout)) for share, one in ctx.at_lengths]
        gemm = sum((share * own for share, (own, _) in each), np.zeros(1))
        attention = sum((share * own for share, (_, own) in each), np.zeros(1))
        if on.profile.layers is not None:
            timed, formula = (
                price(on.problem, on.columns, profile, with_memory=False).breakdown_s["compute"]
                for profile in (on.profile, replace(on.profile, layers=None))
            )
            ratio = timed / np.maximum(formula, np.finfo(np.float64).tiny)
            gemm, attention = gemm * ratio, attention * ratio
        ideal_gemm, ideal_attention = _ideal_s(ctx)
        return cls(
            gemm_s=gemm,
            attention_s=attention,
            ideal_gemm_s=np.broadcast_to(ideal_gemm, gemm.shape),
            ideal_attention_s=np.broadcast_to(ideal_attention, gemm.shape),
        )


def _products_and_attention(ctx: Context, layout: LayerLayout) -> tuple[FloatArray, FloatArray]:
    layers = [_layer(ctx.of(one), one.kind) for one in layout.kinds]
    head_gemm, head_attention = _head(ctx)
    nothing = np.zeros_like(ctx.t)
    return (
        np.stack([*(_both(gemm) for gemm, _ in layers), nothing, head_gemm], axis=1),
        np.stack([*(_both(core) for _, core in layers), nothing, head_attention], axis=1),
    )


def _both(seconds: PassSeconds) -> FloatArray:
    return seconds.forward + seconds.backward


def _layer(ctx: Context, kind: LayerKind) -> tuple[PassSeconds, PassSeconds]:
    """Return products and attention of one layer, as ``cost.price`` adds them up."""
    gemm = linear_seconds(ctx, kind)
    if ctx.frozen:
        gemm = gemm + adapter_seconds(ctx, kind)
    gemm, core = as_far(ctx, gemm, core_attention(ctx))
    return gemm, core


def _head(ctx: Context) -> tuple[FloatArray, FloatArray]:
    model, depth = ctx.model, ctx.model.num_mtp_layers
    one = _both(
        gemm_seconds(ctx, products(ctx, ctx.model.head), "bf16", trained=(HEAD in ctx.trained_modules))
    )
    if not depth:
        return one, np.zeros_like(ctx.t)
    project = products(ctx, [model.prediction])
    gemm, core = _layer(ctx.of(model.mtp_shape), model.mtp_shape.kind)
    more = _both(gemm_seconds(ctx, project, ctx.linear_precision)) + _both(gemm) + one
    return one + depth * more, depth * _both(core)


def _ideal_s(ctx: Context) -> tuple[FloatArray, FloatArray]:
    """Return one token's seconds at one GPU's peak by part, (P,): products, and attention.

    By layer kind, then embedding and head: the model's FLOPs at the peak of what each part runs in.
    Attention counts its causal half and recomputation nothing, as in MFU.
    """
    model, seq, half = ctx.model, ctx.workload.documents, ctx.gpu.peak_bf16_flops
    linear, passes = ctx.gpu.peak_flops.get(ctx.linear_precision, half), (2.0 if ctx.frozen else 3.0)
    kinds, depth = LayerLayout.of(model, ctx.training).kinds, model.num_mtp_layers
    shaped = {one: model.shaped(one) for one in (*kinds, model.mtp_shape)}
    scores = {one: its.score_flops_per_token(seq) for one, its in shaped.items()}
    products = {
        one: its.layer_forward_flops_per_token(one.kind, seq) - scores[one] for one, its in shaped.items()
    }
    more = products[model.mtp_shape] + 2.0 * model.prediction.products
    of_head = 3.0 if (HEAD in ctx.trained_modules) else 2.0  # passes
    head = (1 + depth) * model.head_forward_flops_per_token() * of_head / half
    of_layers = [passes + _FEWER[one.trains] for one in kinds]
    gemm = [
        *(a * products[one] / linear for a, one in zip(of_layers, kinds, strict=True)),
        0.0,
        head + passes * depth * more / linear,
    ]
    once = [3.0 - 2.0 * (one.trains == BELOW) for one in kinds]  # passes of scores
    attention = [a * scores[one] / half for a, one in zip(once, kinds, strict=True)]
    return np.array(gemm), np.array([*attention, 0.0, 3.0 * depth * scores[model.mtp_shape] / half])


_FEWER = {TRAINED: 0.0, FROZEN: -1.0, BELOW: -2.0}  # passes of products, where layers are frozen


# Order of the terms. ideal: the model's FLOPs at the GPU's peak. calibration: what measured runs of this
# cluster add to, or take from, the formulas. fixed: once per step whatever its size.
TERMS = (
    "ideal", "gemm_efficiency", "attention_efficiency", "memory_bound", "launch_floor", "offload",
    "recompute", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline_transfer",
    "imbalance", "bubble", "data_parallel", "optimizer", "straggler", "calibration", "fixed",
)  # fmt: skip
NO_LOSS = ("ideal", "calibration")


def waterfalls(
    problem: Problem, evaluations: Sequence[Evaluation], steps_s: Sequence[float] | None = None
) -> list[dict[str, float]]:
    """Return the waterfall of every evaluated configuration; each sums to its step.

    Of unlike replicas it is the slowest class's, with the exchange of gradients in ``data_parallel``.

    Args:
        problem: the question.
        evaluations: the configurations.
        steps_s: their step times; their closed forms if not given.
    """
    if not evaluations:
        return []
    table = StageTable([one.classes[one.slowest] for one in evaluations])
    exchange_s = np.array([one.exchange_s for one in evaluations])
    steps = np.array([one.objective_s for one in evaluations] if steps_s is None else steps_s)
    work = cache(_Work.of)
    terms = _inside(table, work)
    ideal_s = _ideal_of_all(evaluations, work)
    terms["imbalance"] += terms.pop("own_ideal") - ideal_s
    own = table.end_s(steps - exchange_s)  # before stragglers and calibration
    optimizer = table.of_parts(lambda on: on.prices.tail_breakdown_s["optimizer"])[table.last]
    busy_s = table.num_microbatches * table.most(table.time_s)
    terms["bubble"] = own - busy_s - table.tail_s[table.last]
    terms["data_parallel"] += table.tail_s[table.last] - optimizer + exchange_s
    share = table.of_rows(lambda on: straggler_share(on.columns, on.profile))
    share = share[table.first_of_most(table.of_rows(lambda on: on.prices.straggler))]
    terms |= {
        "ideal": ideal_s,
        "optimizer": optimizer,
        "straggler": (table.straggler - table.straggler / share) * own,
        "calibration": (table.straggler / share - 1.0) * own,
        "fixed": table.fixed_s,
    }
    names = (*TERMS, *further_causes(problem.workload))
    columns = {name: terms[name].tolist() for name in names}
    return [{name: columns[name][row] for name in names} for row in range(len(evaluations))]


def _inside(table: StageTable, work: Callable[[PricedPipelines], _Work]) -> dict[str, FloatArray]:
    """Return terms inside the pipelines: the mean over stages, and the slowest one's excess."""
    per_stage = table.num_microbatches / table.num_stages

    def mean(of_stages: FloatArray) -> FloatArray:
        """Return all micro-batches' seconds on the mean stage, from those of one on each stage."""
        return np.asarray(per_stage * np.add.reduceat(of_stages, table.starts))

    def cause(name: str) -> FloatArray:
        return mean(table.of_parts(lambda on: on.prices.breakdown_s[name]))

    causes = {name: cause(name) for name in table.pipelines[0].stages[0].on.prices.breakdown_s}
    gemm = mean(table.of_parts(lambda on: work(on).gemm_s))
    attention = mean(table.of_parts(lambda on: work(on).attention_s))
    sequences = np.array([pipeline.config.global_batch_size for pipeline in table.pipelines])[table.of]
    tokens = sequences * table.of_rows(lambda on: real_tokens(on.problem, on.columns)) / table.stage_gpus
    ideal_gemm_s, ideal_attention_s = (
        np.add.reduceat(tokens * table.of_parts(of), table.starts) / table.num_stages
        for of in (
            lambda on: work(on).ideal_gemm_s,
            lambda on: work(on).ideal_attention_s,
        )
    )
    transfer_s = table.of_rows(lambda on: on.prices.transfer_s) + table.hop_s
    rest_kept = mean(table.of_parts(_rest_kept_s))
    replay_s = table.of_parts(lambda on: on.prices.replay_s, replayed=True)
    unchanged = (
        "tensor_parallel", "context_parallel", "expert_parallel", "data_parallel", UNEQUAL_LENGTHS,
        REFERENCE,
    )  # fmt: skip
    return {
        **{name: causes[name] for name in unchanged if name in causes},
        "gemm_efficiency": gemm - ideal_gemm_s,
        "attention_efficiency": attention - ideal_attention_s,
        "own_ideal": ideal_gemm_s + ideal_attention_s,
        "memory_bound": causes["compute"] - gemm - attention,
        "launch_floor": rest_kept,
        "offload": causes["rest"] - rest_kept,
        "recompute": causes["recompute"] + mean(replay_s),
        "pipeline_transfer": mean(table.of_ranks(lambda on: on.handed) * transfer_s),
        "imbalance": table.num_microbatches * table.most(table.time_s) - mean(table.time_s),
    }


def _rest_kept_s(on: PricedPipelines) -> FloatArray:
    """Return the passes' remainder if no activations moved to the host and back, (n, P)."""
    c = on.columns
    if not is_offloaded(c.offload, "activations").any():
        return on.prices.breakdown_s["rest"]
    kept = replace(c, offload=WITHOUT_ACTIVATIONS[c.offload])
    return price(on.problem, kept, on.profile, with_memory=False).breakdown_s["rest"]


def _ideal_of_all(
    evaluations: Sequence[Evaluation], work: Callable[[PricedPipelines], _Work]
) -> FloatArray:
    """Return the peak-speed step if every GPU in use had a share by its own speed, (n,)."""
    table = StageTable([one for some in evaluations for one in some.classes])
    problem = evaluations[0].stages[0].on.problem
    layout = LayerLayout.of(problem.model, problem.training)
    whole = np.concatenate([layout.cumulative[-1], [1.0, 1.0]])  # parts of the model

    sequence_s = table.of_rows(
        lambda on: (
            float((work(on).ideal_gemm_s + work(on).ideal_attention_s)[0] @ whole)
            * real_tokens(on.problem, on.columns)
        )
    )
    each = np.add.reduceat(table.stage_gpus / sequence_s, table.starts)
    counts = np.array([len(one.classes) for one in evaluations])
    sequences_per_s = np.add.reduceat(each, np.cumsum(counts) - counts)
    return np.asarray([one.config.global_batch_size for one in evaluations] / sequences_per_s)
