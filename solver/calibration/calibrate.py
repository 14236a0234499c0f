"""Calibration of one cluster from a few measured runs.

The posterior of one hierarchical model (``solver/calibration/fit.py``) moves the constants of the software
stack and keeps what they leave over as a Gaussian process; its spread becomes the error band of each
prediction. Memory alike. Whatever looks wrong is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log

import numpy as np

from meshwright.profiles.calibration import LOWER_BOUNDS, UPPER_BOUNDS, Calibration
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Constants, Profile, default_profile, of_unknown_software
from meshwright.profiles.units import GIB
from meshwright.solver.answer import Prediction
from meshwright.solver.calibration.credible import beyond_records, least_step_s, model_flops
from meshwright.solver.calibration.fit import Box, Evaluate, Left, Runs, fit, left_over
from meshwright.solver.calibration.measured import timed_record
from meshwright.solver.calibration.observations import (
    Observation,
    ProfileOf,
    batches_of,
    log_peak_bytes,
    log_step_s,
    memory_configuration,
    predictions_of,
    roughness_of,
)
from meshwright.solver.calibration.priors import (
    MEMORY_PROCESS,
    MEMORY_WIDTHS,
    TIME_PROCESS,
    TIME_WIDTHS,
    Process,
)
from meshwright.solver.configuration import BoolArray, FloatArray
from meshwright.solver.cost.residuals import features_of
from meshwright.solver.cost.uncertainty import between, least_log_sigma, shared_spreads
from meshwright.solver.predict import Z_80_PERCENT

# --------------------------------------------------------------------------------------------------
# What looks wrong: runs that cannot be, runs that contradict each other, constants at their bounds.


_CONTRADICTS = 3.0  # leave-one-out residuals, in their own spreads
_NOT_BELIEVED, _MOST_NOT_BELIEVED = 4.0, 0.25  # the same; and the share of the runs
_TWINS = 0.8  # features closer than this differ in little more than one halved size
_FAR = 2.0  # prior widths
_BARELY = 0.02  # relative move below which a constant counts as unmoved
_ALMOST = 1.0 - 1e-9  # of a bound: an exponential of its logarithm misses it by rounding
_MAX_NAMED = 5
# Of the variance of an uncalibrated prediction, without what clusters differ by in common, the part that a
# run is off by alone; alike configurations share the rest.
_OWN_SHARE = 0.5
_MAX_SHOWN = 64  # characters of a run's name
_UNITS = 1.1  # a peak given in GB and read as GiB still fits
_LEAST_BYTES_A_WEIGHT = 0.5  # 4 bits, spread over all GPUs
_LEAST_FILLED = 0.5  # of the limit; the open runs that ran out of memory were expected to take .72 and more


def impossible(one: Observation, profile: Profile) -> str | None:
    """Return why a run cannot have happened as stated; None when it can.

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
            f"run {called(one)} is left out: {one.peak_memory_bytes / GIB:.4g} GiB cannot hold "
            f"{least_bytes / GIB:.4g} GiB, a GPU's share of the weights in 4 bits"
        )
    if one.step_time_s is None:
        return None
    gpu, least_s = profile.group.gpu, least_step_s(one.problem, one.configuration)
    if one.step_time_s < least_s:
        return (
            f"run {called(one)} is left out: {one.step_time_s:.4g} s is less than the {least_s:.4g} s that "
            f"its FLOPs take at the peak of {gpu.slug}"
        )
    mfu = model_flops(one.problem, one.configuration) / one.step_time_s / gpu.peak_bf16_flops
    beyond = beyond_records(mfu, one.problem, one.configuration, profile)
    return f"run {called(one)} is left out: {one.step_time_s:.4g} s is {beyond}" if beyond else None


def called(one: Observation) -> str:
    """Return a run's name, printable and short."""
    return "".join(char if char.isprintable() else "?" for char in one.name[:_MAX_SHOWN])


def contradictions(
    observations: Sequence[Observation],
    features: FloatArray,
    leave_one_out: FloatArray,
    *,
    words: tuple[str, str] = ("slower", "faster"),
) -> list[str]:
    """Report runs that the others do not explain, with the most similar run if there is one.

    ``words``: "more" and "less" for the measured quantity.
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
            text += f"the other runs imply (the most similar run is {called(observations[twin])})"
        else:
            text += "the other runs imply"
        findings.append(text)
    return findings


def constants_at_bounds(
    constants: Constants, offsets: Mapping[str, float], widths: Mapping[str, float]
) -> list[str]:
    """Report constants that the runs drove to a physical bound, or far from every stack's."""
    findings = []
    for name, offset in offsets.items():
        own = getattr(constants, name)
        value = own * exp(offset)
        upper, lower = UPPER_BOUNDS.get(name, np.inf), LOWER_BOUNDS.get(name, 0.0)
        if abs(offset) > _BARELY and value >= upper * _ALMOST and upper > own:
            findings.append(f"{name} reached its physical bound {upper:g}")
        elif abs(offset) > _BARELY and value * _ALMOST <= lower < own:
            findings.append(f"{name} reached its physical bound {lower:g}")
        elif abs(offset) > _FAR * widths[name]:
            findings.append(
                f"{name} came out {exp(offset):.2g} times its stack's value. No other cluster needs that"
            )
    return findings


MOST_RUNS = 512  # learnt from at once: more cost minutes and add next to nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    offsets: dict[str, float]
    log_sds: dict[str, float]
    left: Left
    findings: tuple[str, ...]


def default_profile_of(one: Observation) -> Profile:
    """Return an observation's uncalibrated profile; of unmeasured software the global level's."""
    profile = default_profile(one.problem.cluster, one.framework)
    return profile if one.software_known else of_unknown_software(profile)


def calibrate(
    observations: Sequence[Observation], *, cluster: str, profile_of: ProfileOf = default_profile_of
) -> Calibration:
    """Learn one cluster from its runs.

    Args:
        observations: runs of one cluster; those with a step time teach time, those with a peak or
            that ran out of memory teach memory; their order changes nothing.
        cluster: name of the calibration.
        profile_of: the uncalibrated profile of an observation.

    Raises:
        InvalidProblemError: there is no run, or none is possible.
    """
    possible, reasons = _to_learn_from(observations, profile_of)
    timed = [one for one in possible if one.step_time_s is not None]
    time = _time_part(timed, profile_of) if timed else None
    expected = list(zip(possible, expected_memory(possible, profile_of), strict=True))
    memory = _memory_part([memory_observation(one, blind) for one, blind in expected], profile_of)
    return Calibration(
        cluster=cluster,
        stack=_stack_of(possible, profile_of),
        gpu=profile_of(possible[0]).group.gpu.slug,
        num_runs=len(timed),
        log_offsets=(time.offsets if time else {}) | (memory.offsets if memory else {}),
        log_sds=(time.log_sds if time else {}) | (memory.log_sds if memory else {}),
        residual=time.left.residual if time else None,
        memory_residual=memory.left.residual if memory else None,
        log_memory_sigma=_memory_sigma(memory, profile_of(possible[0])),
        findings=(
            *reasons,
            *(time.findings if time else ()),
            *(memory.findings if memory else ()),
            *(finding for one, blind in expected if (finding := _filled_by_others(one, blind))),
        ),
        runs=tuple(called(one) for one in possible),
        measured=tuple(timed_record(one, called(one)) for one in timed),
    )


def _memory_sigma(memory: _Part | None, blind: Profile) -> float | None:
    """Return the spread of peaks, at most the uncalibrated one: runs make nobody less sure of what fits."""
    return None if memory is None else min(memory.left.typical_sigma, blind.log_memory_sigma)


def _stack_of(possible: Sequence[Observation], profile_of: ProfileOf) -> str:
    """Return the software stack of all runs.

    Raises:
        InvalidProblemError: there are several; one stack's offsets do not hold for another's.
    """
    stacks = {profile_of(one).framework.stack: called(one) for one in reversed(possible)}
    if len(stacks) > 1:
        named = ", ".join(f"{stack} (run {run})" for stack, run in sorted(stacks.items()))
        message = (
            f"the runs come from several software stacks: {named}. Give the runs of each stack a "
            "separate cluster name"
        )
        raise InvalidProblemError.of("/runs/framework_family", message, allowed="runs of one stack")
    return next(iter(stacks))


def _to_learn_from(
    observations: Sequence[Observation], profile_of: ProfileOf
) -> tuple[list[Observation], tuple[str, ...]]:
    """Return the possible runs in the order of their names, and why others are left out.

    Raises:
        InvalidProblemError: none is left.
    """
    ordered = sorted(observations, key=lambda one: (one.name, repr(one)))
    refused = [(one, impossible(one, profile_of(one))) for one in ordered]
    reasons = tuple(reason for _, reason in refused if reason)
    possible = [one for one, reason in refused if reason is None]
    if not possible:
        raise InvalidProblemError.of("/runs", reasons[0] if reasons else "there is no run to calibrate on")
    if len(possible) <= MOST_RUNS:
        return possible, reasons
    drawn = np.unique(np.linspace(0, len(possible) - 1, MOST_RUNS).astype(np.int64))
    more = f"calibrated on {MOST_RUNS} of {len(possible)} runs, sampled evenly by name"
    return [possible[i] for i in drawn], (*reasons, more)


def _features(observations: Sequence[Observation]) -> FloatArray:
    return np.stack([features_of(one.problem, one.configuration) for one in observations])


def _time_part(timed: Sequence[Observation], profile_of: ProfileOf) -> _Part:
    """Fit constants and residual of the step time.

    Fitted on the closed form of the step; what the event simulation differs by at the stack's
    constants is kept as a fixed correction of each run.
    """
    names = tuple(TIME_WIDTHS)
    batches = batches_of(timed, profile_of)
    closed = log_step_s(batches, names, np.zeros((1, len(names))))[0]
    blind = predictions_of(timed, profile_of)
    exact = np.log([prediction.step_time_s for prediction in blind])

    def evaluate(offsets: FloatArray) -> FloatArray:
        return np.asarray(log_step_s(batches, names, offsets) + (exact - closed))

    measured = np.log([one.step_time_s or 1.0 for one in timed])
    sigmas = np.log([one.step_time_high_s / one.step_time_s for one in blind]) / Z_80_PERCENT
    # what launches and links are in doubt by is among the features that are fitted
    least = np.array([least_log_sigma(one.problem, profile_of(one)) for one in timed])
    own = np.where(least > 0.0, least, sigmas) ** 2 - np.square([between(one.problem) for one in timed])
    rough, (shared, common) = roughness_of(batches), shared_spreads()
    part = _part(
        timed,
        profile_of(timed[0]),
        evaluate,
        Runs(
            measured=measured,
            features=_features(timed),
            noises=np.sqrt(_OWN_SHARE * np.maximum(own, 0.0) + (TIME_PROCESS.noise * rough) ** 2),
            roughness=rough,
            shared=shared,
            common=common,
        ),
        "time",
    )
    return replace(part, findings=(*_in_milliseconds(measured - exact), *part.findings))


def _in_milliseconds(log_times: FloatArray) -> list[str]:
    """Warn if step times look like milliseconds, which launchers log.

    ``log_times``: each run's time over its uncalibrated prediction. Half of them are nearer to
    a thousand times than to once.
    """
    times = float(np.median(log_times))
    if times < log(1000.0) / 2.0:
        return []
    seen = f"half of the runs took over {exp(times):.0f} times the expected time"
    return [f"{seen}: write step_time_s in seconds, not milliseconds"]


def _memory_part(observations: Sequence[Observation | None], profile_of: ProfileOf) -> _Part | None:
    """Fit constants and residual of the peak memory; None if no run is informative.

    A run that ran out of memory shows that its peak is above the limit, and nothing if that is
    what was predicted anyway, or where so little was that something else must have filled the GPU.
    """
    known = [one for one in observations if one is not None and one.peak_memory_bytes]
    if not known:
        return None
    names = tuple(MEMORY_WIDTHS)
    batches = batches_of(known, profile_of)
    profile = profile_of(known[0])
    sigma = profile.log_memory_sigma
    noise = float(np.sqrt(_OWN_SHARE * sigma**2 + MEMORY_PROCESS.noise**2))
    return _part(
        known,
        profile,
        lambda offsets: log_peak_bytes(batches, names, offsets),
        Runs(
            measured=np.log([one.peak_memory_bytes or 1.0 for one in known]),
            features=_features(known),
            noises=np.full(len(known), noise),
            roughness=np.ones(len(known)),
            shared=(sigma, sigma),
        ),
        "memory",
    )


def expected_memory(observations: Sequence[Observation], profile_of: ProfileOf) -> list[Prediction | None]:
    """Return the uncalibrated predictions of runs with a known peak, or that ran out of memory."""
    tells = [one.peak_memory_bytes is not None or one.out_of_memory for one in observations]
    telling = [one for one, does in zip(observations, tells, strict=True) if does]
    found = iter(predictions_of(telling, profile_of))
    return [next(found) if does else None for does in tells]


def _filled_by_others(one: Observation, blind: Prediction | None) -> str | None:
    """Return why a run that ran out of memory is uninformative: far less was expected; else None."""
    if blind is None or one.peak_memory_bytes is not None:
        return None
    expected = blind.peak_memory_bytes
    limit = one.problem.memory_limit_bytes
    if expected >= _LEAST_FILLED * limit:
        return None
    return (
        f"run {called(one)} ran out of memory where {expected / GIB:.3g} of {limit / GIB:.3g} GiB "
        "are expected. The calibration ignores this run: something else filled the GPU, or the "
        "run used another configuration"
    )


def memory_observation(one: Observation, blind: Prediction | None) -> Observation | None:
    """Return the run as its memory is judged, given its prediction; None if it is uninformative."""
    if blind is None:
        return None
    judged_as = memory_configuration(one, blind)
    judged = replace(one, configuration=judged_as)
    if one.peak_memory_bytes is not None:
        return judged
    limit = one.problem.memory_limit_bytes
    if not _LEAST_FILLED * limit <= blind.peak_memory_bytes < limit:
        return None
    return replace(judged, peak_memory_bytes=float(limit), memory_kind="exhausted", memory_rank="worst")


# Prior widths and process of each quantity, and how a run that the others contradict differs from them.
_QUANTITIES: Mapping[str, tuple[Mapping[str, float], Process, tuple[str, str]]] = {
    "time": (TIME_WIDTHS, TIME_PROCESS, ("slower", "faster")),
    "memory": (MEMORY_WIDTHS, MEMORY_PROCESS, ("larger in memory", "smaller in memory")),
}


def _part(
    observed: Sequence[Observation], profile: Profile, evaluate: Evaluate, runs: Runs, quantity: str
) -> _Part:
    """Fit one quantity; a run that the others contradict by far is left out, one after another."""
    widths, prior, words = _QUANTITIES[quantity]
    box, kept = Box.of(profile.constants, tuple(widths)), np.ones(len(observed), dtype=bool)
    findings: list[str] = []
    while True:
        mine, own = [one for one, has in zip(observed, kept, strict=True) if has], runs.at(kept)
        found = fit(partial(_of_kept, evaluate, kept), own, widths=widths, box=box, prior=prior)
        left = left_over(found, quantity)
        told = contradictions(mine, own.features, left.leave_one_out, words=words)
        worst = int(np.argmax(np.abs(left.leave_one_out)))
        most = int(_MOST_NOT_BELIEVED * len(observed))
        if abs(left.leave_one_out[worst]) <= _NOT_BELIEVED or int((~kept).sum()) >= most:
            break
        findings.append(f"{told[0]}. The calibration doesn't believe it")
        kept[np.flatnonzero(kept)[worst]] = False
    offsets = dict(zip(widths, (float(value) for value in found.offsets), strict=True))
    findings += [*told, *constants_at_bounds(profile.constants, offsets, widths)]
    return _Part(
        offsets=offsets,
        log_sds=dict(zip(widths, (float(value) for value in found.log_sds), strict=True)),
        left=left,
        findings=tuple(findings),
    )


def _of_kept(evaluate: Evaluate, kept: BoolArray, offsets: FloatArray) -> FloatArray:
    return evaluate(offsets)[:, kept]
