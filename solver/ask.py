"""One request, one answer: whatever it asks for beside the ranking of one space."""

from __future__ import annotations

from dataclasses import replace

from profiles.profile import Profile
from solver.baseline import with_baseline
from solver.fewest import fewest
from solver.outlook import outlook_of
from solver.plan import Answer, Infeasibility
from solver.problem import Problem
from solver.progress import OnProgress, ShouldStop
from solver.search.search import search
from solver.why.explained import with_reasons
from solver.why.robust import with_odds

_TENTH = 10.0


def ask(
    problem: Problem,
    profile: Profile,
    *,
    on_progress: OnProgress | None = None,
    should_stop: ShouldStop | None = None,
) -> Answer:
    """The answer to a request; errors as ``search``."""
    run = fewest if problem.options.gpus == "fewest" else search
    answer = run(problem, profile, on_progress=on_progress, should_stop=should_stop)
    if answer.status == "infeasible" and problem.options.deadline_days is not None:
        answer = _too_late(problem, profile, answer, should_stop)
    plans = with_odds(problem, profile, with_reasons(problem, profile, answer.plans))
    return with_baseline(problem, profile, replace(answer, plans=plans))


def _too_late(problem: Problem, profile: Profile, answer: Answer, should_stop: ShouldStop | None) -> Answer:
    """Where the deadline is what stands in the way: how long the fastest plan takes."""
    options = replace(
        problem.options, deadline_days=None, objective="step_time", top_k=1, certify="none", gpus="all"
    )
    patient = search(replace(problem, options=options), profile, should_stop=should_stop)
    if not patient.plans:
        return answer
    plan = patient.plans[0]
    days = outlook_of(problem, profile, plan.config, plan.prediction).days or 0.0
    asked = problem.options.deadline_days
    reason = (
        f"deadline: the fastest plan takes {days:.1f} days on {plan.config.num_gpus} GPUs, not {asked:g}"
    )
    change = f"a deadline of {_up(days):.1f} days"
    return replace(answer, infeasible=Infeasibility(reasons=(reason,), changes=(change,)))


def _up(days: float) -> float:
    """To tenths of a day, never down."""
    return -(-days * _TENTH // 1.0) / _TENTH
