"""What looks wrong: runs that cannot be, runs that contradict each other, constants at their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import exp

import numpy as np

from profiles.calibration import LOWER_BOUNDS, UPPER_BOUNDS
from profiles.errors import InvalidProblemError
from profiles.frameworks import framework_facts
from profiles.profile import Constants, Profile
from profiles.units import GIB
from solver.calibration.observations import Observation
from solver.columns import FloatArray
from solver.plan import Configuration, Prediction
from solver.predictions import predicted
from solver.problem import Problem, Workload
from solver.runs import CATALOG_RUNS, read_runs

_CONTRADICTS = 3.0  # leave-one-out residuals, in their own spreads
_TWINS = 0.8  # features closer than this differ in little more than one halved size
_FAR = 2.0  # prior widths
_BARELY = 0.02  # relative move below which a constant counts as unmoved
_MAX_NAMED = 5
_MAX_SHOWN = 64  # characters of a run's name
_UNITS = 1.1  # a peak given in GB and read as GiB still fits
_LEAST_BYTES_A_WEIGHT = 0.5  # 4 bits, spread over all GPUs
# A run may be faster than every catalogued one of its stack, and than what the stack's model says of it, by
# so much: twice the mean error of a cluster's uncalibrated predictions, 10.2 % (docs/accuracy.md, overall).
_BEYOND = 1.2
_MOST_RUNS_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The catalogued run with the highest MFU of a software stack in one precision."""

    run_id: str
    mfu: float  # of the dense bf16 peak, as predictions count it
    of_stack: bool  # False: the stack has no such run, this is the best of all stacks


def impossible(one: Observation, profile: Profile) -> str | None:
    """Why a run cannot have happened as stated; None when it can.

    A step cannot be faster than the model's FLOPs at the GPUs' dense peak in the run's precision, and
    its peak memory can neither exceed the GPU's nor be less than its share of the weights.
    """
    has_bytes = profile.group.gpu.memory_bytes
    if one.peak_memory_bytes is not None and one.peak_memory_bytes > _UNITS * has_bytes:
        return (
            f"run {called(one)} is left out: {one.peak_memory_bytes / GIB:.4g} GiB is more than the "
            f"{has_bytes / GIB:.4g} GiB of {profile.group.gpu.slug}"
        )
    least_bytes = _LEAST_BYTES_A_WEIGHT * one.problem.model.num_parameters() / one.configuration.num_gpus
    if one.peak_memory_bytes is not None and one.peak_memory_bytes < least_bytes:
        return (
            f"run {called(one)} is left out: {one.peak_memory_bytes / GIB:.4g} GiB do not hold "
            f"{least_bytes / GIB:.4g} GiB, a GPU's share of the weights in 4 bits"
        )
    if one.step_time_s is None:
        return None
    gpu = profile.group.gpu
    flops = _model_flops(one.problem, one.configuration)
    least_s = flops / max(gpu.peak_flops.values())
    if one.step_time_s < least_s:
        return (
            f"run {called(one)} is left out: {one.step_time_s:.4g} s is less than the {least_s:.4g} s that "
            f"its FLOPs take at the peak of {gpu.slug}"
        )
    mfu = flops / one.step_time_s / gpu.peak_bf16_flops
    beyond = _beyond(mfu, one.problem, one.configuration, profile)
    return f"run {called(one)} is left out: {one.step_time_s:.4g} s is {beyond}" if beyond else None


def _model_flops(problem: Problem, configuration: Configuration) -> float:
    """The model's FLOPs of one step on one GPU."""
    seq, frozen = problem.workload.seq_length, problem.workload.lora_rank > 0
    sequences = configuration.global_batch_size / configuration.num_gpus
    return problem.model.model_flops_per_token(seq, frozen=frozen) * seq * sequences


def record_of(stack: str, workload: Workload) -> Record:
    """The highest MFU that the catalogued runs of a stack reach in the workload's precision."""
    records, bits = _records(), _bits(workload)
    return records.get((stack, bits)) or records["", bits]


def _bits(workload: Workload) -> int:
    """Of the operands of the linear layers: 16, 8 or 4."""
    if workload.framework_options.get("precision_recipe") == "nvfp4":
        return 4
    return 8 if workload.precision == "fp8" else 16


@cache
def _records() -> Mapping[tuple[str, int], Record]:
    """The records by stack, "" for all of them, and width of operands in bits."""
    found: dict[tuple[str, int], Record] = {}
    for run in read_runs(CATALOG_RUNS):
        if run.shape is None or not run.measured.step_time_s:
            continue
        problem, configuration = run.shape.problem, run.shape.configuration
        peak = problem.cluster.groups[0].gpu.peak_bf16_flops
        mfu = _model_flops(problem, configuration) / run.measured.step_time_s / peak
        for stack, own in ((framework_facts(run.shape.framework).stack, True), ("", False)):
            key = (stack, _bits(problem.workload))
            if key not in found or found[key].mfu < mfu:
                found[key] = Record(run_id=run.run_id, mfu=mfu, of_stack=own)
    return found


def _beyond(mfu: float, problem: Problem, configuration: Configuration, profile: Profile) -> str | None:
    """What an MFU is beyond, in words; None where it is credible.

    Beyond is more than ``_BEYOND`` times the stack's record and than what the uncalibrated model of the
    stack, ``profile``, says of the configuration: hardware that nobody has published runs of may do
    better than every published run, but not than both.
    """
    record = record_of(profile.framework.stack, problem.workload)
    if mfu <= _BEYOND * record.mfu:
        return None
    model_mfu = predicted(problem, profile, configuration).mfu
    if mfu <= _BEYOND * model_mfu:
        return None
    whose = f"under {profile.framework.stack}" if record.of_stack else "under any software stack"
    return (
        f"{mfu:.0%} MFU; the best catalogued run {whose} ({record.run_id}) reached {record.mfu:.0%}, and "
        f"{model_mfu:.0%} is expected here uncalibrated"
    )


def require_credible(
    problem: Problem, profile: Profile, found: Sequence[tuple[Configuration, Prediction]]
) -> None:
    """Refuse a calibration under which a plan would be faster than its software stack has ever been.

    Raises:
        InvalidProblemError: at ``/profile``, with the runs that the calibration learnt from.
    """
    if profile.uncalibrated is None:
        return
    for configuration, prediction in found:
        beyond = _beyond(prediction.mfu, problem, configuration, profile.uncalibrated)
        if beyond is None:
            continue
        some, more = profile.learnt_from[:_MOST_RUNS_NAMED], len(profile.learnt_from) - _MOST_RUNS_NAMED
        runs = ", ".join(some) + (f" and {more} more" if more > 0 else "")
        message = f"the calibration on {f'runs {runs}' if runs else 'runs that it does not name'}"
        raise InvalidProblemError.of(
            "/profile", f"{message} predicts {prediction.step_time_s:.4g} s a step, {beyond}"
        )


def called(one: Observation) -> str:
    """A run's name, printable and short."""
    return "".join(char if char.isprintable() else "?" for char in one.name[:_MAX_SHOWN])


def contradictions(
    observations: Sequence[Observation],
    features: FloatArray,
    leave_one_out: FloatArray,
    *,
    words: tuple[str, str] = ("slower", "faster"),
) -> list[str]:
    """Runs that the others do not explain, with the most alike run where there is one.

    ``words`` say more and less of what was measured.
    """
    findings = []
    apart = np.sqrt(((features[:, None, :] - features[None, :, :]) ** 2).sum(axis=2))
    np.fill_diagonal(apart, np.inf)
    worst = [int(i) for i in np.argsort(-np.abs(leave_one_out)) if abs(leave_one_out[i]) > _CONTRADICTS]
    for index in worst[:_MAX_NAMED]:
        twin = int(apart[index].argmin())
        way = words[0] if leave_one_out[index] > 0 else words[1]
        text = f"run {called(observations[index])} is {abs(leave_one_out[index]):.1f} spreads {way} than "
        if apart[index, twin] < _TWINS:
            text += f"the other runs say; the most alike is {called(observations[twin])}"
        else:
            text += "the other runs say"
        findings.append(text)
    return findings


def constants_at_bounds(
    constants: Constants, offsets: Mapping[str, float], widths: Mapping[str, float]
) -> list[str]:
    """Constants that the runs drove to a physical bound, or far from every stack's."""
    findings = []
    for name, offset in offsets.items():
        own = getattr(constants, name)
        value = own * exp(offset)
        upper, lower = UPPER_BOUNDS.get(name, np.inf), LOWER_BOUNDS.get(name, 0.0)
        if abs(offset) > _BARELY and value >= upper > own:
            findings.append(f"{name} was driven to its physical bound {upper:g}")
        elif abs(offset) > _BARELY and value <= lower < own:
            findings.append(f"{name} was driven to its physical bound {lower:g}")
        elif abs(offset) > _FAR * widths[name]:
            findings.append(
                f"{name} came out {exp(offset):.2g} times its stack's value, which no other cluster needs"
            )
    return findings
