"""Plans ranked by the 90 % quantile of the step: its bound, its choice, and what would decide."""

import json
from dataclasses import replace
from functools import cache
from math import exp

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer, plan_from_json
from meshwright.solver.planner.plan import ask
from meshwright.solver.planner.robust import robust_answer
from meshwright.solver.problem import Problem
from meshwright.solver.search.search import search

REQUEST = {
    "model": {"name": "qwen3-0.6b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 1},
    "workload": {"global_batch_size": 16, "seq_length": 1024},
    "launcher": "megatron-lm",
    "search": {
        "objective": "robust",
        "top_k": 4,
        "certify": "none",
        "allow": ["none"],
        "pin": {"zero_stage": 1, "context_parallel_size": 1},
    },
}


def answer_to(problem: Problem) -> Answer:
    return ask(problem, default_profile(problem.cluster, problem.launcher))


@cache
def answered() -> Answer:
    return answer_to(parse_problem(REQUEST))


def every_layout(problem: Problem) -> Answer:
    """The request ranked by the step, with all of its layouts."""
    options = replace(problem.options, objective="step_time", top_k=10_000, diverse=False)
    asked = replace(problem, options=options)
    return search(asked, default_profile(asked.cluster, asked.launcher))


def test_no_plan_has_a_quantile_below_the_bound() -> None:
    problem = parse_problem(REQUEST)
    robust, every = answered(), every_layout(problem)
    assert robust.objective is not None
    assert robust.objective.bound is not None
    least_s = min(plan.prediction.step_time_high_s for plan in every.plans)
    assert robust.objective.bound <= least_s
    # 1.2816 deviations of a spread that is more than a tenth: the bound says more than that on the step
    assert robust.objective.bound > (robust.bound_step_time_s or 0.0) * exp(0.128)
    assert robust.objective.value == robust.plans[0].prediction.step_time_high_s
    assert robust.status == "feasible"


def test_the_first_plan_has_the_least_quantile_and_the_others_name_what_decides() -> None:
    robust = answered()
    quantiles = [plan.prediction.step_time_high_s for plan in robust.plans]
    assert quantiles == sorted(quantiles)
    assert [plan.rank for plan in robust.plans] == [1, 2, 3, 4]
    assert "deciding" not in robust.plans[0].to_json()
    assert all(plan.deciding for plan in robust.plans[1:])
    assert plan_from_json(json.loads(json.dumps(robust.plans[1].to_json()))) == robust.plans[1]


@cache
def of_experts() -> tuple[Problem, Answer]:
    pin = {"tensor_parallel_size": 1, "context_parallel_size": 1, "micro_batch_size": 1}
    experts = {
        "model": {"name": "mixtral-8x7b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 2},
        "workload": {"global_batch_size": 128, "seq_length": 4096},
        "launcher": "megatron-lm",
        "search": {"objective": "robust", "top_k": 2, "certify": "none", "pin": pin},
    }
    problem = parse_problem(experts)
    return problem, answer_to(problem)


def test_a_plan_that_needs_a_package_has_the_same_rank_in_its_warning_as_in_the_list() -> None:
    _, robust = of_experts()
    *_, last = robust.plans
    assert (last.rank, last.ranked, last.needs) == (3, False, ("HybridEP",))
    assert [text.split()[0] for text in robust.warnings if "needs HybridEP" in text] == ["#3"]


def test_plans_with_switches_that_contradict_each_other_are_compared() -> None:
    problem, robust = of_experts()
    switches = (
        {"overlap_experts": "true"},
        {"moe_dispatcher": "allgather"},
    )  # the second allows no overlap
    plans = [replace(plan, workload=own) for plan, own in zip(robust.plans, switches, strict=False)]
    found = replace(robust, plans=tuple(plans))
    profile = default_profile(problem.cluster, problem.launcher)
    assert {plan.plan_id for plan in robust_answer(problem, profile, lambda _: found).plans} == {
        plan.plan_id for plan in plans
    }


def test_several_batches_are_refused() -> None:
    several = {**REQUEST, "workload": {"global_batch_size": [16, 32], "seq_length": 1024}}
    with pytest.raises(InvalidProblemError, match="quantile"):
        parse_problem(several)
