"""A profile with what was timed on the machine: layers as they are, constants fitted on all of it.

Timed operators set the levels of the operator tables: the median of timed over priced seconds. Each
pass of each timed layer is then an observation of the same maximum-a-posteriori fit that learns from
whole runs. Timed layers are priced as they were timed (``solver.cost.layers_measured``); the constants
carry what was learnt to everything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import exp
from statistics import median
from typing import cast

import numpy as np

from profiles.calibration import bounded
from profiles.errors import InvalidProblemError
from profiles.measured_collectives import link_of
from profiles.measured_layers import LayerRatio, MeasuredLayers, Part
from profiles.measured_link import MeasuredLink
from profiles.measured_profile import MeasuredProfile
from profiles.profile import Constants, Profile
from solver.calibration.batches import with_offsets
from solver.calibration.box import Box
from solver.calibration.fit import fit
from solver.calibration.priors import TIME_WIDTHS, Process
from solver.calibration.timed_kinds import MAX_OF_A_KIND, TimedKind, layer_kinds, operator_kinds
from solver.columns import Columns, FloatArray
from solver.problem import Problem

NAMES = (
    "gemm", "attention", "grouped_gemm", "permute_bytes", "score_gemm", "score_bytes", "hbm", "elementwise",
    "loss_bytes", "floor_s", "floor_moe", "update_bytes",
)  # fmt: skip
OF_COLLECTIVES = ("collective_latency_s", "fast_link")
LEVELS = {"gemm": "gemm", "attention": "attention", "memory_bound": "hbm"}  # constant of each operator
# A layer of another code than the stack's is off by its own fusing; 10 % is no outlier.
LAYER_PROCESS = Process(amplitude=0.05, noise=0.10, length=1.4, freedom=0.5, noise_freedom=0.5)
_INSTANT_BYTES_PER_S = 1e30
CPU = "cpu"  # architecture of what the catalog has for runs without a GPU


def with_measured(problem: Problem, profile: Profile, measured: MeasuredProfile) -> Profile:
    """The profile of ``problem`` with the layers and operators of a measured profile.

    Raises:
        InvalidProblemError: it was measured on a CPU or another GPU, or holds nothing that is priced.
    """
    _require_gpu(profile, measured)
    layers = MeasuredLayers.of(measured)
    operators = operator_kinds(measured) if measured.subject.dtype != "fp32" else []
    link = link_of(measured)
    if not operators and not layers and link is None:
        raise InvalidProblemError.of("/measurements", "nothing that is priced was timed")
    asked = _asked(problem, measured)
    profile = _with_network(profile, link)
    profile = replace(profile, constants=_at_levels(operators, asked, profile))
    constants = profile.constants
    if layers:
        settled = {LEVELS[kind.operator] for kind in operators}
        free = (*NAMES, *(OF_COLLECTIVES if layers.with_collectives else ()))
        names = tuple(name for name in free if name not in settled)
        constants = _fitted(layers, asked, profile, names)
    count, what = (len(layers.times), "layers") if layers else (len(measured.measurements), "operators")
    return replace(
        profile,
        constants=constants,
        layers=_with_ratios(layers, asked, replace(profile, constants=constants)) if layers else None,
        title=profile.title.replace("uncalibrated", f"with {count} timed {what}"),
    )


def _asked(problem: Problem, measured: MeasuredProfile) -> Problem:
    """The problem as the timings pose it: their model and sequence length, 16 bits where it may."""
    subject, workload = measured.subject, problem.workload
    options = {
        name: value for name, value in workload.framework_options.items() if name != "precision_recipe"
    }
    precision = workload.precision if workload.precision in ("bf16", "fp16") else subject.dtype
    return replace(
        problem,
        model=subject.model,
        workload=replace(
            workload, seq_length=subject.seq_length, precision=precision, framework_options=options
        ),
    )


def _with_network(profile: Profile, link: MeasuredLink | None) -> Profile:
    """The profile whose collectives are corrected by those that were timed."""
    if link is None:
        return profile
    before = profile.group.measured
    both = link if before is None else before.with_curves(link.curves, source=link.source)
    return replace(profile, group=replace(profile.group, measured=both))


def _require_gpu(profile: Profile, measured: MeasuredProfile) -> None:
    """Refuse timings of another machine."""
    ours, theirs = profile.group.gpu.slug, measured.machine.gpu
    if (measured.machine.kind == "cpu") != (profile.group.gpu.architecture == CPU):
        if profile.group.gpu.architecture == CPU:
            raise InvalidProblemError.of("/machine/kind", f"was measured on a GPU, not on {ours}")
        raise InvalidProblemError.of("/machine/kind", "was measured on a CPU, which prices no GPU")
    if theirs is not None and theirs != ours:
        raise InvalidProblemError.of("/machine/gpu", f"was measured on {theirs}, not on {ours}")


def _at_levels(operators: Sequence[TimedKind], problem: Problem, profile: Profile) -> Constants:
    """The constants with the levels that timed operators reach: medians of priced over timed seconds."""
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
    """The constants of the profile, the named ones fitted again on all timed layers."""
    widths = [TIME_WIDTHS[name] for name in names]
    kinds, base = layer_kinds(layers, most=MAX_OF_A_KIND), _alone(profile, inside=layers.with_collectives)

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

    found = fit(
        evaluate,
        np.log(np.concatenate([kind.seconds for kind in kinds])),
        np.concatenate([_features(index, kind.rows) for index, kind in enumerate(kinds)]),
        widths=widths,
        box=_within(Box.of(profile.constants, names), widths),
        prior=LAYER_PROCESS,
    )
    values = {
        name: bounded(name, getattr(profile.constants, name) * exp(float(offset)))
        for name, offset in zip(names, found.offsets, strict=True)
    }
    return replace(profile.constants, **values)


def _within(box: Box, widths: Sequence[float]) -> Box:
    """The box, no wider than three prior widths: beyond, layers were timed in another precision or code."""
    most = 3.0 * np.asarray(widths)
    return Box(lower=np.maximum(box.lower, -most), upper=np.minimum(box.upper, most))


def _alone(profile: Profile, *, inside: bool) -> Profile:
    """The profile without what no timing saw: residuals, and collectives unless they were inside."""
    alone = replace(profile, residual=None, memory_residual=None, layers=None)
    if inside:
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
    """The layers with what they take over their price under the fitted constants."""
    if layers is None:
        return None
    base = _alone(profile, inside=layers.with_collectives)
    logs: dict[tuple[Part, int, int], dict[str, float]] = defaultdict(dict)
    for kind in layer_kinds(layers):
        left = np.log(kind.seconds / kind.predict(problem, kind.rows, base, 1))
        shards = zip(kind.rows.tensor_parallel_size, kind.rows.micro_batch_size, left, strict=True)
        for tp, micro_batch, one in shards:
            logs[(cast("Part", kind.operator), int(tp), int(micro_batch))][kind.kind] = float(one)
    ratios = tuple(
        LayerRatio(
            part=part,
            tensor_parallel_size=tp,
            micro_batch_size=micro_batch,
            forward=exp(passes.get("forward_s", 0.0)),
            backward=exp(passes.get("backward_s", 0.0)),
        )
        for (part, tp, micro_batch), passes in sorted(logs.items())
    )
    return replace(layers, ratios=ratios)


def _features(index: int, rows: Columns) -> FloatArray:
    """Where observations stand: kinds far apart, shards and micro-batches by their logarithms."""
    places = (
        np.full(len(rows), 10.0 * index),
        np.log2(rows.tensor_parallel_size),
        np.log2(rows.micro_batch_size),
    )
    return np.stack(places, axis=1)
