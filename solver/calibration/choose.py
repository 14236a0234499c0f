"""Choice of the runs to measure, from their configurations alone.

Every next run is the one that leaves the least uncertainty about all runs, summed variances of the
Gaussian process that calibration assumes: integrated variance reduction (Cohn 1996, "Neural Network
Exploration Using Optimal Experiment Design"; Gramacy and Lee 2009). Few runs come out central, many
spread far, and of those that launches blur a twin as well; no measurement enters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np

from meshwright.profiles.profile import squared_distances
from meshwright.solver.calibration.observations import (
    Observation,
    ProfileOf,
    batches_of,
    log_step_s,
    roughness_of,
)
from meshwright.solver.calibration.priors import TIME_PROCESS, TIME_WIDTHS, kinds_of, spreads_of
from meshwright.solver.configuration import FloatArray, IntArray
from meshwright.solver.cost.residuals import features_of
from meshwright.solver.cost.uncertainty import shared_spreads

Choice = Literal["suggested", "random"]
_STEP = -0.05  # of a finite difference
_KERNELS = ((0.08, 1.4), (0.08, 4.0))  # amplitude, log, and length, features: near and far likeness
_MOST_JUDGED = 1024  # runs with summed uncertainty, evenly drawn where there are more


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCandidates:
    """Runs that could be measured."""

    features: FloatArray  # (n, F)
    effects: FloatArray  # (n, c): what one prior width of each constant or factor does to the log step time
    noises: FloatArray  # (n,), log

    def __len__(self) -> int:
        return len(self.features)

    @classmethod
    def of(
        cls, observations: Sequence[Observation], profile_of: ProfileOf, *, with_noises: bool = True
    ) -> RunCandidates:
        """Return the runs under their uncalibrated profiles; without noises these are 0."""
        names = tuple(TIME_WIDTHS)
        offsets = np.concatenate([np.zeros((1, len(names))), _STEP * np.eye(len(names))])
        batches = batches_of(observations, profile_of)
        values = log_step_s(batches, names, offsets)
        effects = ((values[1:] - values[0]) / _STEP).T * np.array(list(TIME_WIDTHS.values()))
        points = np.stack([features_of(one.problem, one.configuration) for one in observations])
        rough = roughness_of(batches) if with_noises else np.zeros(len(points))
        return cls(features=points, effects=effects, noises=TIME_PROCESS.noise * rough)

    def covariance(self, columns: IntArray) -> FloatArray:
        """Return the covariance of the log step times of all runs with some, (n, m)."""
        apart = squared_distances(self.features, self.features[columns])
        together = self.effects @ self.effects[columns].T
        for amplitude, length in _KERNELS:
            together += amplitude**2 * np.exp(-0.5 * apart / length**2)
        return np.asarray(together)

    def variances(self) -> FloatArray:
        """Return the variance of each run, (n,)."""
        own = (self.effects**2).sum(axis=1) + sum(amplitude**2 for amplitude, _ in _KERNELS)
        return np.asarray(own)


def random_order(num_runs: int, seed: int) -> Iterator[int]:
    """Yield all runs, shuffled by the seed."""
    return (int(i) for i in np.random.default_rng(seed).permutation(num_runs))


def measuring_order(candidates: RunCandidates, measured: Sequence[int] = ()) -> Iterator[int]:
    """Yield the runs that are not measured yet in the order in which to measure them.

    Args:
        candidates: all runs; ties go to the first.
        measured: runs that have been measured; not in the answer.
    """
    known = list(dict.fromkeys(measured))
    shared = kinds_of(candidates.features) * spreads_of(candidates.features, *shared_spreads())
    effects = np.hstack([candidates.effects, shared])
    return islice(_greedy(replace(candidates, effects=effects), known), len(known), None)


def _greedy(candidates: RunCandidates, first: Sequence[int]) -> Iterator[int]:
    """Yield ``first``, then the runs that reduce the variance most, by a pivoted Cholesky factor."""
    n = len(candidates)
    judged = np.unique(np.linspace(0, n - 1, min(n, _MOST_JUDGED)).astype(np.int64))
    left = candidates.covariance(judged)
    variances = candidates.variances()
    factors = np.empty((n, 0))
    open_runs = np.ones(n, dtype=bool)
    for turn in range(n):
        gains = (left**2).sum(axis=1) / (variances + candidates.noises**2)
        pick = first[turn] if turn < len(first) else int(np.where(open_runs, gains, -1.0).argmax())
        open_runs[pick] = False
        yield pick
        column = candidates.covariance(np.array([pick]))[:, 0] - factors @ factors[pick]
        column /= np.sqrt(variances[pick] + candidates.noises[pick] ** 2)
        left -= np.outer(column, column[judged])
        variances = np.maximum(variances - column**2, 0.0)
        factors = np.concatenate([factors, column[:, None]], axis=1)
