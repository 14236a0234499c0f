"""Maximum-a-posteriori fit of constants to runs, jointly with a residual process.

Minimises over offsets d of the constants' logarithms
``(y - f(d))' C^-1 (y - f(d)) + sum (d / width)^2`` with C the covariance of residual and noise, by
damped Gauss-Newton steps on finite differences. Runs that disagree with the rest are weighted down as
soft-L1 does: their noise grows with the part of the residual that only noise can explain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.calibration.box import Box, least_in_box
from solver.calibration.priors import Process
from solver.calibration.residual import chosen_process, kernel
from solver.columns import FloatArray

Evaluate = Callable[[FloatArray], FloatArray]  # offsets (v, c) -> log predictions (v, K)
_STEP = -0.05  # of a finite difference; downwards, where no upper bound stands in the way
_ITERATIONS = 6
_REWEIGHTINGS = 3
_HALVINGS = 5
_SETTLED = 1e-3
_LEAST_TRUST = 1e-3  # keeps the widths positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The fitted offsets and what is needed to judge them."""

    offsets: FloatArray  # (c,)
    predicted: FloatArray  # log, under the offsets, (K,)
    jacobian: FloatArray  # (K, c)
    features: FloatArray  # of the runs, (K, F)
    noises: FloatArray  # of each run, (K,)
    process: Process
    widths: FloatArray  # (c,) as far as the process trusts them

    @property
    def from_constants(self) -> FloatArray:
        """Covariance that the constants' priors give the runs, (K, K)."""
        scaled = self.jacobian * self.widths
        return np.asarray(scaled @ scaled.T)

    @property
    def log_sds(self) -> FloatArray:
        """Standard deviations of the offsets given the runs (Laplace's approximation), (c,).

        Round the whole prior: runs that teach nothing do not make a constant sure.
        """
        prior = self.widths / max(self.process.trust, _LEAST_TRUST)
        covariance = kernel(self.features, self.process) + np.diag(self.noises**2)
        told = self.jacobian.T @ np.linalg.solve(covariance, self.jacobian)
        return np.asarray(np.sqrt(np.diag(np.linalg.inv(told + np.diag(prior**-2.0)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One least-squares problem."""

    evaluate: Evaluate
    measured: FloatArray
    features: FloatArray
    widths: FloatArray
    box: Box

    def linearised(self, offsets: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predictions and their Jacobian."""
        moved = offsets + _STEP * np.eye(len(offsets))
        values = self.evaluate(np.concatenate([offsets[None, :], moved]))
        return values[0], ((values[1:] - values[0]) / _STEP).T

    def cost(self, predicted: FloatArray, offsets: FloatArray, precision: FloatArray) -> float:
        """What the fit minimises."""
        error = self.measured - predicted
        return float(error @ precision @ error + ((offsets / self.widths) ** 2).sum())


def fit(
    evaluate: Evaluate,
    measured: FloatArray,
    features: FloatArray,
    *,
    widths: Sequence[float],
    box: Box,
    prior: Process,
) -> Fit:
    """Fit the offsets, then the process, then the offsets under it.

    Args:
        evaluate: log predictions of all runs under each set of offsets.
        measured: log measurements, (K,).
        features: of the runs, (K, F).
        widths: prior widths of the offsets.
        box: bounds of the offsets.
        prior: of the residual process.
    """
    task = _Task(
        evaluate=evaluate, measured=measured, features=features, widths=np.asarray(widths), box=box
    )
    first = _descend(task, prior, np.zeros(len(widths)))
    at_prior = measured - first.predicted + first.jacobian @ first.offsets
    process = chosen_process(prior, features, at_prior, first.from_constants)
    trusted = replace(task, widths=max(process.trust, _LEAST_TRUST) * task.widths)
    return _descend(trusted, process, process.trust * first.offsets)


def _descend(task: _Task, process: Process, start: FloatArray) -> Fit:
    """Gauss-Newton under one process."""
    covariance = kernel(task.features, process)
    offsets, (predicted, jacobian) = start, task.linearised(start)
    factors = np.ones(len(task.measured))
    for _ in range(_ITERATIONS):
        wanted, factors, precision = _solved(task, process, covariance, (offsets, predicted, jacobian))
        moved = _shortened(task, offsets, wanted, (predicted, precision))
        if moved is None:
            break
        settled = float(np.abs(moved - offsets).max()) < _SETTLED
        offsets, (predicted, jacobian) = moved, task.linearised(moved)
        if settled:
            break
    return Fit(
        offsets=offsets,
        predicted=predicted,
        jacobian=jacobian,
        features=task.features,
        noises=process.noise * np.sqrt(factors),
        process=process,
        widths=task.widths,
    )


def _solved(
    task: _Task,
    process: Process,
    covariance: FloatArray,
    at: tuple[FloatArray, FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The best offsets of the linearised problem, the runs' noise factors, and their precision."""
    offsets, predicted, jacobian = at
    left = task.measured - predicted
    factors = np.ones(len(left))
    for _ in range(_REWEIGHTINGS):
        noise = process.noise**2 * factors
        precision = np.linalg.inv(covariance + np.diag(noise))
        pulled = jacobian.T @ precision
        normal = pulled @ jacobian + np.diag(task.widths**-2.0)
        wanted = least_in_box(normal, pulled @ (jacobian @ offsets + left), task.box)
        unexplained = noise * (precision @ (left - jacobian @ (wanted - offsets)))
        factors = np.sqrt(1.0 + (unexplained / process.noise) ** 2)
    return wanted, factors, np.asarray(precision)


def _shortened(
    task: _Task, offsets: FloatArray, wanted: FloatArray, at: tuple[FloatArray, FloatArray]
) -> FloatArray | None:
    """The longest of a few halved steps that lowers the cost; None when none does."""
    predicted, precision = at
    before = task.cost(predicted, offsets, precision)
    steps = 0.5 ** np.arange(_HALVINGS)[:, None]
    tried = offsets + steps * (wanted - offsets)
    for candidate, value in zip(tried, task.evaluate(tried), strict=True):
        if task.cost(value, candidate, precision) < before:
            return np.asarray(candidate)
    return None
