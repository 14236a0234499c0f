"""What an infeasible answer shows as closest is a plan with the stated risk, and accepting it is enough.

Every fourth launcher is asked every day; ``MESHWRIGHT_TEST_DRAWS=20`` draws 20 requests of each.
"""

from dataclasses import replace
from random import Random

import pytest

from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import settled_problem
from meshwright.solver.check import closest_violations
from meshwright.solver.configuration import plan_id_of
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict, predicted, profile_of_variant
from meshwright.solver.problem import Problem, problem_digest
from tests.draws import draws, some_of
from tests.problems.small_requests import a_small_request, layouts, starts

LAUNCHERS = [name for name in launcher_names() if name != "none"]
REQUESTS = draws(1)  # of each launcher
_JUST_ABOVE = 1.0 + 1e-4  # times a risk


def with_risk(problem: Problem, risk: float) -> Problem:
    return replace(problem, options=replace(problem.options, max_out_of_memory_probability=risk))


def nearly_fitting(problem: Problem) -> Problem:
    """The request on GPUs of which its lightest layout fills 95 %; unchanged where none starts."""
    profile = default_profile(problem.cluster, problem.launcher)
    starting = [config for config in layouts(problem) if starts(problem, config)]
    if not starting:
        return problem
    peak = min(predicted(problem, one).peak_memory_bytes for one in evaluate(problem, profile, starting))
    groups = tuple(
        replace(group, gpu=replace(group.gpu, memory_bytes=int(peak / 0.95)))
        for group in problem.cluster.groups
    )
    return replace(problem, cluster=replace(problem.cluster, groups=groups))


@pytest.mark.parametrize("launcher", some_of(LAUNCHERS, each=4))
def test_the_closest_plan_has_its_risk_and_accepting_it_gives_a_plan_no_slower(launcher: str) -> None:
    for seed in range(REQUESTS):
        drawn = a_small_request(launcher, Random(f"closest {launcher} {seed}"))
        if drawn is None:
            continue
        problem = nearly_fitting(drawn)
        profile = default_profile(problem.cluster, problem.launcher)
        answer = ask(problem, profile)
        if answer.status != "infeasible":
            continue
        assert answer.infeasible is not None
        closest = answer.infeasible.closest
        # some legal row means a closest plan, whatever it needs; no plan exists only where there is none
        assert ("No plan exists" in answer.certainty or "has no plan" in answer.certainty) == (
            answer.legal == 0 and closest is None
        )
        if closest is None:
            continue
        settled = settled_problem(closest, problem)
        own = profile_of_variant(settled, profile)
        named = replace(closest, plan_id=plan_id_of(problem_digest(settled), closest.config))
        assert not closest_violations(settled, own, named)
        risk = predict(settled, own, closest.config).out_of_memory_probability
        assert risk == pytest.approx(closest.prediction.out_of_memory_probability)
        assert risk > problem.options.max_out_of_memory_probability
        if risk * _JUST_ABOVE < 1.0:
            best = ask(with_risk(problem, risk * _JUST_ABOVE), profile).plans[0].prediction
            assert best.step_time_s <= closest.prediction.step_time_s * (1.0 + 1e-9)
