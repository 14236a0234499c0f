"""What looks wrong: runs that cannot be, runs that contradict each other, constants at their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

import numpy as np

from profiles.calibration import LOWER_BOUNDS, UPPER_BOUNDS
from profiles.profile import Constants, Profile
from profiles.units import GIB
from solver.calibration.observations import Observation
from solver.columns import FloatArray

_CONTRADICTS = 3.0  # leave-one-out residuals, in their own spreads
_TWINS = 0.8  # features closer than this differ in little more than one halved size
_FAR = 2.0  # prior widths
_BARELY = 0.02  # relative move below which a constant counts as unmoved
_MAX_NAMED = 5
_MAX_SHOWN = 64  # characters of a run's name
_UNITS = 1.1  # a peak given in GB and read as GiB still fits
_LEAST_BYTES_A_WEIGHT = 0.5  # 4 bits, spread over all GPUs


def impossible(one: Observation, profile: Profile) -> str | None:
    """Why a run cannot have happened as stated; None when it can.

    A step cannot be faster than the model's FLOPs at the GPUs' dense peak in the run's precision, and
    its peak memory can neither exceed the GPU's nor be less than its share of the weights.
    """
    has_bytes = profile.group.gpu.memory_bytes
    if one.peak_memory_bytes is not None and one.peak_memory_bytes > _UNITS * has_bytes:
        return (
            f"run {_called(one)} is left out: {one.peak_memory_bytes / GIB:.4g} GiB is more than the "
            f"{has_bytes / GIB:.4g} GiB of {profile.group.gpu.slug}"
        )
    least_bytes = _LEAST_BYTES_A_WEIGHT * one.problem.model.num_parameters() / one.configuration.num_gpus
    if one.peak_memory_bytes is not None and one.peak_memory_bytes < least_bytes:
        return (
            f"run {_called(one)} is left out: {one.peak_memory_bytes / GIB:.4g} GiB do not hold "
            f"{least_bytes / GIB:.4g} GiB, a GPU's share of the weights in 4 bits"
        )
    if one.step_time_s is None:
        return None
    workload, gpu = one.problem.workload, profile.group.gpu
    frozen = workload.lora_rank > 0
    flops = one.problem.model.model_flops_per_token(workload.seq_length, frozen=frozen)
    flops *= workload.seq_length
    flops *= one.configuration.global_batch_size / one.configuration.num_gpus
    least_s = flops / max(gpu.peak_flops.values())
    if one.step_time_s >= least_s:
        return None
    return (
        f"run {_called(one)} is left out: {one.step_time_s:.4g} s is less than the {least_s:.4g} s that "
        f"its FLOPs take at the peak of {gpu.slug}"
    )


def _called(one: Observation) -> str:
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
        text = f"run {_called(observations[index])} is {abs(leave_one_out[index]):.1f} spreads {way} than "
        if apart[index, twin] < _TWINS:
            text += f"the other runs say; the most alike is {_called(observations[twin])}"
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
