"""Main operators of a plan's forward pass, with their work and their priced time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.profiles.model import LayerKind
from meshwright.profiles.profile import Profile
from meshwright.solver.configuration import Configuration, FloatArray
from meshwright.solver.cost.compute import (
    Gemm,
    core_attention,
    gemm_seconds,
    layer_gemms,
    linear_seconds,
    products,
)
from meshwright.solver.cost.context import Context, context_of
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.cost.pipelines import PricedPipelines
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.explanation import OperatorPoint, Roofline
from meshwright.solver.problem import Problem

_ELEMENT_BYTES = {"fp8": 1.0, "fp4": 0.5}  # of an input; 2 otherwise, and of every output


@dataclass(frozen=True, slots=True, kw_only=True)
class _RooflineReader:
    ctx: Context
    layers: int  # of the kind at hand

    def gemm(self, name: str, gemm: Gemm, precision: str) -> OperatorPoint:
        seconds = float(gemm_seconds(self.ctx, [gemm], precision).forward[0])
        return self.point(name, _flops(gemm), _bytes(gemm, precision), seconds, precision)

    def point(
        self, name: str, flops: float, moved_bytes: float, seconds: float, precision: str
    ) -> OperatorPoint:
        gpu = self.ctx.gpu
        peak = gpu.peak_flops.get(precision) or gpu.peak_bf16_flops
        return OperatorPoint(
            name=name,
            flops=flops,
            moved_bytes=moved_bytes,
            seconds=seconds,
            peak_flops=peak,
            layers=self.layers,
        )


def rooflines_of(problem: Problem, profile: Profile, config: Configuration) -> tuple[Roofline, ...]:
    """Return the main operators of one micro-batch's forward pass.

    One roofline for each node group and tensor-parallel size (and class of replicas) that stages are on,
    so that a mesh has one; none where layers were timed as a whole.
    """
    (evaluation,) = evaluate(problem, profile, [config])
    found = list[Roofline]()
    for number, pipeline in enumerate(evaluation.classes):
        kind = f", replicas of kind {number}" if config.replicas else ""
        held = dict[tuple[PricedPipelines, int], FloatArray]()  # by stages of the same prices, (P,)
        for stage in pipeline.stages:
            held[stage.on, stage.row] = held.get((stage.on, stage.row), 0.0) + stage.parts
        for (on, row), parts in held.items():
            if on.profile.layers is None:
                tp = int(on.columns.tensor_parallel_size[row])
                found.append(_roofline(on, row, parts, f"tp {tp}{kind}" if on.name else ""))
    return tuple(found)


def _roofline(on: PricedPipelines, row: int, parts: FloatArray, note: str) -> Roofline:
    model, profile = on.problem.model, on.profile
    ctx = context_of(on.problem, on.columns.take(np.array([row])), profile)
    kinds = LayerLayout.of(model, on.problem.training).kinds
    points: list[OperatorPoint] = []
    for one, count in zip(kinds, parts.tolist(), strict=False):  # the ends of the model follow
        held = _layer(ctx.of(one), one.kind, round(count)) if count else ()
        known = {(point.name, point.flops) for point in points}  # of layers of other kinds
        points += [point for point in held if (point.name, point.flops) not in known]
    if parts[-1]:
        (head,) = products(ctx, model.head[:1])
        points.append(_RooflineReader(ctx=ctx, layers=1).gemm(head.title, head, "bf16"))
    return Roofline(
        gpu=ctx.gpu.display_name,
        bytes_per_s=ctx.gpu.hbm_bytes_per_s,
        peak_flops=max(point.peak_flops for point in points),
        points=tuple(points),
        note=note,
    )


def _layer(ctx: Context, kind: LayerKind, layers: int) -> Iterator[OperatorPoint]:
    read, precision = _RooflineReader(ctx=ctx, layers=layers), ctx.linear_precision
    gemms = layer_gemms(ctx, kind)
    plain = [gemm for gemm in gemms if not gemm.grouped]
    for gemm in plain:
        yield read.gemm(gemm.title, gemm, precision)
    if ctx.model.mixes_tokens:
        second = ctx.paired or ctx.crossing
        scans = float(core_attention(second).forward[0]) if second else 0.0
        seconds = float(core_attention(ctx).forward[0]) - scans
        name = "scan" if ctx.model.mixes else "attention core"
        yield read.point(name, *_attention_work(ctx), seconds, "bf16")
        if ctx.crossing:
            flops, moved = _attention_work(ctx.crossing)
            seconds = float(core_attention(ctx.crossing).forward[0])
            yield read.point("attention core (context)", flops, moved, seconds, "bf16")
        if ctx.paired:
            yield read.point("scan", *_attention_work(ctx.paired), scans, "bf16")
    grouped = [gemm for gemm in gemms if gemm.grouped]
    if grouped:
        whole = linear_seconds(ctx, kind).forward
        rest = gemm_seconds(ctx, plain, precision).forward
        work = sum(map(_flops, grouped)), sum(_bytes(gemm, precision) for gemm in grouped)
        yield read.point(grouped[0].title, *work, float((whole - rest)[0]), precision)


def _one(value: object) -> float:
    return float(np.asarray(value).reshape(-1)[0])


def _flops(gemm: Gemm) -> float:
    """Return ``2 m n k``, of all equal products."""
    return 2.0 * _one(gemm.m) * _one(gemm.n) * _one(gemm.k) * _one(gemm.count)


def _bytes(gemm: Gemm, precision: str) -> float:
    """Return both inputs read, and the output written in 2 bytes."""
    m, n, k = _one(gemm.m), _one(gemm.n), _one(gemm.k)
    return _one(gemm.count) * ((m + n) * k * _ELEMENT_BYTES.get(precision, 2.0) + 2.0 * m * n)


def _attention_work(ctx: Context) -> tuple[float, float]:
    """Return FLOPs of causal scores and weighted values, and bytes of q, k, v and output.

    ``2 tokens heads (qk + v) attended / t`` (Dao 2023, arXiv:2307.08691); scores stay on the chip.
    """
    model, tokens = ctx.model, _one(ctx.tokens)
    if mixer := model.own_mixer:
        of_rank = 2.0 * tokens / _one(ctx.t)
        return of_rank * mixer.scan_products(), of_rank * mixer.scan_elements()
    heads, kv = model.num_attention_heads / _one(ctx.t), max(model.num_kv_heads / _one(ctx.t), 1.0)
    width = model.head_dim + model.v_head_dim
    flops = 2.0 * tokens * heads * width * model.attended_tokens(ctx.workload.documents)
    return flops, 2.0 * tokens * width * (heads + kv * _one(ctx.c))
