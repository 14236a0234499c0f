"""Whether a question fits its GPUs under one launcher: at which micro-batch, and how fast.

All legal rows are priced at once, and bound the search of the plan (``planned``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import Prediction, accepts_risk
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner.least_memory import Need, least_memory
from meshwright.solver.planner.variants import searchable, searched_together, variants_of
from meshwright.solver.predict import predict, predict_all
from meshwright.solver.problem import Problem
from meshwright.solver.search.feasible import bound_at_sight_s, fitting, nearest
from meshwright.solver.search.frontier import Rivals
from meshwright.solver.search.priced_space import priced_rows
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.search import search
from meshwright.solver.search.splits import best_splits
from meshwright.solver.space.enumerate import enumerate_space

Verdict = Literal["yes", "tight", "no"]

_MOST_ROWS = 200_000  # priced at once; of more, only the lightest row answers
_CANDIDATES = 16  # rows of the least bounds, predicted in full
_TIGHT = 0.5  # up to this risk of running out of memory a run is more likely to fit than not


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What a launcher does with a question on its GPUs."""

    verdict: Verdict
    lightest: Need  # the configuration of least memory
    config: Configuration  # the fastest that fits, else the lightest
    prediction: Prediction
    largest_micro_batch: int  # sequences of one pass that fit; 0: none

    @property
    def accepted_risk(self) -> float:
        """Return the risk of running out of memory that a plan is asked to accept, in whole per cents."""
        return ceil(self.lightest.prediction.out_of_memory_probability * 100) / 100

    @property
    def tokens_per_s(self) -> float:
        """Return tokens per second of all GPUs together."""
        return self.prediction.tokens_per_s_per_gpu * self.config.num_gpus


def planned(problem: Problem, fit: Fit) -> Fit:
    """Return what fits with the configuration that a plan of the question lists first.

    ``problem``: the question as it is planned, with all switches that it allows. A search finds the plan as
    ``plan`` does, but proves nothing of other splits.
    """
    if fit.verdict == "no":
        return fit
    known, step_s = (fit.config, fit.prediction), fit.prediction.step_time_s
    options = replace(problem.options, top_k=1, certify="none", diverse=False)
    if fit.verdict == "tight":
        options = replace(options, max_out_of_memory_probability=fit.accepted_risk)
    asked = replace(problem, options=options)
    variants, _ = searchable(variants_of(asked, default_profile(asked.cluster, asked.priced_as)))
    for first, *others in searched_together(variants):
        ways, rivals = [one.problem for one in others], Rivals(step_s, step_s)
        for plan in search(first.problem, first.profile, ways=ways, rivals=rivals, proved=False).plans[:1]:
            if plan.prediction.step_time_s < step_s:
                known, step_s = (plan.config, plan.prediction), plan.prediction.step_time_s
    config, prediction = known
    largest = max(fit.largest_micro_batch, config.micro_batch_size)
    return replace(fit, config=config, prediction=prediction, largest_micro_batch=largest)


def fit_of(problem: Problem) -> Fit | None:
    """Return whether a question fits under its launcher; None: it has no legal configuration there."""
    need = least_memory(problem)
    if need is None:
        return None
    seen = need.prediction
    risk = seen.out_of_memory_probability
    verdict: Verdict = "yes" if need.fits else "tight" if risk <= _TIGHT else "no"
    if verdict != "yes":
        mbs = need.config.micro_batch_size if verdict == "tight" else 0
        return Fit(
            verdict=verdict, lightest=need, config=need.config, prediction=seen, largest_micro_batch=mbs
        )
    profile = default_profile(problem.cluster, problem.priced_as)
    space = enumerate_space(problem, legal_only=True)
    if len(space.rows) > _MOST_ROWS:
        return Fit(
            verdict=verdict, lightest=need, config=need.config, prediction=seen,
            largest_micro_batch=need.config.micro_batch_size,
        )  # fmt: skip
    rows = priced_rows(problem, profile, space.rows.take(np.arange(len(space.rows))))
    rows = rows.take(np.flatnonzero(fitting(rows)))
    config, prediction = _fastest(problem, profile, rows) or (need.config, seen)
    largest = max(
        _largest_micro_batch(problem, profile, rows), config.micro_batch_size, need.config.micro_batch_size
    )
    return Fit(
        verdict=verdict, lightest=need, config=config, prediction=prediction, largest_micro_batch=largest
    )


def _fastest(problem: Problem, profile: Profile, rows: Rows) -> tuple[Configuration, Prediction] | None:
    """Return the fastest of the rows with the least bounds."""
    order = np.argsort(bound_at_sight_s(rows), kind="stable")[:_CANDIDATES]
    few = rows.take(order)
    pairs = [(row, split) for row, split in enumerate(best_splits(few)) if split is not None]
    if not pairs:
        return None
    configs = few.take([row for row, _ in pairs]).configurations([split for _, split in pairs])
    seen = [
        (config, one)
        for config, one in zip(configs, predict_all(problem, profile, configs), strict=True)
        if accepts_risk(problem, one)
    ]
    return min(seen, key=lambda pair: pair[1].step_time_s, default=None)


def _largest_micro_batch(problem: Problem, profile: Profile, rows: Rows) -> int:
    """Return the largest micro-batch of rows that fit, proved by the row of least memory with it."""
    sizes = rows.columns.micro_batch_size
    for size in sorted(set(sizes.tolist()), reverse=True):
        some = rows.take(np.flatnonzero(sizes == size))
        found = nearest(some)
        if found is None:
            continue
        row, split = found
        (config,) = some.take([row]).configurations([split])
        if accepts_risk(problem, predict(problem, profile, config)):
            return int(size)
    return 0
