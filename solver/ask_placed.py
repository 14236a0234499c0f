"""A request whose stages are placed on unlike node groups: what it asks for beside the ranking."""

from __future__ import annotations

from dataclasses import replace

from profiles.profile import Profile
from solver.baseline import with_baseline
from solver.objective import slowdown
from solver.outlook import is_asked_for, outlook_of
from solver.plan import Answer, Infeasibility, Plan, Status
from solver.problem import Problem
from solver.progress import OnProgress, ShouldStop
from solver.search.search import search
from solver.search.watch import Watch
from solver.why.explained import with_reasons
from solver.why.placed_remedies import placed_infeasibility
from solver.why.robust import with_odds

_TENTH = 10.0


def ask_placed(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Answer:
    """The answer with reasons, odds, the whole run, and the client's own plan; errors as ``search``.

    A deadline leaves out the plans that are late.
    """
    answer = search(problem, profile, on_progress=on_progress, should_stop=should_stop)
    if answer.status == "infeasible":
        watch = Watch(time_limit_s=problem.options.time_limit_s, should_stop=should_stop)
        found = placed_infeasibility(problem, profile, watch.interrupted)
        answer = replace(answer, infeasible=found)
    elif is_asked_for(problem):
        answer = _in_time(problem, _with_outlook(problem, profile, answer))
    plans = with_odds(problem, profile, with_reasons(problem, profile, answer.plans))
    return with_baseline(problem, profile, replace(answer, plans=plans))


def _with_outlook(problem: Problem, profile: Profile, answer: Answer) -> Answer:
    """Every plan with the run that it makes."""
    plans = tuple(
        replace(plan, outlook=outlook_of(problem, profile, plan.config, plan.prediction))
        for plan in answer.plans
    )
    return replace(answer, plans=plans)


def _in_time(problem: Problem, answer: Answer) -> Answer:
    """The plans that meet the deadline; where the fastest step that can be is late, none does."""
    allowed = problem.options.deadline_days
    if allowed is None or not answer.plans:
        return answer
    kept = [plan for plan in answer.plans if _days(plan) <= allowed]
    if kept:
        plans = tuple(replace(plan, rank=rank) for rank, plan in enumerate(kept, 1))
        return replace(answer, plans=plans, num_gpus_used=plans[0].config.num_gpus)
    first = answer.plans[0]
    days, gpus = _days(first), first.config.num_gpus
    reason = f"deadline: the fastest plan takes {days:.1f} days on {gpus} GPUs, {allowed:g} are allowed"
    late = Infeasibility(reasons=(reason,), changes=(f"a deadline of {_up(days):.1f} days",))
    outcomes: tuple[Status, Status] = ("infeasible", "unknown")
    proved = answer.status == "optimal" and _least_days(problem, answer) > allowed
    return replace(
        answer, status=outcomes[not proved], plans=(), certified_by=answer.certified_by if proved else (),
        gap=None, objective=None, infeasible=late,
    )  # fmt: skip


def _days(plan: Plan) -> float:
    """Of the whole run."""
    return 0.0 if plan.outlook is None or plan.outlook.days is None else plan.outlook.days


def _least_days(problem: Problem, answer: Answer) -> float:
    """No configuration's run is shorter: the bound on a step, interruptions of one GPU alone counted."""
    first, bound = answer.plans[0], answer.bound_step_time_s or 0.0
    own = first.prediction.step_time_s * slowdown(problem, first.config.num_gpus)
    return _days(first) * bound * slowdown(problem, 1) / own


def _up(days: float) -> float:
    """To tenths of a day, never down."""
    return -(-days * _TENTH // 1.0) / _TENTH
