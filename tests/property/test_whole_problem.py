"""One small problem at real prices, searched and tried out in full."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.profiles.profile import default_profile
from meshwright.profiles.sequences import SequenceLengths
from meshwright.solver.answer import Answer
from meshwright.solver.problem import Problem, on_gpus
from meshwright.solver.search.priced_space import priced_rows
from meshwright.solver.search.rows import Rows
from meshwright.solver.search.search import search
from meshwright.solver.space.enumerate import searched_space
from tests.builders import a_cluster, a_model, a_moe_model, a_problem
from tests.property.exhaustive import Exhaustive, exhaust_all


def dense_problem() -> Problem:
    """6 layers of Llama 3.1 70B's shape on one node: memory is tight."""
    model = a_model(num_layers=6)
    return a_problem(model=model, cluster=a_cluster(num_nodes=1), batch=16, **LIMITS)


def mixed_problem() -> Problem:
    """6 layers, the last 4 of them with 8 experts."""
    model = a_moe_model()
    assert model.moe is not None
    moe = type(model.moe)(num_experts=8, top_k=2, ffn_hidden_size=14336, num_dense_layers=2)
    layers = a_model(num_layers=6, hidden_size=4096, num_attention_heads=32, moe=moe)
    return a_problem(model=layers, cluster=a_cluster(num_nodes=1), batch=16, **LIMITS)


def ordered_problem() -> Problem:
    """4 layers on two whole nodes under any order of the ranks, which decides what crosses the network."""
    bounds = {"zero_stage": (0, 1), "tensor_parallel_size": (1, 2)}
    limits = {**LIMITS, "pin": {"micro_batch_size": 1}, "bounds": bounds}
    model = a_model(num_layers=4, hidden_size=2048, ffn_hidden_size=8192, num_attention_heads=16)
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=2), batch=32, num_nodes=(2,), **limits)
    return replace(problem, launcher="none")


def unequal_problem() -> Problem:
    """6 layers on packed documents of unequal length, for which stages and replicas wait."""
    problem = a_problem(model=a_model(num_layers=6), cluster=a_cluster(num_nodes=1), batch=16, **LIMITS)
    lengths = SequenceLengths(percentiles=((0.0, 1), (50.0, 400), (90.0, 2000), (100.0, 4096)))
    options = replace(problem.options, bounds={"micro_batch_size": (1, 2), "zero_stage": (1, 3)})
    return replace(problem, workload=replace(problem.workload, lengths=lengths), options=options)


LIMITS: dict[str, object] = {
    "top_k": 5,
    "certify": "cp-sat-all",
    "pin": {"context_parallel_size": 1},
    "bounds": {"micro_batch_size": (1, 2), "zero_stage": (0, 1)},
}


@pytest.fixture(scope="module", params=[dense_problem, mixed_problem, ordered_problem, unequal_problem])
def tried(request: pytest.FixtureRequest) -> tuple[Answer, Rows, list[Exhaustive]]:
    """The answer, the legal rows, and every split of each that fits."""
    problem: Problem = request.param()
    problem = on_gpus(problem, (problem.cluster.num_gpus,))
    profile = default_profile(problem.cluster, problem.launcher)
    space = searched_space(problem)
    rows = priced_rows(problem, profile, space.columns.take(space.legal))
    return search(problem, profile), rows, exhaust_all(rows)


def test_no_split_of_any_row_simulates_below_the_bound(
    tried: tuple[Answer, Rows, list[Exhaustive]],
) -> None:
    answer, _, every = tried
    fastest = min(float(row.simulated_s.min(initial=np.inf)) for row in every)
    assert answer.bound_step_time_s is not None
    assert answer.bound_step_time_s <= fastest * (1 + 1e-9)
    assert answer.bound_step_time_s > 0.9 * fastest


def test_the_first_plan_is_the_best_of_all_closed_form_minima(
    tried: tuple[Answer, Rows, list[Exhaustive]],
) -> None:
    answer, _, every = tried
    scores = [float(r.simulated_s[r.objective_s <= r.objective_s.min() * (1 + 1e-9)].max()) for r in every
              if r.splits]  # fmt: skip
    assert answer.plans[0].prediction.step_time_s <= min(scores) * (1 + 1e-9)


def test_the_objective_excess_is_measured_against_the_least_objective_of_all(
    tried: tuple[Answer, Rows, list[Exhaustive]],
) -> None:
    answer, _, every = tried
    least = min(float(row.objective_s.min(initial=np.inf)) for row in every)
    first = answer.plans[0].objective_s
    assert answer.objective_excess == pytest.approx((first - least) / first, abs=1e-7)


def test_rows_that_fit_are_those_with_a_split_that_fits(
    tried: tuple[Answer, Rows, list[Exhaustive]],
) -> None:
    answer, rows, every = tried
    fitting = sum(bool(row.splits) for row in every)
    assert answer.fit >= fitting
    assert answer.legal == len(rows)
    if rows.is_uniform:
        assert answer.fit == fitting


def test_all_plans_are_certified_by_both_methods(tried: tuple[Answer, Rows, list[Exhaustive]]) -> None:
    answer, _, _ = tried
    assert len(answer.plans) == 5
    assert {plan.certified_by for plan in answer.plans} == {("exact-dp", "cp-sat")}
