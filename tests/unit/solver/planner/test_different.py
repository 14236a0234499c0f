"""Near-optimal plans that differ in stated variables, against the request with each combination pinned."""

from itertools import product
from typing import Any

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.planner.different import MOST, excess
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_model, a_problem
from tests.draws import seldom

VALUES: dict[str, tuple[Any, ...]] = {
    "tensor_parallel_size": (1, 2, 4, 8),
    "recompute_granularity": ("none", "selective", "full"), "sequence_parallel": (False, True),
}  # fmt: skip


def small(**options: Any) -> Problem:  # noqa: ANN401 - options of a search
    """Eight layers on eight GPUs, without switches."""
    given = {"top_k": 1, "allow": ("none",), "certify": "cp-sat"} | options
    return a_problem(model=a_model(num_layers=8), cluster=a_cluster(num_nodes=1), batch=16, **given)


def answer_to(problem: Problem) -> Answer:
    """What the planner answers."""
    return ask(problem, default_profile(problem.cluster, problem.launcher))


@pytest.mark.parametrize(
    ("names", "within"),
    [
        (("tensor_parallel_size",), 0.5),
        pytest.param(("recompute_granularity", "sequence_parallel"), 1.0, marks=seldom),
    ],
)
def test_they_are_the_best_plan_of_each_combination_as_when_that_is_pinned(
    names: tuple[str, ...], within: float
) -> None:
    answer = answer_to(small(differ=names, within=within))
    found, expected = answer.different, dict[tuple[Any, ...], float]()
    assert found is not None
    for values in product(*(VALUES[name] for name in names)):
        asked = dict(zip(names, values, strict=True))
        texts = tuple((n if v else f"not {n}") for n, v in asked.items() if isinstance(v, bool))
        pins = {name: value for name, value in asked.items() if not isinstance(value, bool)}
        pinned = small(pin=pins, constraints=texts, certify="none")
        one = search(pinned, default_profile(pinned.cluster, pinned.launcher))
        if one.plans and excess(answer, one) <= within:
            expected[values] = excess(answer, one)
    order = sorted(expected, key=expected.__getitem__)
    shown = [tuple(getattr(plan.config, name) for name in names) for plan in found.plans]
    assert found.worse == pytest.approx([expected[values] for values in order[: len(shown)]], abs=1e-9)
    assert len({*shown}) == len(shown)
    assert {*shown} <= {*order}
    assert len(shown) == min(len(order), MOST)
    assert found.complete == (len(shown) < MOST)
    assert [plan.rank for plan in found.plans] == [*range(1, len(shown) + 1)]


def test_a_request_that_does_not_ask_has_none() -> None:
    answer = answer_to(small())
    assert answer.different is None
    assert "different" not in answer.to_json()
