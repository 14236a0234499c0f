"""No request for one node is called infeasible while a layout of it starts and fits.

All layouts are tried, without the search's space and without its rules.
"""

from random import Random

import pytest

from meshwright.profiles.capabilities import launcher_names
from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Prediction
from meshwright.solver.configuration import Configuration
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predicted
from meshwright.solver.problem import Problem
from tests.draws import draws
from tests.problems.small_requests import a_small_request, layouts, starts
from tests.property.unexplained import unexplained

LAUNCHERS = launcher_names()
REQUESTS = draws(1)  # of each launcher
_AT_ONCE = 256


def lightest_first(problem: Problem) -> list[Configuration]:
    """Layouts in an order in which those that need least memory come soon."""
    return sorted(
        layouts(problem), key=lambda one: (one.micro_batch_size, one.recompute_granularity != "full")
    )


def that_fits(problem: Problem) -> tuple[Configuration, Prediction] | None:
    """A layout that starts and fits within the risk limit; None: there is none."""
    profile = default_profile(problem.cluster, problem.launcher)
    every = lightest_first(problem)
    for start in range(0, len(every), _AT_ONCE):
        for one in evaluate(problem, profile, every[start : start + _AT_ONCE], with_spread=True):
            found = predicted(problem, one)
            fits = found.out_of_memory_probability <= problem.options.max_out_of_memory_probability
            if fits and starts(problem, one.config):
                return one.config, found
    return None


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_is_called_infeasible_has_no_layout_that_fits(launcher: str) -> None:
    for seed in range(REQUESTS):
        problem = a_small_request(launcher, Random(f"{launcher} {seed}"))
        if problem is None:
            continue
        with unexplained():
            answer = ask(problem, default_profile(problem.cluster, problem.launcher))
        if answer.status == "infeasible":
            found = that_fits(problem)
            assert found is None, (seed, *found)
