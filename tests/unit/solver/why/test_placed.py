"""Reasons and odds of placed plans."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import Answer, Plan
from meshwright.solver.configuration import Configuration, StageGroup, settled
from meshwright.solver.explain.certainty import log_covariance, runs_to_measure
from meshwright.solver.explain.reasons import reasons_of
from meshwright.solver.explain.waterfall import placed_all, placed_waterfalls, waterfalls
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict, predicted
from meshwright.solver.problem import Problem
from tests.mixed_clusters import a_group, a_mixed_problem

FAST, SLOW_GROUP = a_group(speed=1.0, slug="fast"), a_group(speed=0.7, slug="slow")


@cache
def answered() -> tuple[Problem, Profile, Answer]:
    pin = {"micro_batch_size": 1, "zero_stage": 0}
    problem = a_mixed_problem(
        (FAST, SLOW_GROUP), num_layers=8, batch=24, top_k=100, certify="none", pin=pin
    )
    profile = default_profile(problem.cluster, "none")
    return problem, profile, ask(problem, profile)


def test_the_waterfall_of_every_plan_adds_up_to_its_step_and_starts_at_each_groups_own_peak() -> None:
    _, _, answer = answered()
    assert any(plan.config.replicas for plan in answer.plans)
    for plan in answer.plans:
        assert plan.why is not None
        fall = plan.why.waterfall_s
        assert sum(fall.values()) == pytest.approx(plan.prediction.step_time_s)
        # MFU is of the mean peak of the GPUs in use: its share of the step is the ideal
        assert fall["ideal"] == pytest.approx(plan.prediction.mfu * plan.prediction.step_time_s)


def test_on_one_group_alone_the_waterfall_is_that_of_a_mesh() -> None:
    problem, profile, _ = answered()
    place = StageGroup(group="fast", num_gpus=0, num_nodes=0.0, tensor_parallel_size=1)
    raw = Configuration(stage_layers=(5, 3), stage_groups=(place, place))
    config = settled(problem.cluster, raw, 24)
    mesh = replace(config, stage_groups=())
    alone = placed_all(problem, profile, [config])[0].classes[0].stages[0].on
    step = predict(alone.problem, alone.profile, mesh).step_time_s
    assert predicted(problem, profile, config).step_time_s == pytest.approx(step)
    right = waterfalls(alone.problem, alone.profile, [mesh], [step])[0]
    assert placed_waterfalls(placed_all(problem, profile, [config]), [step])[0] == pytest.approx(right)


def test_losses_are_the_three_largest_terms_and_offered_changes_are_priced() -> None:
    _, _, answer = answered()
    for plan in answer.plans:
        assert plan.why is not None
        terms = {k: v for k, v in plan.why.waterfall_s.items() if k not in ("ideal", "calibration")}
        largest = sorted(terms.values(), reverse=True)[:3]
        assert [loss.seconds for loss in plan.why.losses] == [value for value in largest if value > 0.0]
        for loss in (loss for loss in plan.why.losses if loss.change is not None):
            assert loss.saves_s is not None
            assert loss.saves_s > 0.1 * loss.seconds * 0.99  # a change takes a tenth off its term
    assert any(loss.change for plan in answer.plans if plan.why for loss in plan.why.losses)


def test_a_gpu_more_on_a_group_is_a_limit_that_binds() -> None:
    _, _, answer = answered()
    named = [limit.name for plan in answer.plans if plan.why for limit in plan.why.limits]
    assert any(name.startswith("GPUs of fast: there are 2") for name in named)
    gains = [[limit.gain_s for limit in plan.why.limits] for plan in answer.plans if plan.why]
    assert all(gain == sorted(gain, reverse=True) for gain in gains)


def test_less_memory_binds_on_the_named_stage_and_group() -> None:
    tight = a_mixed_problem(
        (a_group(memory_gib=6.0, slug="fast"), a_group(speed=0.7, memory_gib=6.0, slug="slow")),
        num_layers=8, batch=24, top_k=10, certify="none",
    )  # fmt: skip
    profile = default_profile(tight.cluster, "none")
    plans = ask(tight, profile).plans
    named = [limit.name for plan in plans if plan.why for limit in plan.why.limits]
    assert any("memory" in name and (" on fast" in name or " on slow" in name) for name in named)


def test_reasons_of_a_mesh_and_a_placed_plan_come_in_their_order() -> None:
    problem, profile, answer = answered()
    placed = answer.plans[0].config
    mesh = Configuration(data_parallel_size=4, num_microbatches=6, stage_layers=(8,))
    steps = [predicted(problem, profile, one).step_time_s for one in (mesh, placed)]
    found = reasons_of(problem, profile, [mesh, placed], steps)
    assert [sum(why.waterfall_s.values()) for why in found] == pytest.approx(steps)


def test_chances_of_placed_plans_add_up_and_alike_plans_err_alike() -> None:
    problem, profile, answer = answered()
    chances = [plan.odds.best_probability for plan in answer.plans if plan.odds]
    assert len(chances) == len(answer.plans)
    assert sum(chances) == pytest.approx(1.0)
    covariance = log_covariance(problem, profile, answer.plans)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    spread = np.sqrt(np.diag(covariance))
    wide = [np.log(p.prediction.step_time_high_s / p.prediction.step_time_s) / 1.2816 for p in answer.plans]
    assert spread == pytest.approx(np.array(wide))


def alone(problem: Problem, profile: Profile, group: str, size: int) -> Plan:
    """One stage on one group, with tensor parallelism and otherwise replicas."""
    place = StageGroup(group=group, num_gpus=0, num_nodes=0.0, tensor_parallel_size=size)
    raw = Configuration(data_parallel_size=2 // size, stage_layers=(8,), stage_groups=(place,))
    config = settled(problem.cluster, raw, 24)
    prediction = predicted(problem, profile, config)
    return Plan(plan_id=f"{group}{size}", rank=1, config=config, prediction=prediction, objective_s=1.0)


def test_plans_on_different_groups_err_apart() -> None:
    problem, profile, _ = answered()
    plans = [alone(problem, profile, group, size) for group in ("fast", "slow") for size in (1, 2)]
    covariance = log_covariance(problem, profile, plans)
    assert covariance[:2, 2:] == pytest.approx(np.zeros((2, 2)))
    assert covariance[0, 1] > 0.0
    assert covariance[2, 3] > 0.0


def test_a_measurement_among_close_placed_plans_is_worth_something() -> None:
    problem, profile, answer = answered()
    worth = runs_to_measure(problem, profile, answer.plans, 2)
    assert worth[0][1] > 1e-4
