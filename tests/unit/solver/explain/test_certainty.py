"""Chances and regrets under correlated errors; runs that would settle a ranking."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from meshwright.profiles.profile import Residual, default_profile
from meshwright.solver.answer import Answer
from meshwright.solver.cost.uncertainty import catalog_spreads
from meshwright.solver.explain.certainty import log_covariance, odds_of, runs_to_measure
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_model, a_problem


@cache
def answered() -> tuple[Problem, Answer]:
    model = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)
    problem = a_problem(model=model, cluster=a_cluster(num_nodes=2), batch=128, certify="none")
    return problem, ask(problem, default_profile(problem.cluster, problem.launcher))


def test_chances_add_up_to_one_and_a_seed_gives_them_again() -> None:
    means, covariance = np.log([1.0, 1.02, 1.1]), 0.1**2 * np.eye(3)
    best, regret = odds_of(means, covariance, 7)
    assert best.sum() == pytest.approx(1.0)
    again = odds_of(means, covariance, 7)
    assert (again[0] == best).all()
    assert (again[1] == regret).all()
    assert (odds_of(means, covariance, 8)[0] != best).any()


def test_two_equal_plans_with_separate_errors_have_even_chances_and_this_regret() -> None:
    best, regret = odds_of(np.zeros(2), 0.1**2 * np.eye(2), 0)
    assert best[0] == pytest.approx(0.5, abs=0.03)
    # x1 - x2 ~ N(0, 0.141); regret of 1 is max(x1 - x2, 0): its 90th percentile is 1.2816 * 0.1414 in log
    assert regret[0] == pytest.approx(np.expm1(1.2816 * 0.1 * 2**0.5), rel=0.06)


def test_errors_that_move_together_leave_no_doubt() -> None:
    best, regret = odds_of(np.log([1.0, 1.01]), 0.2**2 * np.ones((2, 2)), 0)
    assert best[0] == 1.0
    assert regret[0] == 0.0
    assert regret[1] == pytest.approx(0.01)


def test_the_spread_of_every_plan_is_that_of_its_prediction_and_likeness_correlates() -> None:
    problem, answer = answered()
    profile = default_profile(problem.cluster, problem.launcher)
    covariance = log_covariance(problem, profile, answer.plans)
    spread = np.sqrt(np.diag(covariance))
    wide = [np.log(p.prediction.step_time_high_s / p.prediction.step_time_s) / 1.2816 for p in answer.plans]
    assert spread == pytest.approx(np.array(wide))
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    correlation = covariance / np.outer(spread, spread)
    assert (correlation > 0.0).all()  # the constants are one cluster's
    assert correlation[np.triu_indices(len(spread), 1)].max() > 0.8


def test_every_plan_of_an_answer_has_its_odds() -> None:
    _, answer = answered()
    odds = [plan.odds for plan in answer.plans]
    assert sum(one.best_probability for one in odds if one) == pytest.approx(1.0)
    assert all(one is not None and one.regret_p90 >= 0.0 for one in odds)
    # processors round differently: an answer has the same bytes on all of them
    assert all(one is not None and one.regret_p90 == round(one.regret_p90, 9) for one in odds)


def test_runs_worth_measuring_are_different_plans_and_one_of_them_gains() -> None:
    problem, answer = answered()
    profile = default_profile(problem.cluster, problem.launcher)
    runs = runs_to_measure(problem, profile, answer.plans, 3)
    assert len({plan.plan_id for plan, _ in runs}) == 3
    assert max(gain for _, gain in runs) > 0.0
    assert len(runs_to_measure(problem, profile, answer.plans, 99)) == len(answer.plans)
    assert runs_to_measure(problem, profile, (), 3) == []


def test_a_residual_that_has_seen_a_run_is_surer_there_and_its_diagonal_is_sigma() -> None:
    # one run at the origin: precision = 1 / (A^2 + B^2 + noise^2) = 1 / (0.01 + 0.01 + 0.0009)
    residual = Residual(
        points=((0.0,),), weights=(0.0,), amplitude=0.1, length=1.0, trend_amplitude=0.1, trend_length=1.0,
        precision=((1 / 0.0209,),), noise=0.03, scale=1.0,
    )  # fmt: skip
    places = np.array([[0.0], [3.0]])
    covariance = residual.covariance(places)
    # at the run: 0.02 - 0.02^2 / 0.0209 = 0.000861, and what another configuration is off by alone
    assert covariance[0, 0] == pytest.approx(0.02 - 0.0004 / 0.0209 + 0.03**2)
    assert covariance[1, 1] > 10 * covariance[0, 0]
    assert np.diag(covariance) == pytest.approx(residual.sigma(places) ** 2)


def test_what_a_whole_cluster_errs_by_leaves_the_chances_of_its_plans_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # plans are 7 % off on their own and 16 % with their cluster: two of them differ by as much as before
    problem, answer = answered()
    differences = []
    for between in (0.0, 0.15):
        spreads = catalog_spreads() | {"between": {"dense": between, "experts": between}}
        monkeypatch.setattr(
            "meshwright.solver.cost.uncertainty.catalog_spreads", lambda known=spreads: known
        )
        profile = default_profile(problem.cluster, problem.launcher)
        configs = [plan.config for plan in answer.plans]
        plans = [
            replace(plan, prediction=found)
            for plan, found in zip(answer.plans, predict_all(problem, profile, configs), strict=True)
        ]
        covariance = log_covariance(problem, profile, plans)
        differences.append(covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1])
    assert differences[1] == pytest.approx(differences[0], rel=0.2)
