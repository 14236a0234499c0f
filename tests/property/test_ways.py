"""One price for rows under many ways of switches is the price of each row under its own way."""

import gc
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest

from meshwright.profiles.library import find_model
from meshwright.profiles.profile import Profile, default_profile
from meshwright.profiles.switches import EVERY_SWITCH
from meshwright.solver.configuration import Columns, FloatArray
from meshwright.solver.cost.context import Context
from meshwright.solver.cost.price import price, price_memory, shared_passes
from meshwright.solver.cost.stages import RowPrices
from meshwright.solver.cost.ways import Ways, priced_together
from meshwright.solver.planner.variants import packaged_variants, searched_variants, switched_of
from meshwright.solver.problem import Problem, on_switches
from tests.builders import a_cluster, a_problem, with_default_switches
from tests.property.meaning import some_configurations

MODELS = ("llama-3-8b", "mixtral-8x7b", "deepseek-v2-lite")
LAUNCHERS = ("megatron-lm", "megatron-bridge", "torchtitan")
PRICINGS = (price, price_memory)


def drawn(name: str, launcher: str, *allow: str) -> tuple[Problem, Columns, Ways]:
    """Drawn configurations, each under one of the ways that a search of a launcher may try."""
    model = replace(find_model(name), num_layers=4)
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=4), batch=64)
    problem = replace(with_default_switches(problem), launcher=launcher)
    problem = replace(problem, options=replace(problem.options, allow=allow))
    switched = [*switched_of(problem, default_profile(problem.cluster, launcher))]
    variants = searched_variants(switched)
    if allow:
        variants += [one for _, found in packaged_variants(switched) for one in found]
    first = variants[0]
    problems = [one.problem for one in variants if on_switches(first.problem, one.problem) == one.problem]
    random = Random(f"{name} {launcher}")
    columns = Columns.of(list(some_configurations(problems[0], random, 120)))
    of_row = np.array([random.randrange(len(problems)) for _ in range(len(columns))])
    return problems[0], columns, Ways.of_each_row(problems, first.profile).under(of_row)


def arrays(prices: RowPrices) -> dict[str, FloatArray]:
    """The prices by name, without the breakdown, which is not shared."""
    names = [one.name for one in fields(prices) if not one.name.endswith(("breakdown_s", "moments"))]
    return {name: getattr(prices, name) for name in names if name != "prediction"} | prices.prediction


@pytest.mark.parametrize("pricing", PRICINGS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_cost_under_many_ways_together_what_they_cost_alone(
    name: str, launcher: str, pricing: Callable[..., RowPrices]
) -> None:
    problem, columns, ways = drawn(name, launcher, EVERY_SWITCH)
    profile = default_profile(problem.cluster, launcher)
    together = priced_together(pricing, ways, columns, profile)
    assert len(ways.problems) > 1
    for rows, own in ways.one_by_one():
        alone = arrays(pricing(own.problems[0], columns.take(rows), profile))
        shared = arrays(together.take(rows))
        assert [one for one in alone if not np.array_equal(shared[one], alone[one])] == []


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", MODELS)
def test_rows_share_the_passes_under_many_ways_that_they_share_under_each_alone(
    name: str, launcher: str
) -> None:
    problem, columns, ways = drawn(name, launcher, EVERY_SWITCH)
    profile = default_profile(problem.cluster, launcher)
    for one, together in zip(ways.problems, shared_passes(ways.problems, columns, profile), strict=True):
        (alone,) = shared_passes([one], columns, profile)
        names = [each.name for each in fields(alone)]
        assert [at for at in names if not np.array_equal(getattr(together, at), getattr(alone, at))] == []


@pytest.mark.parametrize("name", MODELS)
def test_the_ways_that_a_search_tries_by_default_are_priced_in_one_call(name: str) -> None:
    problem, columns, ways = drawn(name, "megatron-lm")
    calls = list[int]()

    def counted(
        problem: Problem, columns: Columns, profile: Profile, *, ways: Ways | None = None
    ) -> RowPrices:
        calls.append(1 if ways is None else len(ways.problems))
        return price_memory(problem, columns, profile, ways=ways)

    priced_together(counted, ways, columns, default_profile(problem.cluster, "megatron-lm"))
    assert calls == [len(ways.problems)]
    assert calls[0] >= 4


def contexts() -> list[Context]:
    """What rows were priced with, of other tests as well, that is still there."""
    return [one for one in gc.get_objects() if isinstance(one, Context)]


def test_what_rows_were_priced_with_is_freed_before_python_looks_for_garbage() -> None:
    """A search runs so few collections that a cycle of contexts would keep all their arrays."""
    problem, columns, ways = drawn("mixtral-8x7b", "megatron-lm", EVERY_SWITCH)
    profile = default_profile(problem.cluster, "megatron-lm")
    gc.disable()
    before = contexts()
    try:
        priced_together(price, ways, columns, profile)
        assert len(contexts()) == len(before)
    finally:
        gc.enable()
