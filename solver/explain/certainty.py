"""Certainty of a ranking under the cost model's error band, and the runs that would settle it.

Assumption: the logarithms of measured over predicted step times are jointly normal. Each plan's spread is
that of its prediction. Errors of two plans move together as calibration assumes: through the constants
of the cost model that both depend on, and through a Gaussian process over their features, so that alike
configurations err alike. A calibrated cluster has the covariance that its measured runs leave over. The
noise of a single run is left out: the question is which plan is faster, not which run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import NormalDist

import numpy as np

from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Odds, Plan
from meshwright.solver.calibration.choose import RunCandidates
from meshwright.solver.calibration.observations import Observation, with_offsets
from meshwright.solver.calibration.priors import TIME_PROCESS, TIME_WIDTHS
from meshwright.solver.configuration import Columns, FloatArray
from meshwright.solver.cost.evaluation import Evaluation, Pipeline, Stage, StageTable, evaluate
from meshwright.solver.cost.pipelines import PricedPipelines
from meshwright.solver.cost.price import price
from meshwright.solver.cost.residuals import NUM_FEATURES, features
from meshwright.solver.cost.stages import assemble, chunks_of
from meshwright.solver.cost.uncertainty import between
from meshwright.solver.predict import Z_80_PERCENT
from meshwright.solver.problem import Problem, with_changes

# --------------------------------------------------------------------------------------------------
# How errors of placed plans go together: each node group errs on its own, a plan by its share of each.
#
# Calibration sees a node group as a cluster. Its constants err apart from those of the other groups, and
# a Gaussian process over the features of what runs there adds what is left; a calibrated group has the
# covariance that its measured runs leave over instead. Both reach a plan's step in proportion to the
# share of it that the group decides: a group that waits decides nothing.


_STEP = -0.05  # of a finite difference of a constant, log
_SHARE_STEP = 1e-3  # of a group's time
_MOST_IN_COMMON = 0.9  # of a plan's variance: timed layers leave less than the cluster's spread


def log_sigma(plan: Plan) -> float:
    """Return the spread of a prediction, from its 80 % interval."""
    prediction = plan.prediction
    return log(prediction.step_time_high_s / prediction.step_time_s) / Z_80_PERCENT


def placed_log_covariance(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> FloatArray:
    """Return the covariance of ln(true / predicted) of placed plans, (n, n), at the plans' own spreads."""
    placed = evaluate(problem, profile, [plan.config for plan in plans])
    together = np.zeros((len(plans), len(plans)))
    for group in {stage.on.group for one in placed for stage in one.stages}:
        together += _of_group(placed, group)
    spread = np.sqrt(np.diag(together))
    sigmas = np.array([log_sigma(plan) for plan in plans])
    return np.asarray(together * np.outer(sigmas / spread, sigmas / spread))


def _of_group(placed: Sequence[Evaluation], group: int) -> FloatArray:
    """Return the covariance that one group's errors give every pair of plans, (n, n)."""
    shares = _shares(placed, group)
    points = np.stack([_features(one, group) for one in placed])
    residual = next(
        stage.on.profile.residual for one in placed for stage in one.stages if stage.on.group == group
    )
    if residual is not None:
        return np.asarray(np.outer(shares, shares) * residual.covariance(points))
    alone = RunCandidates(features=points, effects=np.zeros((len(points), 1)), noises=np.zeros(len(points)))
    likeness = alone.covariance(np.arange(len(points)))
    effects = _effects(placed, group)
    return np.asarray(np.outer(shares, shares) * likeness + effects @ effects.T)


def _steps_s(placed: Sequence[Evaluation], of_classes: FloatArray) -> FloatArray:
    """Return steps of plans, (n,), from those of their classes, one plan after the other."""
    counts = np.array([len(one.classes) for one in placed])
    slowest = np.maximum.reduceat(of_classes, np.cumsum(counts) - counts)
    return np.asarray(slowest + [one.exchange_s for one in placed])


def _shares(placed: Sequence[Evaluation], group: int) -> FloatArray:
    """Return each step's share that depends on a group: its relative change with all times there, (n,)."""
    table = StageTable([pipeline for one in placed for pipeline in one.classes])
    there = table.of_rows(lambda on: np.full(len(on.columns), float(on.group == group)))
    longer, now = table.objective_s(1.0 + _SHARE_STEP * there), table.objective_s()
    return np.asarray((_steps_s(placed, longer) / _steps_s(placed, now) - 1.0) / _SHARE_STEP)


def _features(placed: Evaluation, group: int) -> FloatArray:
    """Return features of a plan's work on a group, (F,); zeros if it runs nothing there."""
    for stage in placed.stages:
        if stage.on.group == group:
            columns = stage.on.columns.take(np.array([stage.row]))
            return np.asarray(features(stage.on.problem, columns)[0])
    return np.zeros(NUM_FEATURES)


def _effects(placed: Sequence[Evaluation], group: int) -> FloatArray:
    """Return the effect of each group constant's prior width on every plan's log step, (n, c)."""
    widths, moved = np.array(list(TIME_WIDTHS.values())), dict[int, PricedPipelines]()
    for stage in (stage for one in placed for stage in one.stages):
        if stage.on.group == group and id(stage.on) not in moved:
            moved[id(stage.on)] = _moved(stage.on)
    pipelines = [pipeline for one in placed for pipeline in one.classes]
    now = _steps_s(placed, StageTable(pipelines).objective_s())
    steps = [
        _steps_s(placed, StageTable([_with(one, moved, at) for one in pipelines]).objective_s())
        for at in range(len(widths))
    ]
    return np.asarray(np.log(np.stack(steps, axis=1) / now[:, None]) / _STEP * widths)


def _moved(on: PricedPipelines) -> PricedPipelines:
    """Return a group's prices with each constant moved alone, one set of rows after the other."""
    names, rows = tuple(TIME_WIDTHS), len(on.columns)
    offsets = _STEP * np.eye(len(names))
    again = np.tile(np.arange(rows), len(names))
    constants = with_offsets(on.profile.constants, names, offsets, rows)
    columns, splits = on.columns.take(again), on.splits[again]
    prices = price(on.problem, columns, replace(on.profile, constants=constants), with_memory=False)
    replayed = None if on.replayed is None else on.replayed[again]
    chunks = chunks_of(columns, on.layout, splits, replayed)
    stages = assemble(prices, columns, on.layout, splits, replayed, with_memory=False)
    return replace(on, columns=columns, splits=splits, prices=prices, chunks=chunks, stages=stages)


def _with(pipeline: Pipeline, moved: Mapping[int, PricedPipelines], constant: int) -> Pipeline:

    def stage_of(stage: Stage) -> Stage:
        on = moved.get(id(stage.on))
        if on is None:
            return stage
        return replace(stage, on=on, row=constant * len(stage.on.columns) + stage.row)

    return replace(pipeline, stages=tuple(map(stage_of, pipeline.stages)))


_DRAWS = 4096
_QUANTILES = 101  # of one measurement's outcome
_DIGITS = 9  # what is less is rounding, and another processor's is another
_REGRET = 90.0  # percentile


def log_covariance(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> FloatArray:
    """Return the covariance of ln(true / predicted) of the plans' step times, (n, n)."""
    if all(plan.config.is_placed for plan in plans):
        return placed_log_covariance(problem, profile, plans)
    if profile.residual is not None:
        own = [features(_of_plan(problem, plan), Columns.of([plan.config])) for plan in plans]
        return profile.residual.covariance(np.concatenate(own))
    together = _candidates(problem, profile, plans).covariance(np.arange(len(plans)))
    scales = np.array([log_sigma(plan) for plan in plans]) / np.sqrt(np.diag(together))
    # All plans of a problem err by the same factor on their cluster: it takes its part of each plan's
    # spread, and leaves their order alone. Plans on unlike node groups have no such factor.
    variances = np.diag(together) * scales**2
    common = min(between(problem) ** 2, _MOST_IN_COMMON * float(variances.min()))
    apart = scales * np.sqrt(1.0 - common / variances)
    return np.asarray(together * np.outer(apart, apart) + common)


def _candidates(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> RunCandidates:
    asked = [
        Observation(
            name=plan.plan_id,
            problem=_of_plan(problem, plan),
            configuration=plan.config,
            framework=profile.framework.name,
            step_time_s=None,
        )
        for plan in plans
    ]
    return RunCandidates.of(asked, lambda _: profile, with_noises=False)


def _of_plan(problem: Problem, plan: Plan) -> Problem:
    return replace(problem, workload=with_changes(problem.workload, plan.workload))


def _draws(covariance: FloatArray, seed: int) -> FloatArray:
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(seed).standard_normal((_DRAWS, len(covariance)))
    return np.asarray(normal @ root.T)


def _log_steps(plans: Sequence[Plan]) -> FloatArray:
    return np.log([plan.prediction.step_time_s for plan in plans])


def odds_of(
    predicted_log_s: FloatArray, covariance: FloatArray, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Return every plan's chance to be fastest, and its regret's 90th percentile: (n,) each."""
    times = predicted_log_s + _draws(covariance, seed)
    fastest = np.bincount(times.argmin(axis=1), minlength=len(predicted_log_s))
    regrets = np.expm1(times - times.min(axis=1, keepdims=True))
    return fastest / _DRAWS, np.percentile(regrets, _REGRET, axis=0)


def joint_log_steps(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> FloatArray:
    """Return log step times of plans as they may turn out together, (draws, n); seeded by the request."""
    covariance = log_covariance(problem, profile, plans)
    return np.asarray(_log_steps(plans) + _draws(covariance, problem.options.seed))


# What shows a constant of the cost model; of all others only a run of the whole step does.
_MEASURED_BY = {
    **dict.fromkeys(("gemm", "attention", "grouped_gemm", "score_gemm"), "operators"),
    **dict.fromkeys(("hbm", "elementwise", "score_bytes", "permute_bytes", "loss_bytes"), "layers"),
    **dict.fromkeys(("collective_latency_s", "fast_link", "network"), "links"),
}
_RUN = "run"
_MEASUREMENTS = {
    _RUN: "a run of the other plan for a few steps",
    "operators": "matrix products and attention on one GPU",
    "layers": "one layer on one GPU",
    "links": "collectives between the nodes (nccl-tests)",
}


def deciding_measurements(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> list[str]:
    """Return the measurement that best shows whether the first plan is faster, for each other plan.

    The doubt is the variance of the difference of their logarithms: of each constant, and of what no
    constant explains, which only a run of the other plan shows.
    """
    if profile.residual is not None:  # what its runs leave over
        return [_MEASUREMENTS[_RUN]] * (len(plans) - 1)
    every = _candidates(problem, profile, plans)
    together = every.covariance(np.arange(len(plans)))
    return [
        _deciding(
            every.effects[at] - every.effects[0],
            float(together[0, 0] + together[at, at] - 2.0 * together[0, at]),
        )
        for at in range(1, len(plans))
    ]


def _deciding(apart: FloatArray, variance: float) -> str:
    """Return the measurement that removes most of a variance, given what each constant adds."""
    own = dict.fromkeys(_MEASUREMENTS, 0.0)
    for name, difference in zip(TIME_WIDTHS, apart, strict=True):
        own[_MEASURED_BY.get(name, _RUN)] += float(difference**2)
    own[_RUN] += max(variance - sum(own.values()), 0.0)
    return _MEASUREMENTS[max(own, key=lambda name: own[name])]


def with_odds(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> tuple[Plan, ...]:
    """Add to each plan its chances among them; seeded by the request."""
    if not plans:
        return ()
    covariance = log_covariance(problem, profile, plans)
    best, regret = odds_of(_log_steps(plans), covariance, problem.options.seed)
    return tuple(
        replace(plan, odds=Odds(best_probability=float(chance), regret_p90=round(float(loss), _DIGITS)))
        for plan, chance, loss in zip(plans, best, regret, strict=True)
    )


def runs_to_measure(
    problem: Problem, profile: Profile, plans: Sequence[Plan], number: int
) -> list[tuple[Plan, float]]:
    """Return the plans most worth measuring, and the expected speed-up of the choice by each.

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
        worth = [_worth(means, chances, covariance, at) for at in left]
        index = max(range(len(left)), key=worth.__getitem__)
        at = left.pop(index)
        chosen.append((plans[at], worth[index][0]))
        column = covariance[:, at]
        covariance = covariance - np.outer(column, column) / (column[at] + TIME_PROCESS.noise**2)
    return chosen


def _worth(means: FloatArray, chances: FloatArray, covariance: FloatArray, at: int) -> tuple[float, float]:
    """Return by how much measuring one plan makes the least expected log step fall, on average.

    Then the variance of the likeliest plan's lead that the measurement removes.
    """
    column = covariance[:, at]
    effect = column / np.sqrt(column[at] + TIME_PROCESS.noise**2)  # of an outcome one spread off, (n,)
    shares = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    outcomes = np.array([NormalDist().inv_cdf(share) for share in shares])
    after = means[None, :] + np.outer(outcomes, effect)
    fall = round(max(float(means.min() - after.min(axis=1).mean()), 0.0), _DIGITS)
    return fall, float(chances @ (effect - effect[chances.argmax()]) ** 2)
