"""What a fit leaves over as a process with an honest spread.

Leave-one-out residuals ``(C^-1 z)_i / (C^-1)_ii``: Rasmussen and Williams 2006 ("Gaussian Processes
for Machine Learning"), equation 5.12.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from profiles.residual import Residual
from solver.calibration.fit import Fit
from solver.calibration.residual import kernel
from solver.columns import FloatArray
from solver.spread import catalog_spreads

_MOST = 4.0  # one run counts for no more than this many spreads


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """What the open clusters taught about the spread of calibrated predictions."""

    trend_amplitude: float  # log; what the stack's constants leave open on an unseen cluster
    trend_length: float  # features
    scale: float  # of the process's own spread, before any run of this cluster
    scale_runs: float  # runs for which that scale counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What the fit leaves over."""

    residual: Residual
    leave_one_out: FloatArray  # each run's log residual given all others, over its spread
    typical_sigma: float  # log, of a run like those seen


def spread_of(quantity: str, uncalibrated_sigma: float) -> Spread:
    """The spread of ``time`` or ``memory`` for a stack whose uncalibrated predictions have that sigma."""
    raw = catalog_spreads()[quantity]
    return Spread(
        trend_amplitude=uncalibrated_sigma,
        trend_length=float(raw["trend_length"]),
        scale=float(raw["scale"]),
        scale_runs=float(raw["scale_runs"]),
    )


def left_over(found: Fit, features: FloatArray, measured: FloatArray, spread: Spread) -> Left:
    """The residual process after the runs, its spread scaled by leaving one run out at a time.

    Args:
        found: the fit.
        features: of the runs, (K, F).
        measured: log measurements, (K,).
        spread: what the open clusters taught about spreads.
    """
    process, runs = found.process, len(measured)
    near, noise = kernel(features, process), np.diag(found.noises**2)
    wide = replace(process, amplitude=spread.trend_amplitude, length=spread.trend_length)
    precision = np.linalg.inv(near + kernel(features, wide) + noise)
    at_prior = measured - found.predicted + found.jacobian @ found.offsets
    everything = np.linalg.inv(found.from_constants + near + noise)
    errors = everything @ at_prior / np.diag(everything)
    expected = np.maximum(1.0 / np.diag(precision) - found.noises**2, 0.0) + process.noise**2
    ratios = errors**2 / expected
    squares = float(np.minimum(ratios, _MOST**2).sum()) + spread.scale_runs * spread.scale**2
    scale = float(np.sqrt(squares / (runs + spread.scale_runs)))
    residual = Residual(
        points=_tuples(features),
        weights=tuple(float(w) for w in np.linalg.solve(near + noise, measured - found.predicted)),
        amplitude=process.amplitude,
        length=process.length,
        trend_amplitude=spread.trend_amplitude,
        trend_length=spread.trend_length,
        precision=_tuples(np.asarray(precision)),
        noise=process.noise,
        scale=scale,
    )
    return Left(
        residual=residual,
        leave_one_out=errors / np.sqrt(expected),
        typical_sigma=scale * float(np.sqrt(expected.mean())),
    )


def _tuples(matrix: FloatArray) -> tuple[tuple[float, ...], ...]:
    """A matrix as tuples of rows."""
    return tuple(tuple(float(value) for value in row) for row in matrix)
