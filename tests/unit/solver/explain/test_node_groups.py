"""Why each node group has its stages: what it computes, waits for, and would gain from a node more."""

from dataclasses import replace

import pytest

from meshwright.profiles.profile import default_profile
from meshwright.solver.answer import Plan
from meshwright.solver.clock import Watch
from meshwright.solver.explain.node_groups import group_uses, with_one_more_node
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from tests.problems.asked import searched
from tests.problems.mixed_clusters import a_group, a_mixed_problem

FAST, SLOW = a_group(slug="fast"), a_group(slug="slow", speed=0.4)


def a_problem_on(*groups: object, **options: object) -> Problem:
    return a_mixed_problem(groups, num_layers=12, certify="none", top_k=1, **options)  # type: ignore[arg-type]


def best_of(problem: Problem) -> Plan:
    (plan,) = searched(problem).plans
    return plan


def test_every_layer_is_counted_once_and_computing_and_waiting_are_the_step() -> None:
    problem = a_problem_on(FAST, SLOW, pin={"pipeline_parallel_size": 2, "tensor_parallel_size": 1})
    plan = best_of(problem)
    uses = group_uses(problem, default_profile(problem.cluster, "none"), plan)
    assert [one.group for one in uses] == ["fast", "slow"]
    assert sum(one.layers for one in uses) == 12
    assert sum(one.stages for one in uses) == len(plan.config.stage_layers)
    for one in uses:
        assert one.compute_s + one.waits_s == pytest.approx(plan.prediction.step_time_s)
        assert one.compute_s > 0.0


def test_a_layer_more_costs_what_the_plan_with_that_layer_takes() -> None:
    problem = a_problem_on(FAST, SLOW, pin={"pipeline_parallel_size": 2, "tensor_parallel_size": 1})
    plan, profile = best_of(problem), default_profile(problem.cluster, "none")
    at = [one.group for one in plan.config.stage_groups].index("slow")
    layers = [held + (1 if stage == at else -1) for stage, held in enumerate(plan.config.stage_layers)]
    moved = replace(plan.config, stage_layers=tuple(layers))
    change_s = predict(problem, profile, moved).step_time_s - plan.prediction.step_time_s
    _, slow = group_uses(problem, profile, plan)
    assert slow.layer_more_s == pytest.approx(change_s)
    assert change_s > 0.0


def test_one_more_node_brings_what_the_search_on_that_cluster_finds() -> None:
    problem = a_problem_on(FAST, SLOW)
    plan, profile = best_of(problem), default_profile(problem.cluster, "none")
    now_s, uses = plan.prediction.step_time_s, group_uses(problem, profile, plan)
    fast, slow = with_one_more_node(problem, profile, now_s, uses, Watch(time_limit_s=60.0))
    for found, groups in (
        (fast, (a_group(slug="fast", nodes=2), SLOW)),
        (slow, (FAST, a_group(slug="slow", speed=0.4, nodes=2))),
    ):
        step_s = best_of(a_problem_on(*groups)).prediction.step_time_s
        assert found.one_more_node is not None
        assert found.one_more_node.step_time_s == pytest.approx(step_s)
        assert found.one_more_node.saves_s == pytest.approx(max(now_s - step_s, 0.0))
    assert fast.one_more_node is not None
    assert slow.one_more_node is not None
    assert fast.one_more_node.saves_s > slow.one_more_node.saves_s >= 0.0


def test_without_time_no_group_is_searched() -> None:
    problem = a_problem_on(FAST, SLOW)
    plan, profile = best_of(problem), default_profile(problem.cluster, "none")
    uses = group_uses(problem, profile, plan)
    found = with_one_more_node(problem, profile, 1.0, uses, Watch(time_limit_s=0.0))
    assert found == uses
    assert all(one.one_more_node is None for one in found)


def test_a_group_that_a_constraint_leaves_idle_has_no_stage() -> None:
    problem = a_problem_on(FAST, SLOW, constraints=("stages('slow') == 0",))
    _, slow = group_uses(problem, default_profile(problem.cluster, "none"), best_of(problem))
    assert (slow.stages, slow.layers, slow.num_gpus_used, slow.compute_s) == (0, 0, 0, 0.0)
