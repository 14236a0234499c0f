"""A search that is told to stop says what it knows, whenever that is; it never takes that for a proof."""

from itertools import count

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.clock import look
from meshwright.solver.search.search import search
from tests.builders import a_problem


@pytest.mark.parametrize("looks", range(12))
def test_a_search_stopped_at_any_look_has_a_plan_or_knows_nothing(looks: int) -> None:
    problem = a_problem()
    asked = count()
    profile = default_profile(problem.cluster, problem.launcher)
    answer = search(problem, profile, should_stop=lambda: next(asked) >= looks)
    assert answer.status in {"unknown", "feasible"}
    assert bool(answer.plans) == (answer.status == "feasible")


def test_seeking_a_first_plan_in_vain_leaves_time_for_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_vain(*_: object) -> None:
        while True:
            look()

    monkeypatch.setattr("meshwright.solver.search.search.first_plan", in_vain)
    problem = a_problem(time_limit_s=10.0)
    assert search(problem, default_profile(problem.cluster, problem.launcher)).plans
