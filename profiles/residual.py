"""What the constants of a cluster leave over: a Gaussian process on the log residual of measured runs.

Rasmussen and Williams 2006 ("Gaussian Processes for Machine Learning", section 2.2). With kernel
``k(a, b) = A^2 exp(-|a - b|^2 / (2 l^2))``, runs X and what is left of them r, a configuration x has
the mean ``k(x, X) w`` with ``w = (K + noise)^-1 r`` and the spread that is left by knowing the runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
MAX_LOG = 4.6  # a hundredfold; what is more comes from a broken process


def squared_distances(a: FloatArray, b: FloatArray) -> FloatArray:
    """Squared Euclidean distances of all rows of ``a`` (n, F) to all of ``b`` (m, F): (n, m)."""
    apart = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * a @ b.T
    return np.asarray(np.maximum(apart, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """The process after its runs were seen; matrices as tuples of rows."""

    points: tuple[tuple[float, ...], ...]  # features of the runs, (K, F)
    weights: tuple[float, ...]  # (K,) of the mean
    amplitude: float  # of the mean's kernel, log time
    length: float
    trend_amplitude: float  # what the constants themselves leave open far from any run, log time
    trend_length: float
    precision: tuple[tuple[float, ...], ...]  # (K, K) inverse covariance of the runs, both kernels
    noise: float  # of one run
    scale: float  # spread over the process's own, from leaving one run out at a time

    def _kernels(self, features: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Covariances with the runs: of the residual, and of the trend."""
        apart = squared_distances(features, np.array(self.points))
        near = self.amplitude**2 * np.exp(-0.5 * apart / self.length**2)
        return near, self.trend_amplitude**2 * np.exp(-0.5 * apart / self.trend_length**2)

    def log_factor(self, features: FloatArray) -> FloatArray:
        """Mean of ``ln(measured / predicted)`` at each row of ``features`` (n, F), bounded: (n,)."""
        near, _ = self._kernels(features)
        return np.asarray(np.clip(near @ np.array(self.weights), -MAX_LOG, MAX_LOG))

    def sigma(self, features: FloatArray) -> FloatArray:
        """Spread of ``ln(measured / predicted)`` of one run at each row, noise included: (n,)."""
        near, trend = self._kernels(features)
        known = near + trend
        prior = self.amplitude**2 + self.trend_amplitude**2
        left = prior - np.einsum("nk,kl,nl->n", known, np.array(self.precision), known)
        spread = self.scale * np.sqrt(np.maximum(left, 0.0) + self.noise**2)
        return np.asarray(np.minimum(spread, MAX_LOG))

    def covariance(self, features: FloatArray) -> FloatArray:
        """Of the true ``ln(time / predicted)`` at each pair of rows, without the noise of runs: (n, n)."""
        near, trend = self._kernels(features)
        known, apart = near + trend, squared_distances(features, features)
        prior = self.amplitude**2 * np.exp(-0.5 * apart / self.length**2)
        prior += self.trend_amplitude**2 * np.exp(-0.5 * apart / self.trend_length**2)
        left = prior - known @ np.array(self.precision) @ known.T
        return np.asarray(self.scale**2 * left)
