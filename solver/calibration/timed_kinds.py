"""Timings of one kind each, and how the cost model prices them under any constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from profiles.measured_layers import MeasuredLayers, Part
from profiles.measured_profile import MeasuredProfile
from profiles.profile import Profile
from solver.columns import Columns, FloatArray
from solver.cost.compute import Gemm, PassSeconds, core_attention, gemm_seconds
from solver.cost.context import context_of
from solver.cost.price import price
from solver.cost.prices import LayerLayout
from solver.plan import Configuration
from solver.problem import Problem

MAX_OF_A_KIND = 48  # more of one operator and pass tell the constants nothing new
_STREAMED_BYTES = 1e7  # smaller memory-bound operators time a kernel's launch, not the memory

Predict = Callable[[Problem, Columns, Profile, int], FloatArray]  # the last: sets of constants
_Sides = dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKind:
    """Timings of one operator and pass."""

    operator: str  # of layers: the part
    kind: str  # forward_s, backward_s, optimizer_s of layers; the pass of operators
    rows: Columns
    seconds: FloatArray
    predict: Predict


def _rows(shards: Sequence[tuple[int, int]], *, expert_parallel_size: int = 1) -> Columns:
    """One rank's rows: (tensor parallel size, micro-batch)."""
    return Columns.of(
        [
            Configuration(
                tensor_parallel_size=tp,
                expert_parallel_size=expert_parallel_size,
                expert_tensor_parallel_size=tp if expert_parallel_size > 1 else 1,
                micro_batch_size=micro_batch,
                stage_layers=(1,),
            )
            for tp, micro_batch in shards
        ]
    )


def layer_kinds(layers: MeasuredLayers, *, most: int | None = None) -> list[TimedKind]:
    """Both passes of every timed part, and its optimizer step; ``most`` of each, evenly drawn."""
    kinds = []
    for part in sorted({time.part for time in layers.times}):
        for name in ("forward_s", "backward_s", "optimizer_s"):
            timed = [time for time in layers.times if time.part == part and getattr(time, name)]
            timed = timed[:: -(-len(timed) // most)] if timed and most else timed
            if timed:
                shards = [(time.tensor_parallel_size, time.micro_batch_size) for time in timed]
                rows = _rows(shards, expert_parallel_size=layers.expert_parallel_size)
                seconds = np.array([getattr(time, name) for time in timed])
                predict = _layer_price(part, name)
                kinds.append(
                    TimedKind(operator=part, kind=name, rows=rows, seconds=seconds, predict=predict)
                )
    return kinds


def _layer_price(part: Part, name: str) -> Predict:
    """How one pass of a part is priced."""

    def predict(problem: Problem, rows: Columns, profile: Profile, _sets: int) -> FloatArray:
        prices = price(problem, rows, profile)
        layout = LayerLayout.of(problem.model)
        place = {"embedding": -2, "head": -1}.get(part, 0) or layout.kinds.index(part)
        by_part = {
            "forward_s": prices.forward_s,
            "backward_s": prices.backward_s,
            "optimizer_s": prices.tail_breakdown_s["optimizer"],
        }
        return np.asarray(by_part[name][:, place])

    return predict


def operator_kinds(measured: MeasuredProfile) -> list[TimedKind]:
    """Matrix products, attention and memory-bound operators, by pass."""
    return [*_gemm_kinds(measured), *_attention_kinds(measured), *_memory_kinds(measured)]


def _kind(
    operator: str, name: str, timed: Sequence[tuple[_Sides, float]], predict: Predict
) -> list[TimedKind]:
    """The timings as one kind; none where there is nothing."""
    if not timed:
        return []
    shards = [(s.get("tensor_parallel_size", 1), s.get("micro_batch_size", 1)) for s, _ in timed]
    seconds = np.array([value for _, value in timed])
    return [TimedKind(operator=operator, kind=name, rows=_rows(shards), seconds=seconds, predict=predict)]


def _timed(measured: MeasuredProfile, group: str) -> dict[str, list[tuple[_Sides, float]]]:
    """Shapes and seconds by pass; ``backward`` is the sum of both gradients where those were timed."""
    by_task: dict[str, tuple[_Sides, dict[str, float]]] = {}
    for one in measured.measurements:
        if one.group == group and one.timing.median_s > 0:
            passes = by_task.setdefault(one.task, (dict(one.shape), {}))[1]
            passes[one.kind] = one.timing.median_s
    found: dict[str, list[tuple[_Sides, float]]] = defaultdict(list)
    for shape, passes in by_task.values():
        if {"input_gradient", "weight_gradient"} <= passes.keys():
            passes["backward"] = passes["input_gradient"] + passes["weight_gradient"]
        for name in {"forward", "backward"} & passes.keys():
            found[name].append((shape, passes[name]))
    return {name: values[:: -(-len(values) // MAX_OF_A_KIND)] for name, values in sorted(found.items())}


def _pass(seconds: PassSeconds, name: str) -> FloatArray:
    return seconds.forward if name == "forward" else seconds.backward


def _gemm_kinds(measured: MeasuredProfile) -> list[TimedKind]:
    """Products of (m, k) by (k, n), forward and both gradients together."""

    def predict_of(name: str, timed: Sequence[tuple[_Sides, float]]) -> Predict:
        names = ("m", "n", "k", "experts")
        sides = [np.array([float(shape.get(side, 1)) for shape, _ in timed]) for side in names]

        def predict(problem: Problem, rows: Columns, profile: Profile, sets: int) -> FloatArray:
            ctx = context_of(problem, rows, profile)
            m, n, k, count = (np.tile(side, sets) for side in sides)
            gemm = Gemm(m=m, n=n, k=k, count=count, grouped=bool(count.max() > 1))
            return _pass(gemm_seconds(ctx, [gemm], ctx.linear_precision), name)

        return predict

    kinds = []
    for name, timed in _timed(measured, "gemm").items():
        for grouped in (False, True):
            mine = [(s, value) for s, value in timed if (s.get("experts", 1) > 1) == grouped]
            kinds += _kind("gemm", name, mine, predict_of(name, mine))
    return kinds


def _attention_kinds(measured: MeasuredProfile) -> list[TimedKind]:
    """Core attention of a shard's heads."""

    def predict_of(name: str) -> Predict:
        def predict(problem: Problem, rows: Columns, profile: Profile, _sets: int) -> FloatArray:
            return _pass(core_attention(context_of(problem, rows, profile)), name)

        return predict

    timed = _timed(measured, "attention")
    return [kind for name in timed for kind in _kind("attention", name, timed[name], predict_of(name))]


def _memory_kinds(measured: MeasuredProfile) -> list[TimedKind]:
    """Memory-bound operators: their least traffic over the bandwidth that is reached."""
    large = [
        one
        for one in measured.measurements
        if one.group == "memory_bound" and one.moved_bytes >= _STREAMED_BYTES and one.timing.median_s > 0
    ]
    large = large[:: -(-len(large) // MAX_OF_A_KIND)] if large else []
    moved = np.array([one.moved_bytes for one in large])

    def predict(problem: Problem, rows: Columns, profile: Profile, sets: int) -> FloatArray:
        return np.asarray(np.tile(moved, sets) / context_of(problem, rows, profile).hbm_bytes_per_s)

    return _kind("memory_bound", "both", [(dict(one.shape), one.timing.median_s) for one in large], predict)
