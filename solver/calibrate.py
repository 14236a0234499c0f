"""Calibration of one cluster from a few measured runs, and which runs to measure.

This version fits one multiplicative time factor and the spread that remains, both shrunk towards
the uncalibrated profile. Runs are chosen from their configurations alone: the farthest-point choice
spreads them over the space of configurations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import exp
from typing import Literal

import numpy as np

from profiles.profile import Profile
from solver.columns import FloatArray
from solver.plan import Configuration
from solver.problem import Problem

Choice = Literal["suggested", "random"]
PRIOR_RUNS = 3.0  # the uncalibrated spread counts as much as this many runs
RUN_NOISE = 0.06  # usual scatter of one run about its cluster's level, in log time
MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, normal distribution
LEAST_SIGMA = 0.02
_FEW = 4  # below and at this many runs, central configurations teach more than extreme ones


def features_of(problem: Problem, configuration: Configuration) -> FloatArray:
    """What sets one run apart from another: logarithms of its sizes, and its switches."""
    c, model = configuration, problem.model
    sizes = (
        c.tensor_parallel_size, c.pipeline_parallel_size, c.virtual_pipeline_size,
        c.context_parallel_size, c.expert_parallel_size, c.data_parallel_size, c.micro_batch_size,
        c.num_microbatches, problem.workload.seq_length, model.hidden_size, model.num_layers,
    )  # fmt: skip
    switches = (
        float(c.sequence_parallel), float(c.zero_stage), float(c.recompute_granularity != "none"),
        2.0 * (problem.workload.precision == "fp8"), 2.0 * (model.moe is not None),
    )  # fmt: skip
    return np.array([*np.log2(sizes), *switches])


def measuring_order(
    features: Sequence[FloatArray], count: int, *, choose: Choice = "suggested", seed: int = 0
) -> list[int]:
    """All runs in the order in which to measure them, when ``count`` are wanted.

    ``suggested``: from the most central run on, always the one farthest from those taken; with few
    runs only among the central half. ``random``: shuffled by the seed.
    """
    n = len(features)
    if n == 0:
        return []
    if choose == "random":
        return [int(i) for i in np.random.default_rng(seed).permutation(n)]
    points = np.stack(features)
    from_centre = ((points - points.mean(axis=0)) ** 2).sum(axis=1)
    order = [int(from_centre.argmin())]
    allowed = np.ones(n, dtype=bool)
    if count <= _FEW:
        allowed = from_centre <= np.median(from_centre)
    nearest = ((points - points[order[0]]) ** 2).sum(axis=1)
    while len(order) < n:
        nearest[order] = -1.0
        candidates = np.where(allowed, nearest, -1.0)
        if candidates.max() < 0.0:
            candidates = nearest
        order.append(int(candidates.argmax()))
        nearest = np.minimum(nearest, ((points - points[order[-1]]) ** 2).sum(axis=1))
    return order


def calibrated(profile: Profile, log_ratios: Sequence[float]) -> Profile:
    """The profile after measuring runs with these ``ln(measured / predicted)`` step times.

    The level moves to the median of the ratios, shrunk by ``tau^2 / (tau^2 + e^2)``: tau is the prior
    spread of a cluster's level, e the standard error of the median (1.25 s / sqrt(n), with s the
    scatter of the runs, at least the noise of a single one). The new spread is the mean square about
    the level, the prior counting as a few runs, plus what the level itself leaves uncertain.
    """
    n = len(log_ratios)
    if n == 0:
        return profile
    ratios = np.asarray(log_ratios)
    sigma = profile.log_time_sigma
    scatter = np.sqrt((n * float(ratios.std()) ** 2 + PRIOR_RUNS * RUN_NOISE**2) / (n + PRIOR_RUNS))
    error = MEDIAN_ERROR * float(scatter) / np.sqrt(n)
    trust = sigma**2 / (sigma**2 + error**2)
    level = float(np.median(ratios)) * trust
    squares = float(((ratios - level) ** 2).sum()) + PRIOR_RUNS * min(sigma, RUN_NOISE) ** 2
    spread = max(float(np.sqrt(squares / (n + PRIOR_RUNS) + trust * error**2)), LEAST_SIGMA)
    return replace(
        profile,
        time_factor=profile.time_factor * exp(level),
        log_time_sigma=spread,
        title=profile.title.replace("uncalibrated", f"calibrated on {n} runs"),
    )
