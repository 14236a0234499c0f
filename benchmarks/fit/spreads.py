"""Fits how far uncalibrated predictions spread to the errors of runs that no fit had seen.

The variance of ln(measured / predicted) is the stack's own and what ``solver/cost/uncertainty.py``
adds to it.
Student's t with 4 degrees of freedom stands for the errors: a few runs are off for reasons of their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log

import numpy as np

from benchmarks.fit.evidence import CLUSTER_WEIGHT
from meshwright.profiles.profile import roughness
from meshwright.solver.accuracy import RunPrediction
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.fit import FACTOR_TAILS
from meshwright.solver.calibration.observations import (
    Observation,
    ProfileOf,
    batches_of,
    launch_shares,
    log_step_s,
)
from meshwright.solver.calibration.priors import TIME_WIDTHS
from meshwright.solver.configuration import BoolArray, Columns, FloatArray
from meshwright.solver.cost.residuals import features_of
from meshwright.solver.cost.uncertainty import OF_EXPERTS, SHARES, shares_of
from meshwright.solver.predict import Z_80_PERCENT
from meshwright.solver.runs.table import Run

_UNIDENTIFIED = tuple(f"unidentified_{name}" for name in (*SHARES, "experts"))
CAUSES = (*SHARES, "experts", "unmeasured_gpu", *_UNIDENTIFIED)
_FREEDOM = 4.0  # of Student's t
_FACTORS = (0.8, 0.95, 0.99, 1.01, 1.05, 1.25)
_SWEEPS = 60
_LEAST, _MOST = 0.003, 2.0
_PLACES = 25  # in equal ratios from the least to the most, that are tried of each value at every sweep
# How far a constant lies from its stack's on a cluster of a new pair is what calibration expects of it
# (``TIME_WIDTHS``), give or take a factor of two (one standard deviation): where few runs tell, as of a
# network that is told, the likelihood hardly knows nothing from twice the width.
_TWICE = log(2.0)
_MOST_GROWTH = 20.0  # of noise with launches
_FEW_CLUSTERS = 3  # with fewer, a stack's own spread says little about the next one
_FEW_RUNS = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Log errors of left-out runs, and what makes them doubtful."""

    log_error: FloatArray  # ln(measured / predicted), (n,)
    causes: FloatArray  # (n, 7): how much of each cause of doubt a run has, 0 to 1
    weights: FloatArray  # a cluster counts as a dozen runs at most
    clusters: tuple[str, ...]
    stacks: tuple[str, ...]

    def sigma(self, own: FloatArray | float, added: FloatArray) -> FloatArray:
        """Spread of each run, (n,)."""
        return np.asarray(np.sqrt(np.asarray(own) ** 2 + self.causes**2 @ added**2))

    def coverage(self, sigma: FloatArray, mask: BoolArray) -> float:
        """Weighted share of runs inside their 80 % interval."""
        inside = np.abs(self.log_error) <= Z_80_PERCENT * sigma
        return float(np.average(inside[mask], weights=self.weights[mask]))


def errors_of(rows: Sequence[RunPrediction], profile_of: ProfileOf) -> Errors:
    """The errors of all timed rows, predicted by profiles that had not seen them."""
    timed = [row for row in rows if row.prediction is not None and row.run.measured.step_time_s]
    per_cluster = Counter(row.run.cluster for row in timed)
    pairs = [(row.run.measured.step_time_s or 1.0, row.prediction) for row in timed]
    stacks, causes = zip(*(_causes(row, profile_of) for row in timed), strict=True)
    return Errors(
        log_error=np.log([measured / p.step_time_s for measured, p in pairs if p is not None]),
        causes=np.array(causes),
        weights=np.array([min(1.0, CLUSTER_WEIGHT / per_cluster[row.run.cluster]) for row in timed]),
        clusters=tuple(row.run.cluster for row in timed),
        stacks=stacks,
    )


def _causes(row: RunPrediction, profile_of: ProfileOf) -> tuple[str, list[float]]:
    """The stack of a run, and its causes of doubt in the order of ``CAUSES``."""
    one = Observation.of(row.run)
    if one is None:
        raise ValueError(f"{row.run.run_id} was refused")
    profile, splits = profile_of(one), np.array([one.configuration.stage_layers], dtype=np.int64)
    shares = shares_of(one.problem, Columns.of([one.configuration]), splits, profile)
    experts = float(one.problem.model.moe is not None)
    routed = float(OF_EXPERTS not in profile.unidentified)
    flags = [experts * routed, float(not profile.gpu_operators.measured)]
    unidentified = [float(constant in profile.unidentified) for constant in SHARES.values()]
    of_share = [float(share[0]) for share in shares.values()]
    known = [share * (1.0 - none) for share, none in zip(of_share, unidentified, strict=True)]
    unknown = [share * none for share, none in zip(of_share, unidentified, strict=True)]
    return profile.framework.stack, [*known, *flags, *unknown, experts * (1.0 - routed)]


def together(errors: Errors, foreign: Errors) -> Errors:
    """Errors of runs whose pair was left out, and of those whose whole stack was: a dozen of it at most."""
    fair = _stacks_alike(foreign)
    return Errors(
        log_error=np.concatenate([errors.log_error, fair.log_error]),
        causes=np.concatenate([errors.causes, fair.causes]),
        weights=np.concatenate([errors.weights, fair.weights]),
        clusters=(*errors.clusters, *fair.clusters),
        stacks=(*errors.stacks, *fair.stacks),
    )


def fitted_causes(errors: Errors) -> tuple[float, FloatArray]:
    """The general spread and what each cause adds, at the largest posterior.

    The spreads of ``SHARES``, identified or not, are held near the widths of their constants.
    """
    held = {CAUSES.index(f"{before}{name}"): TIME_WIDTHS[constant]
            for name, constant in SHARES.items() for before in ("", "unidentified_")}  # fmt: skip
    at, widths = 1 + np.array(list(held)), np.array(list(held.values()))

    def loss(values: FloatArray) -> float:
        variance = errors.sigma(values[0], values[1:]) ** 2
        tail = np.log1p(errors.log_error**2 / variance / _FREEDOM)
        surprise = errors.weights @ (0.5 * np.log(variance) + 0.5 * (_FREEDOM + 1) * tail)
        return float(surprise + 0.5 * ((np.log(values[at] / widths) / _TWICE) ** 2).sum())

    best = _least(loss, np.full(1 + len(CAUSES), 0.1))
    return float(best[0]), best[1:]


def _least(loss: Callable[[FloatArray], float], values: FloatArray, most: float = _MOST) -> FloatArray:
    """Coordinate descent over multiples of each value, and over its whole range.

    A spread that is driven near nothing while the others are still too large moves nothing from there on;
    multiples alone would leave it there.
    """
    least, places = loss(values), np.geomspace(_LEAST, most, _PLACES)
    for _ in range(_SWEEPS):
        before = least
        for index in range(len(values)):
            for place in (*(values[index] * np.array(_FACTORS)), *places):
                tried = values.copy()
                tried[index] = np.clip(place, _LEAST, most)
                value = loss(tried)
                if value < least:
                    values, least = tried, value
        if least == before:
            break
    return values


def covering(errors: Errors, mask: BoolArray, sigma_at: Callable[[float], FloatArray]) -> float:
    """The number at which the intervals hold 80 % of some runs; ``sigma_at`` grows with it."""
    low, high = _LEAST, 5.0
    for _ in range(30):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if errors.coverage(sigma_at(middle), mask) >= 0.8 else (middle, high)  # noqa: PLR2004
    return high


def sigma_of_unknown_stack(errors: Errors, added: FloatArray) -> float:
    """The own spread of a stack that nobody measured, from the errors of stacks left out whole.

    A stack counts as a dozen runs at most, too: otherwise the largest stack alone would speak.
    """
    fair = _stacks_alike(errors)
    everything = np.ones(len(fair.log_error), dtype=bool)
    return covering(fair, everything, lambda own: errors.sigma(own, added))


def doubt_of_unidentified_experts(errors: Errors, added: FloatArray, own: float) -> float:
    """What experts add to the spread of a stack none of whose runs tells of them.

    ``errors`` are of stacks left out whole, ``own`` is the spread of such a stack without experts.
    """
    cause = CAUSES.index("unidentified_experts")

    def sigma_at(experts: float) -> FloatArray:
        return errors.sigma(own, np.where(np.arange(len(CAUSES)) == cause, experts, added))

    return covering(errors, errors.causes[:, cause] > 0.0, sigma_at)


def spread_between(samples: Sequence[Sequence[tuple[str, float, float]]]) -> float:
    """Return the spread of what all runs of a cluster err by in common, by maximum likelihood.

    A cluster's factor is seen as the mean of its errors, and follows Student's t as calibration assumes
    (``FACTOR_TAILS``). Samples have equal weight, and so have clusters inside a sample: clusters that the
    formulas were written with in view speak too well of the next one.

    Args:
        samples: the runs' cluster, ln(measured / predicted) and spread without what is asked for.
    """
    seen = []
    for runs in samples:
        clusters: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for cluster, error, own in runs:
            clusters[cluster].append((error, own))
        heard = [(np.array(mine)[:, 0], np.array(mine)[:, 1] ** -2.0) for mine in clusters.values()]
        seen.append(np.array([(weights @ errors, 1.0) / weights.sum() for errors, weights in heard]))

    def loss(values: FloatArray) -> float:
        surprise = []
        for sample in seen:
            variance = sample[:, 1] + values[0] ** 2
            tail = np.log1p(sample[:, 0] ** 2 / variance / FACTOR_TAILS)
            surprise.append(np.mean(0.5 * np.log(variance) + 0.5 * (FACTOR_TAILS + 1) * tail))
        return float(np.mean(surprise))

    return float(_least(loss, np.array([0.1]))[0])


def launch_noise_of(runs: Sequence[Run]) -> tuple[float, float]:
    """Noise of one run, log, and what it grows by where the whole step hangs on launches, over it.

    By maximum likelihood from twins, runs of one cluster whose configurations no feature tells apart: each
    lies off their mean by its own noise, seen times ``sqrt((n - 1) / n)`` among n. A cluster's count as a
    dozen at most.
    """
    alike: dict[tuple[object, ...], list[Observation]] = defaultdict(list)
    for one in map(Observation.of, runs):
        if one is not None and one.step_time_s:
            place = tuple(features_of(one.problem, one.configuration).round(6))
            alike[one.problem.cluster.name, one.framework, one.configuration.num_gpus, place].append(one)
    twins = [mine for mine in alike.values() if len(mine) > 1]
    timed = [one for mine in twins for one in mine]
    groups = np.split(np.arange(len(timed)), np.cumsum([len(mine) for mine in twins])[:-1])
    batches = batches_of(timed, default_profile_of)
    shares, expected = launch_shares(batches), log_step_s(batches, (), np.zeros((1, 0)))[0]
    errors = np.log([one.step_time_s or 1.0 for one in timed]) - expected
    sizes = Counter(timed[mine[0]].problem.cluster.name for mine in groups for _ in mine)
    off, share, weights = [], [], []
    for mine in groups:
        free = (len(mine) - 1) / len(mine)
        off += list((errors[mine] - errors[mine].mean()) / np.sqrt(free))
        share += list(shares[mine])
        heard = min(1.0, CLUSTER_WEIGHT / sizes[timed[mine[0]].problem.cluster.name])
        weights += [free * heard] * len(mine)

    def loss(values: FloatArray) -> float:
        variance = (values[0] * roughness(np.array(share), values[1])) ** 2
        tail = np.log1p(np.square(off) / variance / _FREEDOM)
        return float(np.average(0.5 * np.log(variance) + 0.5 * (_FREEDOM + 1) * tail, weights=weights))

    noise, growth = _least(loss, np.array([0.03, 1.0]), most=_MOST_GROWTH)
    return float(noise), float(growth)


def _stacks_alike(errors: Errors) -> Errors:
    """The errors with every stack counting as a dozen runs at most."""
    per_stack = {
        stack: sum(w for w, own in zip(errors.weights, errors.stacks, strict=True) if own == stack)
        for stack in set(errors.stacks)
    }
    even = [min(1.0, CLUSTER_WEIGHT / per_stack[stack]) for stack in errors.stacks]
    return replace(errors, weights=errors.weights * np.array(even))


def stack_sigmas(errors: Errors, added: FloatArray, *, general: float, unknown: float) -> dict[str, float]:
    """The own spread of each stack: what holds 80 % of its runs when their cluster is left out.

    With runs of one or two clusters a stack takes the general spread, and of what an unknown stack adds
    to it one part in as many clusters (as variances).
    """
    sigmas = {}
    for stack in sorted(set(errors.stacks)):
        mine = np.array([own == stack for own in errors.stacks])
        clusters = {c for c, own in zip(errors.clusters, errors.stacks, strict=True) if own == stack}
        if len(clusters) >= _FEW_CLUSTERS and errors.weights[mine].sum() >= _FEW_RUNS:
            sigmas[stack] = covering(errors, mine, lambda own: errors.sigma(own, added))
        else:
            more = max(unknown**2 - general**2, 0.0) / len(clusters)
            sigmas[stack] = float(np.sqrt(general**2 + more))
    return sigmas
