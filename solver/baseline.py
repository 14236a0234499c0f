"""The client's own configuration, priced and ranked beside the plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from profiles.profile import Profile
from solver.check import violations
from solver.columns import Columns
from solver.digest import problem_digest
from solver.objective import weighing_of
from solver.outlook import outlook_of
from solver.plan import Answer, Baseline, Configuration, Prediction, plan_id_of
from solver.predictions import predicted
from solver.problem import Problem


def with_baseline(problem: Problem, profile: Profile, answer: Answer) -> Answer:
    """The answer with the request's own configuration, where it gives one.

    Its rank counts the plans that are better by the request's objective; None: all of them are, so it
    ranks behind the last, or it has no rank: ``problems`` names the rules that it breaks and the memory
    that it lacks.
    """
    config = problem.options.baseline
    if config is None:
        return answer
    prediction = predicted(problem, profile, config)
    score = score_s(problem, profile, config, prediction)
    scores = [score_s(problem, profile, plan.config, plan.prediction) for plan in answer.plans]
    better = sum(other < score for other in scores)
    problems = tuple(violations(problem, profile, config))
    among = better < len(scores) or any(plan.config == config for plan in answer.plans)
    baseline = Baseline(
        plan_id=plan_id_of(problem_digest(problem), config),
        config=config,
        prediction=prediction,
        outlook=outlook_of(problem, profile, config, prediction),
        rank=better + 1 if among and not problems else None,
        gap_to_best=(score - scores[0]) / score if scores else None,
        problems=problems,
    )
    return replace(answer, baseline=baseline)


def score_s(problem: Problem, profile: Profile, config: Configuration, prediction: Prediction) -> float:
    """What a configuration is ranked by, in seconds relative to the whole cluster."""
    if config.is_placed:  # ranked by its step alone
        return prediction.step_time_s
    weighing = weighing_of(problem, profile, Columns.of([config]))
    weighed = weighing.scale * prediction.step_time_s + weighing.offset
    return float(np.asarray(weighed)[0])
