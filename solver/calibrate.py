"""Calibration of one cluster from a few measured runs.

Every constant of the software stack is fitted again, held near its value there, jointly with a
Gaussian process for what the physics does not catch; its spread becomes the error band of each
prediction. Memory alike. What looks wrong is said, never swallowed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from profiles.calibration import Calibration
from profiles.errors import InvalidProblemError
from profiles.profile import Profile, default_profile
from solver.calibration.batches import ProfileOf, batches_of, log_peak_bytes, log_step_s
from solver.calibration.box import Box
from solver.calibration.fit import Evaluate, fit
from solver.calibration.leftover import Left, Spread, left_over, spread_of
from solver.calibration.observations import Observation, memory_configuration
from solver.calibration.priors import (
    MEMORY_PROCESS,
    MEMORY_WIDTHS,
    TIME_PROCESS,
    TIME_WIDTHS,
    Process,
)
from solver.calibration.refuse import called, constants_at_bounds, contradictions, impossible
from solver.columns import FloatArray
from solver.cost.memory import memory_limit_bytes
from solver.features import features_of
from solver.predict import Z_80_PERCENT, predict

MOST_RUNS = 512  # learnt from at once: more cost minutes and tell next to nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One calibrated quantity: the offsets of its constants and what is left over."""

    offsets: dict[str, float]
    log_sds: dict[str, float]
    left: Left
    findings: tuple[str, ...]


def default_profile_of(one: Observation) -> Profile:
    """The uncalibrated profile of an observation."""
    return default_profile(one.problem.cluster, one.framework)


def calibrate(
    observations: Sequence[Observation], *, cluster: str, profile_of: ProfileOf = default_profile_of
) -> Calibration:
    """Learn one cluster from its runs.

    Args:
        observations: runs of one cluster; those with a step time teach time, those with a peak or
            that ran out of memory teach memory; their order changes nothing.
        cluster: what to call it.
        profile_of: the uncalibrated profile of an observation.

    Raises:
        InvalidProblemError: there is no run, or none is possible.
    """
    possible, reasons = _to_learn_from(observations, profile_of)
    timed = [one for one in possible if one.step_time_s is not None]
    time = _time_part(timed, profile_of) if timed else None
    memory = _memory_part(possible, profile_of)
    return Calibration(
        cluster=cluster,
        stack=_stack_of(possible, profile_of),
        gpu=profile_of(possible[0]).group.gpu.slug,
        num_runs=len(timed),
        log_offsets=(time.offsets if time else {}) | (memory.offsets if memory else {}),
        log_sds=(time.log_sds if time else {}) | (memory.log_sds if memory else {}),
        residual=time.left.residual if time else None,
        memory_residual=memory.left.residual if memory else None,
        log_memory_sigma=memory.left.typical_sigma if memory else None,
        findings=(
            *reasons,
            *(time.findings if time else ()),
            *(memory.findings if memory else ()),
        ),
        runs=tuple(called(one) for one in possible),
    )


def _stack_of(possible: Sequence[Observation], profile_of: ProfileOf) -> str:
    """The software stack of all runs.

    Raises:
        InvalidProblemError: there are several; offsets of one stack's constants say nothing of another's.
    """
    stacks = {profile_of(one).framework.stack: called(one) for one in reversed(possible)}
    if len(stacks) > 1:
        named = ", ".join(f"{stack} (run {run})" for stack, run in sorted(stacks.items()))
        message = f"the runs are of several software stacks: {named}; give each a cluster name of its own"
        raise InvalidProblemError.of("/runs/framework_family", message, allowed="runs of one stack")
    return next(iter(stacks))


def _to_learn_from(
    observations: Sequence[Observation], profile_of: ProfileOf
) -> tuple[list[Observation], tuple[str, ...]]:
    """The runs in the order of their names without those that cannot be, and why others are left out.

    Raises:
        InvalidProblemError: none is left.
    """
    ordered = sorted(observations, key=lambda one: (one.name, repr(one)))
    refused = [(one, impossible(one, profile_of(one))) for one in ordered]
    reasons = tuple(reason for _, reason in refused if reason)
    possible = [one for one, reason in refused if reason is None]
    if not possible:
        raise InvalidProblemError.of("/runs", reasons[0] if reasons else "there is no run to learn from")
    if len(possible) <= MOST_RUNS:
        return possible, reasons
    drawn = np.unique(np.linspace(0, len(possible) - 1, MOST_RUNS).astype(np.int64))
    more = f"learnt from {MOST_RUNS} of {len(possible)} runs, evenly drawn by name"
    return [possible[i] for i in drawn], (*reasons, more)


def _features(observations: Sequence[Observation]) -> FloatArray:
    """Features of all runs, (K, F)."""
    return np.stack([features_of(one.problem, one.configuration) for one in observations])


def _time_part(timed: Sequence[Observation], profile_of: ProfileOf) -> _Part:
    """Constants and residual of the step time.

    Fitted on the closed form of the step; what the event simulation differs by at the stack's
    constants is kept as a fixed correction of each run.
    """
    names = tuple(TIME_WIDTHS)
    batches = batches_of(timed, profile_of)
    closed = log_step_s(batches, names, np.zeros((1, len(names))))[0]
    blind = [predict(one.problem, profile_of(one), one.configuration) for one in timed]
    exact = np.log([prediction.step_time_s for prediction in blind])

    def evaluate(offsets: FloatArray) -> FloatArray:
        return np.asarray(log_step_s(batches, names, offsets) + (exact - closed))

    measured = np.log([one.step_time_s or 1.0 for one in timed])
    sigmas = np.log([one.step_time_high_s / one.step_time_s for one in blind]) / Z_80_PERCENT
    return _part(
        _Evidence(evaluate=evaluate, measured=measured, runs=timed, profile=profile_of(timed[0])),
        widths=TIME_WIDTHS,
        prior=TIME_PROCESS,
        spread=spread_of("time", float(np.median(sigmas))),
    )


def _memory_part(possible: Sequence[Observation], profile_of: ProfileOf) -> _Part | None:
    """Constants and residual of the peak memory; None when no run tells anything.

    A run that ran out of memory tells that its peak is above the limit, and nothing where that is
    what was predicted anyway.
    """
    told = [memory_observation(one, profile_of) for one in possible]
    known = [one for one in told if one is not None and one.peak_memory_bytes]
    if not known:
        return None
    names = tuple(MEMORY_WIDTHS)
    batches = batches_of(known, profile_of)
    profile = profile_of(known[0])
    return _part(
        _Evidence(
            evaluate=lambda offsets: log_peak_bytes(batches, names, offsets),
            measured=np.log([one.peak_memory_bytes or 1.0 for one in known]),
            runs=known,
            profile=profile,
            words=("larger in memory", "smaller in memory"),
        ),
        widths=MEMORY_WIDTHS,
        prior=MEMORY_PROCESS,
        spread=spread_of("memory", profile.log_memory_sigma),
    )


def memory_observation(one: Observation, profile_of: ProfileOf) -> Observation | None:
    """The run as its memory is to be judged; None when it tells nothing."""
    if one.peak_memory_bytes is None and not one.out_of_memory:
        return None
    prediction = predict(one.problem, profile_of(one), one.configuration)
    judged_as = memory_configuration(one.configuration, prediction, recompute_known=one.recompute_known)
    judged = replace(one, configuration=judged_as)
    if one.peak_memory_bytes is not None:
        return judged
    limit = memory_limit_bytes(one.problem)
    if prediction.peak_memory_bytes >= limit:
        return None
    return replace(judged, peak_memory_bytes=float(limit), memory_kind="device", memory_rank="worst")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """Runs, what they measured, and how to predict it."""

    evaluate: Evaluate
    measured: FloatArray
    runs: Sequence[Observation]
    profile: Profile
    words: tuple[str, str] = ("slower", "faster")  # of a run that the others contradict


def _part(evidence: _Evidence, *, widths: Mapping[str, float], prior: Process, spread: Spread) -> _Part:
    """Fit one quantity and judge the outcome."""
    points = _features(evidence.runs)
    found = fit(
        evidence.evaluate,
        evidence.measured,
        points,
        widths=tuple(widths.values()),
        box=Box.of(evidence.profile.constants, tuple(widths)),
        prior=prior,
    )
    left = left_over(found, points, evidence.measured, spread)
    offsets = dict(zip(widths, (float(value) for value in found.offsets), strict=True))
    findings = contradictions(evidence.runs, points, left.leave_one_out, words=evidence.words)
    findings += constants_at_bounds(evidence.profile.constants, offsets, widths)
    log_sds = dict(zip(widths, (float(value) for value in found.log_sds), strict=True))
    return _Part(offsets=offsets, log_sds=log_sds, left=left, findings=tuple(findings))
