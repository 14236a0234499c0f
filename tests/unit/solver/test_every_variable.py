"""Every variable of the glossary can be pinned, bounded and forbidden, and the search keeps to it."""

from functools import cache

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.configuration import INTEGER_VARIABLES, VARIABLES, Configuration
from meshwright.solver.search.search import search
from tests.builders import a_cluster, a_model, a_problem

SHAPE = {"num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}


def answered(**options: object) -> Answer:
    """6 layers on 16 GPUs with tight limits on what is not in question."""
    problem = a_problem(
        model=a_model(**SHAPE), cluster=a_cluster(num_nodes=2), batch=32, certify="none", top_k=1, **options
    )
    return search(problem, default_profile(problem.cluster, problem.launcher))


@cache
def best() -> Configuration:
    """The first plan without limits."""
    return answered().plans[0].config


def meant(name: str) -> int | str:
    """The best plan's value of a variable."""
    value: int | str = getattr(best(), name)
    return value


@pytest.mark.parametrize("name", VARIABLES)
def test_the_best_value_pinned_finds_the_best_plan_again(name: str) -> None:
    assert answered(pin={name: meant(name)}).plans[0].config == best()


@pytest.mark.parametrize("name", INTEGER_VARIABLES)
def test_bounds_round_the_best_value_find_the_best_plan_again(name: str) -> None:
    value = int(meant(name))
    assert answered(bounds={name: (value, value)}).plans[0].config == best()
    above = answered(bounds={name: (value + 1, 2**20)})
    assert all(getattr(plan.config, name) > value for plan in above.plans)


@pytest.mark.parametrize("name", VARIABLES)
def test_no_plan_has_a_forbidden_value(name: str) -> None:
    answer = answered(forbid={name: (meant(name),)})
    assert answer.status in ("optimal", "infeasible")
    assert all(getattr(plan.config, name) != meant(name) for plan in answer.plans)


@pytest.mark.parametrize("name", VARIABLES)
def test_a_constraint_means_what_a_pin_means(name: str) -> None:
    value = meant(name)
    text = f"'{value}'" if isinstance(value, str) else str(value).lower()
    assert answered(constraints=(f"{name} == {text}",)).plans[0].config == best()
