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

_AMPLITUDES = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0)  # multiples of the prior's that are tried
_NOISES = (0.5, 1.0, 2.0, 4.0, 8.0)
# Of the constants' prior widths, with the prior chance of each: whether a cluster's runs differ by what
# its constants explain is for the runs to say.
_TRUSTS = {0.0: 0.25, 0.5: 0.25, 1.0: 0.5}
_MOST_HEARD = 128  # runs, evenly drawn: three numbers need no more


def kernel(features: FloatArray, process: Process) -> FloatArray:
    """Covariance of the residual between runs, without noise."""
    apart = squared_distances(features, features)
    return np.asarray(process.amplitude**2 * np.exp(-0.5 * apart / process.length**2))


def chosen_process(
    prior: Process, features: FloatArray, left: FloatArray, from_constants: FloatArray
) -> Process:
    """Amplitude, noise and trust in the constants by marginal likelihood, held near the prior's.

    The mean over a grid, weighted by likelihood (of amplitude and noise the geometric one): few runs
    barely tell neighbours apart, and the best cell alone would jump between them. With no run to tell,
    or runs that nothing explains, the noise stays large and the calibration near the stack.

    Args:
        prior: where to look, and how freely.
        features: of the runs, (K, F).
        left: measured less predicted at the stack's constants, log, (K,).
        from_constants: covariance that the constants' priors give the runs, (K, K).
    """
    heard = np.unique(np.linspace(0, len(left) - 1, min(len(left), _MOST_HEARD)).astype(np.int64))
    features, left, from_constants = features[heard], left[heard], from_constants[np.ix_(heard, heard)]
    near = kernel(features, prior)
    cells, scores = [], []
    for trust, amplitude in product(_TRUSTS, _AMPLITUDES):
        # one decomposition serves every noise
        values, vectors = np.linalg.eigh(trust**2 * from_constants + amplitude**2 * near)
        turned = vectors.T @ left
        for noise in _NOISES:
            variances = np.maximum(values, 0.0) + (noise * prior.noise) ** 2
            surprise = float((turned**2 / variances + np.log(variances)).sum())
            held = (log(amplitude) / prior.freedom) ** 2 + (log(noise) / prior.noise_freedom) ** 2
            cells.append((log(amplitude), log(noise), trust))
            scores.append(log(_TRUSTS[trust]) - 0.5 * (surprise + held))
    weights = np.exp(np.array(scores) - max(scores))
    amplitude, noise, trust = weights @ np.array(cells) / weights.sum()
    return replace(
        prior,
        amplitude=prior.amplitude * float(np.exp(amplitude)),
        noise=prior.noise * float(np.exp(noise)),
        trust=float(trust),
    )
