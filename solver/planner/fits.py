"""Whether a question fits its GPUs under one launcher: at which micro-batch, and how fast.

Its configuration of least memory says whether it fits. A search finds the plan (``planned``), and the price
of passes bounds what no plan takes less than (``least_steps_s``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

import numpy as np

from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import Prediction, accepts_risk
from meshwright.solver.configuration import Configuration
from meshwright.solver.planner.least_memory import Need, least_memory
from meshwright.solver.planner.variants import Variant, searchable, searched_together, variants_of
from meshwright.solver.predict import predict, predict_all
from meshwright.solver.problem import Problem, problem_digest, usable_gpus
from meshwright.solver.search.feasible import bound_at_sight_s, fitting, nearest, some_fits_evenly
from meshwright.solver.search.frontier import Rivals
from meshwright.solver.search.gpu_seconds import least_pass_gpu_s
from meshwright.solver.search.memory_limits import may_fit
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


def fit_of(problem: Problem) -> Fit | None:
    """Return whether a question fits under its launcher; None: it has no legal configuration there.

    Its configuration is the lightest one: ``with_fastest`` and ``planned`` seek faster ones.
    """
    need = least_memory(problem)
    if need is None:
        return None
    risk = need.prediction.out_of_memory_probability
    verdict: Verdict = "yes" if need.fits else "tight" if risk <= _TIGHT else "no"
    largest = 0 if verdict == "no" else need.config.micro_batch_size
    return Fit(
        verdict=verdict, lightest=need, config=need.config, prediction=need.prediction,
        largest_micro_batch=largest,
    )  # fmt: skip


def with_fastest(problem: Problem, fit: Fit) -> Fit:
    """Return what fits with the fastest of its legal rows, all priced at once, without a plan."""
    if fit.verdict != "yes":
        return fit
    space = enumerate_space(problem, legal_only=True)
    if len(space.rows) > _MOST_ROWS:
        return fit
    profile = default_profile(problem.cluster, problem.priced_as)
    rows = priced_rows(problem, profile, space.rows.take(np.arange(len(space.rows))))
    found = _fastest(problem, profile, rows.take(np.flatnonzero(fitting(rows))))
    return fit if found is None else replace(fit, config=found[0], prediction=found[1])


def planned(problem: Problem, fit: Fit, within_s: float = np.inf) -> Fit | None:
    """Return what fits with the configuration that a plan of the question lists first.

    ``problem``: the question as it is planned, with all switches that it allows. A search finds the plan as
    ``plan`` does, but proves nothing of other splits. None: its step takes longer than ``within_s``.
    """
    options = replace(problem.options, top_k=1, certify="none", diverse=False)
    if fit.verdict == "tight":
        options = replace(options, max_out_of_memory_probability=fit.accepted_risk)
    found, step_s = fit, within_s
    for first, *others in _variants(replace(problem, options=options)):
        ways, rivals = [one.problem for one in others], Rivals(step_s, step_s)
        for plan in search(first.problem, first.profile, ways=ways, rivals=rivals, proved=False).plans[:1]:
            if plan.prediction.step_time_s < found.prediction.step_time_s:
                found = replace(fit, config=plan.config, prediction=plan.prediction)
                step_s = min(step_s, plan.prediction.step_time_s)
    if found.prediction.step_time_s > within_s:
        return None
    largest = max(fit.largest_micro_batch, found.config.micro_batch_size)
    if fit.verdict == "yes":
        largest = _largest_micro_batch(problem, largest)
    return replace(found, largest_micro_batch=largest)


def least_steps_s(problems: Sequence[Problem]) -> list[float]:
    """Return a lower bound of all steps of questions that may be planned; 0: none is known.

    Offload shortens no pass, and the bound asks for no memory.
    """
    known = dict[tuple[str, tuple[str, ...]], float]()
    for problem in problems:
        if (key := _passes_key(problem)) not in known:
            asked = replace(problem, options=replace(problem.options, allow=key[1]))
            gpu_s = (
                least_pass_gpu_s(first.problem, first.profile, [one.problem for one in others], wide=True)
                for first, *others in _variants(asked)
            )
            known[key] = min(gpu_s) / usable_gpus(problem)
    return [known[_passes_key(problem)] for problem in problems]


def _passes_key(problem: Problem) -> tuple[str, tuple[str, ...]]:
    """Return what questions agree in that differ in whether they may offload."""
    return problem_digest(problem), tuple(name for name in problem.options.allow if name != "offload")


def _variants(problem: Problem) -> list[list[Variant]]:
    every = variants_of(problem, default_profile(problem.cluster, problem.priced_as))
    return searched_together(searchable(every)[0])


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


def _largest_micro_batch(problem: Problem, known: int) -> int:
    """Return the largest micro-batch that fits, proved by the row of least memory with it; one is known."""
    space = enumerate_space(problem, legal_only=True)
    if len(space.rows) > _MOST_ROWS or space.columns.micro_batch_size.max(initial=0) <= known:
        return known
    profile = default_profile(problem.cluster, problem.priced_as)
    larger = np.flatnonzero(space.columns.micro_batch_size > known)
    rows = priced_rows(problem, profile, space.rows.take(larger))
    rows = rows.take(np.flatnonzero(may_fit(rows)))
    sizes = rows.columns.micro_batch_size
    for size in np.unique(sizes)[::-1].tolist():
        some = rows.take(np.flatnonzero(sizes == size))
        if some_fits_evenly(some):
            return int(size)
        if (found := nearest(some)) is not None:
            row, split = found
            (config,) = some.take([row]).configurations([split])
            if accepts_risk(problem, predict(problem, profile, config)):
                return int(size)
    return known
