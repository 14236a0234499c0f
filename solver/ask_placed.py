"""A request whose stages are placed on unlike node groups: what it asks for beside the ranking."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from profiles.profile import Profile
from solver.baseline import with_baseline
from solver.calibration.refuse import require_credible
from solver.launcher_own import overlap_warnings
from solver.objective import slowdown
from solver.outlook import claim_of, is_asked_for, outlook_of
from solver.plan import Answer, Plan, Status
from solver.problem import Problem
from solver.progress import OnProgress
from solver.search.search import search
from solver.search.watch import Watch, relative_gap
from solver.why.explained import unsaid, with_reasons
from solver.why.in_time import More, Run, too_late
from solver.why.placed_remedies import on_nodes_of, placed_infeasibility
from solver.why.robust import with_odds


def ask_placed(
    problem: Problem, profile: Profile, watch: Watch, *, on_progress: OnProgress | None = None
) -> Answer:
    """The answer with reasons, odds, the whole run, and the client's own plan; errors as ``search``.

    A deadline leaves out the plans that are late.
    """
    answer = search(problem, profile, on_progress=on_progress, should_stop=watch.should_stop)
    require_credible(problem, profile, [(plan.config, plan.prediction) for plan in answer.plans])
    if answer.status == "infeasible":
        answer = replace(answer, infeasible=placed_infeasibility(problem, profile, watch))
    elif is_asked_for(problem):
        answer = _in_time(problem, profile, _with_outlook(problem, profile, answer), watch)
    plans = with_reasons(problem, profile, answer.plans, watch.closing())
    with watch.closing().cut():
        plans = with_odds(problem, profile, plans)
    said = (*unsaid(plans, odds=True), *overlap_warnings(problem, plans))
    answer = replace(answer, plans=plans, warnings=(*answer.warnings, *said))
    return with_baseline(problem, profile, answer)


def _with_outlook(problem: Problem, profile: Profile, answer: Answer) -> Answer:
    """Every plan with the run that it makes."""
    plans = tuple(
        replace(plan, outlook=outlook_of(problem, profile, plan.config, plan.prediction))
        for plan in answer.plans
    )
    return replace(answer, plans=plans)


def _in_time(problem: Problem, profile: Profile, answer: Answer, watch: Watch) -> Answer:
    """The plans that meet the deadline; where the fastest step that can be is late, none does."""
    allowed = problem.options.deadline_days
    if allowed is None or not answer.plans:
        return answer
    kept = [plan for plan in answer.plans if _days(plan) <= allowed]
    if kept:
        return _left(problem, profile, answer, kept)
    first = Run(plan=answer.plans[0], days=_days(answer.plans[0]))
    groups = enumerate(problem.cluster.distinct_groups)
    more = [
        More(nodes=one.num_nodes, grow=partial(on_nodes_of, problem, profile, at)) for at, one in groups
    ]
    late = too_late(problem, first, more, watch)
    outcomes: tuple[Status, Status] = ("infeasible", "unknown")
    proved = answer.status == "optimal" and _least_days(problem, answer) > allowed
    return replace(
        answer, status=outcomes[not proved], plans=(), certified_by=answer.certified_by if proved else (),
        gap=None, objective=None, infeasible=late,
    )  # fmt: skip


def _left(problem: Problem, profile: Profile, answer: Answer, kept: list[Plan]) -> Answer:
    """The answer with the plans that are in time, and what that leaves open."""
    plans = tuple(replace(plan, rank=rank) for rank, plan in enumerate(kept, 1))
    if len(plans) == len(answer.plans):
        return answer
    late, step = len(answer.plans) - len(plans), plans[0].prediction.step_time_s
    said = f"{late} of the {len(answer.plans)} plans of shortest step miss the deadline and are left out"
    return replace(
        answer,
        plans=plans,
        gap=relative_gap(step, answer.bound_step_time_s),
        num_gpus_used=plans[0].config.num_gpus,
        objective=claim_of(problem, profile, step, answer.bound_step_time_s),
        warnings=(*answer.warnings, f"{said}; plans of longer step were not sought in their place"),
    )


def _days(plan: Plan) -> float:
    """Of the whole run."""
    return 0.0 if plan.outlook is None or plan.outlook.days is None else plan.outlook.days


def _least_days(problem: Problem, answer: Answer) -> float:
    """No configuration's run is shorter: the bound on a step, interruptions of one GPU alone counted."""
    first, bound = answer.plans[0], answer.bound_step_time_s or 0.0
    own = first.prediction.step_time_s * slowdown(problem, first.config.num_gpus)
    return _days(first) * bound * slowdown(problem, 1) / own
