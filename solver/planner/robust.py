"""Answers ranked by the 90 % quantile of the step under the cost model's own uncertainty.

ln(true / predicted) of a plan is normal about 0 with the spread of its prediction, so that the quantile is
the upper end of the 80 % interval. The plans of shortest predicted step are found and proved as usual; of
these the one with the least quantile is first. The others are those that are most likely faster than all
that were taken before them, by joint draws: plans that depend on the same constants err together, so that
one of them is enough.

What is proved: no plan's quantile is below the proved bound on the step, times e^(z sigma) of a spread that
no plan's is below (``least_log_sigma``). Which plan has the least quantile is not proved: it is the best of
those that were compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp

import numpy as np

from meshwright.profiles.capabilities import launchers_of
from meshwright.profiles.profile import Profile
from meshwright.solver.answer import Answer, ObjectiveClaim, Plan, RankFloors, settled_problem
from meshwright.solver.clock import relative_gap
from meshwright.solver.cost.objective import UNITS
from meshwright.solver.cost.uncertainty import least_log_sigma
from meshwright.solver.explain.certainty import deciding_measurements, joint_log_steps, with_odds
from meshwright.solver.planner.variants import packaged_warning
from meshwright.solver.predict import Z_80_PERCENT, profile_of_variant
from meshwright.solver.problem import Problem
from meshwright.solver.search.fewer_gpus import IDLE

_COMPARED, _EACH = 32, 3  # plans that are compared: at least, and for each that is asked for


def robust_answer(problem: Problem, profile: Profile, ask: Callable[[Problem], Answer]) -> Answer:
    """Return the answer to a request that is ranked by the quantile.

    Args:
        problem: the request.
        profile: its prices.
        ask: answers the same request, ranked by the step.
    """
    count = problem.options.top_k
    options = replace(
        problem.options, objective="step_time", top_k=max(_COMPARED, _EACH * count), certify="none",
        baseline=None,
    )  # fmt: skip
    found = ask(replace(problem, options=options))
    if not found.plans:
        return found
    ranking, behind = found.ranking, [plan for plan in found.plans if not plan.ranked]
    chosen = _chosen(problem, profile, ranking, count)
    bound_s = quantile_bound_s(problem, profile, found.bound_step_time_s)
    first_s = chosen[0].prediction.step_time_high_s
    gap = relative_gap(first_s, bound_s)
    claim = ObjectiveClaim(name="robust", unit=UNITS["robust"], value=first_s, bound=bound_s, gap=gap)
    said, notes = {packaged_warning(problem, ranking[0], plan) for plan in behind}, {**found.notes}
    if chosen[0].config.num_gpus != ranking[0].config.num_gpus:
        said.add(notes.pop(IDLE, ""))
    warnings = [text for text in found.warnings if text not in said]
    listed = [
        replace(
            plan, rank=rank, certified_by=(), bound_step_time_s=found.bound_step_time_s,
            gap=relative_gap(plan.prediction.step_time_high_s, bound_s),
        )
        for rank, plan in enumerate([*chosen, *behind], 1)
    ]  # fmt: skip
    warnings += [packaged_warning(problem, listed[0], plan) for plan in listed if not plan.ranked]
    return replace(
        found, warnings=tuple(warnings), status="optimal" if gap == 0.0 else "feasible",
        plans=tuple(listed), objective=claim, certified_by=(), objective_gap=None,
        objective_excess=None, floors=RankFloors(),
        gap=relative_gap(chosen[0].prediction.step_time_s, found.bound_step_time_s),
        num_gpus_used=chosen[0].config.num_gpus,
        notes={**notes, "compared": str(len(ranking))},
    )  # fmt: skip


def quantile_bound_s(problem: Problem, profile: Profile, bound_s: float | None) -> float | None:
    """Return what no plan's quantile is below, given what no plan's step is below."""
    if bound_s is None:
        return None
    launchers = [problem.under(name) for name in launchers_of(problem.launcher)]
    sigma = min(least_log_sigma(one, profile_of_variant(one, profile)) for one in launchers)
    return bound_s * exp(Z_80_PERCENT * sigma)


def _chosen(problem: Problem, profile: Profile, plans: Sequence[Plan], count: int) -> list[Plan]:
    """Return the plan of least quantile, then those of unlike errors, ordered by their quantiles."""
    first = min(range(len(plans)), key=lambda at: plans[at].prediction.step_time_high_s)
    # each plan adds its own switches to the workload that is asked for
    found = settled_problem(plans[first], problem)
    settled = replace(problem, cluster=found.cluster).under(found.launcher)
    own = profile_of_variant(settled, profile)
    draws = joint_log_steps(settled, own, plans)  # (draws, n)
    taken, best = [first], draws[:, first]
    while len(taken) < min(count, len(plans)):
        least = np.minimum(best[:, None], draws).mean(axis=0)
        least[taken] = np.inf
        taken.append(int(least.argmin()))
        best = np.minimum(best, draws[:, taken[-1]])
    others = sorted(taken[1:], key=lambda at: plans[at].prediction.step_time_high_s)
    listed = [replace(plans[at], rank=rank) for rank, at in enumerate([first, *others], 1)]
    ranked = with_odds(settled, own, listed)
    decide = [None, *deciding_measurements(settled, own, listed)]
    return [replace(one, deciding=by) for one, by in zip(ranked, decide, strict=True)]
