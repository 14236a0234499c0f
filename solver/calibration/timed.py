"""Profile from timings on the machine: timed layers, and constants fitted on all timings.

Timed operators set the levels of the operator tables: the median of timed over priced seconds. Each
pass of each timed layer is then an observation of the same model that learns from whole runs, without a
factor in common. Timed layers are priced as they were timed (``meshwright.solver.cost.timed_layers``);
the constants carry the result to everything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp
from statistics import median
from typing import cast

import numpy as np

from meshwright.profiles.calibration import bounded
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.measured.layers import LayerRatio, MeasuredLayers, Part
from meshwright.profiles.measured.profile import MeasuredProfile, link_of
from meshwright.profiles.profile import Constants, Profile, with_own_shares
from meshwright.solver.calibration.fit import Box, Runs, fit
from meshwright.solver.calibration.observations import with_offsets
from meshwright.solver.calibration.priors import TIME_WIDTHS, Process
from meshwright.solver.configuration import Columns, Configuration, FloatArray
from meshwright.solver.cost.compute import Gemm, core_attention, gemm_seconds
from meshwright.solver.cost.context import context_of
from meshwright.solver.cost.price import price
from meshwright.solver.cost.stages import LayerLayout
from meshwright.solver.problem import Problem

# --------------------------------------------------------------------------------------------------
# Timings of one kind each, and how the cost model prices them under any constants.


MAX_OF_A_KIND = 48  # more of one operator and pass add nothing to the constants
# The one operator that is a single kernel in any code. Plain torch runs norms, activations, rotary
# embeddings and losses step by step, so their least traffic over their time measures how little is fused.
_STREAMING = "residual"

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
    """Return both passes of every timed part, and its optimizer step; ``most`` of each, evenly drawn."""
    kinds = []
    for part in sorted({time.part for time in layers.times}):
        for name in ("forward_s", "backward_s", "optimizer_s"):
            timed = [time for time in layers.times if time.part == part and getattr(time, name)]
            timed = timed[:: -(-len(timed) // most)] if timed and most else timed
            if timed:
                shards = [(time.tensor_parallel_size, time.micro_batch_size) for time in timed]
                rows = _rows(shards, expert_parallel_size=layers.expert_parallel_size)
                seconds = np.array([getattr(time, name) for time in timed])
                predict = partial(_layer_s, part=part, name=name)
                kinds.append(
                    TimedKind(operator=part, kind=name, rows=rows, seconds=seconds, predict=predict)
                )
    return kinds


def _layer_s(
    problem: Problem, rows: Columns, profile: Profile, _sets: int, *, part: Part, name: str
) -> FloatArray:
    prices = price(problem, rows, profile, with_memory=False)
    layers: list[Part] = [one.kind for one in LayerLayout.of(problem.model, problem.training).kinds]
    place = {"embedding": -2, "head": -1}.get(part, 0) or layers.index(part)
    by_part = {
        "forward_s": prices.forward_s,
        "backward_s": prices.backward_s,
        "optimizer_s": prices.tail_breakdown_s["optimizer"],
    }
    return np.asarray(by_part[name][:, place])


def _kind(
    operator: str, name: str, timed: Sequence[tuple[_Sides, float]], predict: Predict
) -> list[TimedKind]:
    if not timed:
        return []
    shards = [(s.get("tensor_parallel_size", 1), s.get("micro_batch_size", 1)) for s, _ in timed]
    seconds = np.array([value for _, value in timed])
    return [TimedKind(operator=operator, kind=name, rows=_rows(shards), seconds=seconds, predict=predict)]


def _timed(measured: MeasuredProfile, group: str) -> dict[str, list[tuple[_Sides, float]]]:
    """Return shapes and seconds by pass; ``backward`` sums both gradients if those were timed."""
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


def _gemm_s(
    problem: Problem, rows: Columns, profile: Profile, sets: int, *, name: str, sides: Sequence[FloatArray]
) -> FloatArray:
    """Return the seconds of products of (m, k) by (k, n); backward of both gradients together."""
    ctx = context_of(problem, rows, profile)
    m, n, k, count = (np.tile(side, sets) for side in sides)
    gemm = Gemm(m=m, n=n, k=k, count=count, grouped=bool(count.max() > 1))
    return np.asarray(getattr(gemm_seconds(ctx, [gemm], ctx.linear_precision), name))


def _gemm_kinds(measured: MeasuredProfile) -> list[TimedKind]:
    kinds, names = list[TimedKind](), ("m", "n", "k", "experts")
    for name, timed in _timed(measured, "gemm").items():
        for grouped in (False, True):
            mine = [(s, value) for s, value in timed if (s.get("experts", 1) > 1) == grouped]
            sides = [np.array([float(shape.get(side, 1)) for shape, _ in mine]) for side in names]
            kinds += _kind("gemm", name, mine, partial(_gemm_s, name=name, sides=sides))
    return kinds


def _attention_s(problem: Problem, rows: Columns, profile: Profile, _sets: int, *, name: str) -> FloatArray:
    return np.asarray(getattr(core_attention(context_of(problem, rows, profile)), name))


def _memory_kinds(measured: MeasuredProfile) -> list[TimedKind]:
    """Return additions of the residual, priced as a launch and their traffic over the bandwidth."""
    sums = [
        one
        for one in measured.measurements
        if one.group == "memory_bound" and one.operator == _STREAMING and one.timing.median_s > 0
    ]
    sums = sums[:: -(-len(sums) // MAX_OF_A_KIND)] if sums else []
    moved = np.array([one.moved_bytes for one in sums])

    def predict(problem: Problem, rows: Columns, profile: Profile, sets: int) -> FloatArray:
        ctx = context_of(problem, rows, profile)
        return np.asarray(np.tile(moved, sets) / ctx.hbm_bytes_per_s + ctx.operators.launch_s)

    return _kind("memory_bound", "both", [(dict(one.shape), one.timing.median_s) for one in sums], predict)


NAMES = (
    "gemm", "attention", "grouped_gemm", "permute_bytes", "score_gemm", "score_bytes", "hbm", "elementwise",
    "loss_bytes", "floor_s", "floor_moe", "update_bytes",
)  # fmt: skip
OF_LAUNCHES = {"floor_s", "floor_moe"}
OF_COLLECTIVES = ("collective_latency_s", "fast_link")
LEVELS = {"gemm": "gemm", "attention": "attention", "memory_bound": "hbm"}  # constant of each operator
# A layer of another code than the stack's is off by its own fusing; 10 % is not an outlier.
LAYER_PROCESS = Process(amplitude=0.05, noise=0.10, length=1.4, freedom=0.5, noise_freedom=0.5, trust=1.0)
_INSTANT_BYTES_PER_S = 1e30
CPU = "cpu"  # architecture of what the catalog has for runs without a GPU


def with_measured(problem: Problem, profile: Profile, measured: MeasuredProfile) -> Profile:
    """Return the profile of ``problem`` with the layers and operators of a measured profile.

    Raises:
        InvalidProblemError: it was measured on a CPU or another GPU, or holds nothing that is priced.
    """
    _require_gpu(profile, measured)
    layers = MeasuredLayers.of(measured, accumulation_bytes=profile.framework.accumulation_bytes)
    operators = list[TimedKind]()
    if measured.subject.dtype != "fp32":
        operators = [*_gemm_kinds(measured), *_memory_kinds(measured)]
        for name, timed in _timed(measured, "attention").items():
            operators += _kind("attention", name, timed, partial(_attention_s, name=name))
    link = link_of(measured)
    if not operators and not layers and link is None:
        raise InvalidProblemError.of(
            "/measurements", "the profile contains no operation that the cost model uses"
        )
    asked = _asked(problem, measured)
    if link is not None:
        before = profile.group.measured
        both = link if before is None else before.with_curves(link.curves, source=link.source)
        profile = replace(profile, group=replace(profile.group, measured=both))
    profile = replace(profile, constants=_at_levels(operators, asked, profile))
    constants = profile.constants
    if layers:
        settled = {LEVELS[kind.operator] for kind in operators}
        settled |= OF_LAUNCHES if layers.with_issuing else set()
        free = (*NAMES, *(OF_COLLECTIVES if layers.with_collectives else ()))
        names = tuple(name for name in free if name not in settled)
        constants = _fitted(layers, asked, profile, names)
    if layers or any(LEVELS[kind.operator] == "gemm" for kind in operators):
        profile = with_own_shares(profile)
    count, what = (len(layers.times), "layers") if layers else (len(measured.measurements), "operators")
    return replace(
        profile,
        constants=constants,
        layers=_with_ratios(layers, asked, replace(profile, constants=constants)) if layers else None,
        title=profile.title.replace("uncalibrated", f"with {count} timed {what}"),
    )


def _asked(problem: Problem, measured: MeasuredProfile) -> Problem:
    """Return the problem as timed: its model, adapters and sequence length, in 16 bits if possible."""
    subject, workload = measured.subject, problem.workload
    options = {
        name: value for name, value in workload.framework_options.items() if name != "precision_recipe"
    }
    return replace(
        problem,
        model=subject.model,
        workload=replace(
            workload,
            seq_length=subject.seq_length,
            precision=workload.precision if workload.precision in ("bf16", "fp16") else subject.dtype,
            framework_options=options,
            lora_rank=subject.lora_rank,
            lora_targets=subject.lora_targets or workload.lora_targets,
        ),
    )


def _require_gpu(profile: Profile, measured: MeasuredProfile) -> None:
    ours, theirs = profile.group.gpu.slug, measured.machine.gpu
    if (measured.machine.kind == "cpu") != (profile.group.gpu.architecture == CPU):
        if profile.group.gpu.architecture == CPU:
            raise InvalidProblemError.of("/machine/kind", f"was measured on a GPU, not on {ours}")
        raise InvalidProblemError.of("/machine/kind", "was measured on a CPU, which prices no GPU")
    if theirs is not None and theirs != ours:
        raise InvalidProblemError.of("/machine/gpu", f"was measured on {theirs}, not on {ours}")


def _at_levels(operators: Sequence[TimedKind], problem: Problem, profile: Profile) -> Constants:
    """Set the levels of timed operators: medians of priced over timed seconds."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for kind in operators:
        ratios[LEVELS[kind.operator]] += (
            kind.predict(problem, kind.rows, profile, 1) / kind.seconds
        ).tolist()
    values = {
        name: bounded(name, getattr(profile.constants, name) * median(found))
        for name, found in ratios.items()
    }
    return replace(profile.constants, **values)


def _fitted(
    layers: MeasuredLayers, problem: Problem, profile: Profile, names: tuple[str, ...]
) -> Constants:
    widths = {name: TIME_WIDTHS[name] for name in names}
    kinds, base = layer_kinds(layers, most=MAX_OF_A_KIND), _alone(profile, layers)

    def evaluate(offsets: FloatArray) -> FloatArray:
        sets = len(offsets)
        columns = []
        for kind in kinds:
            n = len(kind.rows)
            constants = with_offsets(base.constants, names, offsets, n)
            rows = kind.rows.take(np.tile(np.arange(n), sets))
            seconds = kind.predict(problem, rows, replace(base, constants=constants), sets)
            columns.append(np.log(seconds).reshape(sets, n))
        return np.concatenate(columns, axis=1)

    smooth = np.ones(sum(len(kind.rows) for kind in kinds))
    timed = Runs(
        measured=np.log(np.concatenate([kind.seconds for kind in kinds])),
        features=np.concatenate([_features(index, kind.rows) for index, kind in enumerate(kinds)]),
        noises=LAYER_PROCESS.noise * smooth,
        roughness=smooth,
        shared=(0.0, 0.0),
    )
    box = _within(Box.of(profile.constants, names), tuple(widths.values()))
    found = fit(evaluate, timed, widths=widths, box=box, prior=LAYER_PROCESS)
    values = {
        name: bounded(name, getattr(profile.constants, name) * exp(float(offset)))
        for name, offset in zip(names, found.offsets, strict=True)
    }
    return replace(profile.constants, **values)


def _within(box: Box, widths: Sequence[float]) -> Box:
    """Limit the box to three prior widths; beyond, layers were timed in another precision or code."""
    most = 3.0 * np.asarray(widths)
    return Box(lower=np.maximum(box.lower, -most), upper=np.minimum(box.upper, most))


def _alone(profile: Profile, layers: MeasuredLayers) -> Profile:
    """Return the profile without untimed parts: residuals, and what is not inside the timed seconds.

    Those are collectives, and launches if the host's time was measured separately.
    """
    alone = replace(profile, residual=None, memory_residual=None, layers=None)
    if layers.with_issuing:
        alone = replace(alone, gpu_operators=replace(alone.gpu_operators, host=0.0))
    if layers.with_collectives:
        return alone
    group, constants = profile.group, replace(profile.constants, collective_latency_s=0.0)
    fast = replace(group.intra_node, bytes_per_s=_INSTANT_BYTES_PER_S)
    slow = replace(group.inter_node, bytes_per_s=_INSTANT_BYTES_PER_S)
    return replace(
        alone, constants=constants, group=replace(group, intra_node=fast, inter_node=slow, measured=None)
    )


def _with_ratios(
    layers: MeasuredLayers | None, problem: Problem, profile: Profile
) -> MeasuredLayers | None:
    if layers is None:
        return None
    base = _alone(profile, layers)
    logs: dict[tuple[Part, int, int], dict[str, float]] = defaultdict(dict)
    for kind in layer_kinds(layers):
        left = np.log(kind.seconds / kind.predict(problem, kind.rows, base, 1))
        shards = zip(kind.rows.tensor_parallel_size, kind.rows.micro_batch_size, left, strict=True)
        for tp, micro_batch, one in shards:
            logs[(cast("Part", kind.operator), int(tp), int(micro_batch))][kind.kind] = float(one)
    return replace(
        layers,
        ratios=tuple(
            LayerRatio(
                part=part,
                tensor_parallel_size=tp,
                micro_batch_size=micro_batch,
                forward=exp(passes.get("forward_s", 0.0)),
                backward=exp(passes.get("backward_s", 0.0)),
            )
            for (part, tp, micro_batch), passes in sorted(logs.items())
        ),
    )


def _features(index: int, rows: Columns) -> FloatArray:
    """Return features of observations: kinds far apart, shards and micro-batches by logarithm."""
    places = (
        np.full(len(rows), 10.0 * index),
        np.log2(rows.tensor_parallel_size),
        np.log2(rows.micro_batch_size),
    )
    return np.stack(places, axis=1)
