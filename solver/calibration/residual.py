"""The covariance of what the constants leave over, and how much of it the runs show.

Marginal likelihood: Rasmussen and Williams 2006 ("Gaussian Processes for Machine Learning"), equation
2.30.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import log

import numpy as np

from profiles.residual import squared_distances
from solver.calibration.priors import Process
from solver.columns import FloatArray

_AMPLITUDES = (0.5, 1.0, 2.0, 4.0, 8.0)  # multiples of the prior's that are tried
_NOISES = (0.5, 1.0, 2.0, 4.0)


def kernel(features: FloatArray, process: Process) -> FloatArray:
    """Covariance of the residual between runs, without noise."""
    apart = squared_distances(features, features)
    return np.asarray(process.amplitude**2 * np.exp(-0.5 * apart / process.length**2))


def chosen_process(
    prior: Process, features: FloatArray, left: FloatArray, from_constants: FloatArray
) -> Process:
    """Amplitude and noise by marginal likelihood, held near the prior's.

    The geometric mean over a grid, weighted by likelihood: few runs barely tell neighbours apart, and
    the best cell alone would jump between them.

    Args:
        prior: where to look, and how freely.
        features: of the runs, (K, F).
        left: measured less predicted at the stack's constants, log, (K,).
        from_constants: covariance that the constants' priors give the runs, (K, K).
    """

    def score(factors: tuple[float, float]) -> float:
        tried = replace(prior, amplitude=prior.amplitude * factors[0], noise=prior.noise * factors[1])
        covariance = from_constants + kernel(features, tried) + tried.noise**2 * np.eye(len(left))
        _, log_volume = np.linalg.slogdet(covariance)
        surprise = float(left @ np.linalg.solve(covariance, left)) + float(log_volume)
        return -0.5 * surprise - 0.5 * sum((log(factor) / prior.freedom) ** 2 for factor in factors)

    tried = list(product(_AMPLITUDES, _NOISES))
    scores = np.array([score(factors) for factors in tried])
    weights = np.exp(scores - scores.max())
    amplitude, noise = np.exp(weights @ np.log(tried) / weights.sum())
    return replace(prior, amplitude=prior.amplitude * float(amplitude), noise=prior.noise * float(noise))
