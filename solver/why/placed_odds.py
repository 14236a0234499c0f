"""How errors of placed plans go together: each node group errs on its own, a plan as it hangs on them.

Calibration sees a node group as a cluster. Its constants err apart from those of the other groups, and a
Gaussian process over the features of what runs there adds what is left; a calibrated group has the
covariance that its measured runs leave over instead. Both reach a plan's step in proportion to the share of
it that the group decides: a group that waits decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

import numpy as np

from profiles.profile import Profile
from solver.calibration.batches import with_offsets
from solver.calibration.choose import Candidates
from solver.calibration.priors import TIME_WIDTHS
from solver.columns import FloatArray
from solver.cost.assemble import assemble
from solver.cost.price import price
from solver.cost.prices import LayerLayout
from solver.features import NUM_FEATURES, features
from solver.mixed.pipeline import GroupPrices, PlacedPipeline, PlacedStage
from solver.plan import Plan
from solver.predict import Z_80_PERCENT
from solver.problem import Problem
from solver.why.placed import Placed, placed_all

_STEP = -0.05  # of a finite difference of a constant, log
_SHARE_STEP = 1e-3  # of a group's time


def log_sigma(plan: Plan) -> float:
    """Spread of a prediction, from its 80 % interval."""
    prediction = plan.prediction
    return log(prediction.step_time_high_s / prediction.step_time_s) / Z_80_PERCENT


def placed_log_covariance(problem: Problem, profile: Profile, plans: Sequence[Plan]) -> FloatArray:
    """Covariance of ln(true / predicted) of placed plans' steps, (n, n); spreads are the plans' own."""
    placed = placed_all(problem, profile, [plan.config for plan in plans])
    together = np.zeros((len(plans), len(plans)))
    for group in range(len(placed[0].classes[0].fleet.groups)):
        together += _of_group(placed, group)
    spread = np.sqrt(np.diag(together))
    sigmas = np.array([log_sigma(plan) for plan in plans])
    return np.asarray(together * np.outer(sigmas / spread, sigmas / spread))


def _of_group(placed: Sequence[Placed], group: int) -> FloatArray:
    """What one group's errors do to every pair of plans, (n, n)."""
    shares = np.array([_share(one, group) for one in placed])
    points = np.stack([_features(one, group) for one in placed])
    residual = placed[0].classes[0].fleet.profiles[group].residual
    if residual is not None:
        return np.asarray(np.outer(shares, shares) * residual.covariance(points))
    alone = Candidates(features=points, effects=np.zeros((len(points), 1)))
    likeness = alone.covariance(np.arange(len(points)))
    effects = _effects(placed, group)
    return np.asarray(np.outer(shares, shares) * likeness + effects @ effects.T)


def _share(placed: Placed, group: int) -> float:
    """Which share of the step hangs on a group: its relative change with all times there."""
    longer = max(_stretched_s(one, group) for one in placed.classes) + placed.exchange_s
    return float((longer / placed.objective_s - 1.0) / _SHARE_STEP)


def _stretched_s(one: PlacedPipeline, group: int) -> float:
    """The closed form of a pipeline where a group takes a little longer."""
    factors = [1.0 + _SHARE_STEP * (stage.group == group) for stage in one.stages]
    times = [stage.time_s * factor for stage, factor in zip(one.stages, factors, strict=True)]
    tails = [stage.tail_s * factor for stage, factor in zip(one.stages, factors, strict=True)]
    more = one.config.num_microbatches - 1
    last = max(more * time + tail for time, tail in zip(times, tails, strict=True))
    return one.straggler * (sum(times) + last) + one.fixed_s


def _features(placed: Placed, group: int) -> FloatArray:
    """Features of what a plan runs on a group, (F,); zeros where it runs nothing there."""
    for stage in placed.stages:
        if stage.group == group:
            columns = stage.on.columns.take(np.array([stage.row]))
            return np.asarray(features(stage.on.problem, columns)[0])
    return np.zeros(NUM_FEATURES)


def _effects(placed: Sequence[Placed], group: int) -> FloatArray:
    """What one prior width of each constant of a group does to the log step of every plan, (n, c)."""
    widths = np.array(list(TIME_WIDTHS.values()))
    moved = dict[int, GroupPrices]()
    found = np.zeros((len(placed), len(widths)))
    for at, one in enumerate(placed):
        for stage in one.stages:
            if stage.group == group and id(stage.on) not in moved:
                moved[id(stage.on)] = _moved(stage.on)
        if any(stage.group == group for stage in one.stages):
            steps = [_moved_s(one, moved, constant) for constant in range(len(widths))]
            found[at] = (np.log(steps) - log(one.objective_s)) / _STEP
    return np.asarray(found * widths)


def _moved(on: GroupPrices) -> GroupPrices:
    """A group's prices with each constant moved alone, one set of rows after the other."""
    names, rows = tuple(TIME_WIDTHS), len(on.columns)
    offsets = _STEP * np.eye(len(names))
    again = np.tile(np.arange(rows), len(names))
    constants = with_offsets(on.profile.constants, names, offsets, rows)
    columns, splits = on.columns.take(again), on.splits[again]
    prices = price(on.problem, columns, replace(on.profile, constants=constants))
    layout = LayerLayout.of(on.problem.model)
    assembled = assemble(prices, columns, layout, splits)
    return replace(on, columns=columns, splits=splits, prices=prices, assembled=assembled)


def _moved_s(one: Placed, moved: Mapping[int, GroupPrices], constant: int) -> float:
    """The closed form with one constant of a group moved."""

    def stage_of(stage: PlacedStage) -> PlacedStage:
        on = moved.get(id(stage.on))
        if on is None:
            return stage
        return replace(stage, on=on, row=constant * len(stage.on.columns) + stage.row)

    steps = [
        replace(pipeline, stages=tuple(map(stage_of, pipeline.stages))).objective_s
        for pipeline in one.classes
    ]
    return max(steps) + one.exchange_s
