"""How sure a ranking is under the error band of the cost model, and which runs would settle it.

Assumption: the logarithms of measured over predicted step times are jointly normal. Each plan's spread is
that of its prediction. Errors of two plans move together as calibration assumes: through the constants
of the cost model that both hang on, and through a Gaussian process over their features, so that alike
configurations err alike. A calibrated cluster has the covariance that its measured runs leave over. The
noise of a single run is left out: the question is which plan is faster, not which run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from profiles.profile import Profile
from solver.calibration.choose import Candidates
from solver.calibration.observations import Observation
from solver.calibration.priors import TIME_PROCESS
from solver.columns import Columns, FloatArray
from solver.features import features
from solver.plan import Plan
from solver.problem import Problem
from solver.reasons import Odds
from solver.why.placed_odds import log_sigma, placed_log_covariance

_DRAWS = 4096
_QUANTILES = 101  # of one measurement's outcome
_DIGITS = 9  # what is less is rounding
_REGRET = 90.0  # percentile


def log_covariance(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> FloatArray:
    """Covariance of ln(true / predicted) of the plans' step times, (n, n)."""
    if all(plan.config.is_placed for plan in plans):
        return placed_log_covariance(problem, profile, plans)
    if profile.residual is not None:
        columns = Columns.of([plan.config for plan in plans])
        return profile.residual.covariance(features(problem, columns))
    candidates = Candidates.of([_asked(problem, profile, plan) for plan in plans], lambda _: profile)
    together = candidates.covariance(np.arange(len(plans)))
    spread = np.sqrt(np.diag(together))
    sigmas = np.array([log_sigma(plan) for plan in plans])
    return np.asarray(together * np.outer(sigmas / spread, sigmas / spread))


def _asked(problem: Problem, profile: Profile, plan: Plan) -> Observation:
    """The plan as a run that nobody measured."""
    return Observation(
        name=plan.plan_id,
        problem=problem,
        configuration=plan.config,
        framework=profile.framework.name,
        step_time_s=None,
    )


def _draws(covariance: FloatArray, seed: int) -> FloatArray:
    """Joint errors, (draws, n): the same for a seed."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(seed).standard_normal((_DRAWS, len(covariance)))
    return np.asarray(normal @ root.T)


def _log_steps(plans: Sequence[Plan]) -> FloatArray:
    """Logarithms of the predicted step times, (n,)."""
    return np.log([plan.prediction.step_time_s for plan in plans])


def odds_of(
    predicted_log_s: FloatArray, covariance: FloatArray, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Probability to be the fastest, and the 90th percentile of the regret, of every plan: (n,) each."""
    times = predicted_log_s + _draws(covariance, seed)
    fastest = np.bincount(times.argmin(axis=1), minlength=len(predicted_log_s))
    regrets = np.expm1(times - times.min(axis=1, keepdims=True))
    return fastest / _DRAWS, np.percentile(regrets, _REGRET, axis=0)


def with_odds(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """The plans, each with its chances among them; seeded by the request."""
    if not plans:
        return ()
    covariance = log_covariance(problem, profile, plans)
    best, regret = odds_of(_log_steps(plans), covariance, problem.options.seed)
    return tuple(
        replace(plan, odds=Odds(best_probability=float(chance), regret_p90=float(loss)))
        for plan, chance, loss in zip(plans, best, regret, strict=True)
    )


def runs_to_measure(
    problem: Problem, profile: Profile, plans: Sequence[Plan], number: int
) -> list[tuple[Plan, float]]:
    """The plans whose measurement would decide most, and how much faster the choice is expected to get.

    Knowledge gradient for correlated beliefs (Frazier, Powell and Dayanik 2009, INFORMS Journal on
    Computing 21(4)): the expected fall of the least expected log step time, one run at a time. Where no
    run can change the choice, the one that settles most of the lead is next.
    """
    if not plans:
        return []
    covariance, means = log_covariance(problem, profile, plans), _log_steps(plans)
    chances, _ = odds_of(means, covariance, problem.options.seed)
    chosen: list[tuple[Plan, float]] = []
    left = list(range(len(plans)))
    while left and len(chosen) < number:
        worth = [(_worth(means, covariance, at), _settled(chances, covariance, at)) for at in left]
        index = max(range(len(left)), key=worth.__getitem__)
        at = left.pop(index)
        chosen.append((plans[at], worth[index][0]))
        column = covariance[:, at]
        covariance = covariance - np.outer(column, column) / (column[at] + TIME_PROCESS.noise**2)
    return chosen


def _effect(covariance: FloatArray, at: int) -> FloatArray:
    """What one spread of a run's outcome does to the expected log time of every plan, (n,)."""
    column = covariance[:, at]
    return np.asarray(column / np.sqrt(column[at] + TIME_PROCESS.noise**2))


def _worth(means: FloatArray, covariance: FloatArray, at: int) -> float:
    """Expected fall of the least expected log step time by measuring one plan."""
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    outcomes = np.array([NormalDist().inv_cdf(share) for share in shares])
    after = means[None, :] + np.outer(outcomes, _effect(covariance, at))
    return round(max(float(means.min() - after.min(axis=1).mean()), 0.0), _DIGITS)


def _settled(chances: FloatArray, covariance: FloatArray, at: int) -> float:
    """Variance that measuring one plan takes from the lead of the likeliest one, by the others' chances."""
    effect = _effect(covariance, at)
    return float(chances @ (effect - effect[chances.argmax()]) ** 2)
