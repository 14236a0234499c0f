"""Losses and limits of plans: what they name is priced, legal, and really stands in the way."""

import json
from dataclasses import replace
from functools import cache
from itertools import count

import numpy as np
import pytest

from meshwright.profiles.frameworks import with_options
from meshwright.profiles.profile import Profile, default_profile
from meshwright.solver.answer import Answer, Plan, plan_from_json
from meshwright.solver.check import violations
from meshwright.solver.clock import OutOfTime
from meshwright.solver.configuration import Configuration, StageGroup, settled_on_groups
from meshwright.solver.cost.evaluation import evaluate
from meshwright.solver.explain import reasons as explained
from meshwright.solver.explain.alternatives import alternatives_of
from meshwright.solver.explain.certainty import log_covariance, runs_to_measure
from meshwright.solver.explain.reasons import ChangeToTry, reasons_of, ways_of
from meshwright.solver.explain.waterfall import waterfalls
from meshwright.solver.planner.plan import ask
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_gpu, a_model, a_problem
from tests.problems.mixed_clusters import a_group, a_mixed_problem

SMALL = a_model(num_layers=32, hidden_size=4096, ffn_hidden_size=14336, num_attention_heads=32)


@cache
def answered(memory_gib: int = 79) -> tuple[Problem, Answer]:
    gpu = a_gpu(memory_bytes=memory_gib * 2**30)
    problem = a_problem(model=SMALL, cluster=a_cluster(num_nodes=2, gpu=gpu), batch=128, certify="none")
    return problem, ask(problem, default_profile(problem.cluster, problem.launcher))


def test_every_plan_of_an_answer_says_where_its_time_goes() -> None:
    _, answer = answered()
    for plan in answer.plans:
        assert plan.why is not None
        assert sum(plan.why.waterfall_s.values()) == pytest.approx(plan.prediction.step_time_s, rel=1e-9)
        sizes = [loss.seconds for loss in plan.why.losses]
        assert len(sizes) == 3
        assert sizes == sorted(sizes, reverse=True)


def test_reasons_survive_json() -> None:
    _, answer = answered()
    plan = answer.plans[0]
    assert plan_from_json(plan.to_json()) == plan


def test_a_plan_that_the_request_does_not_allow_is_not_ranked_when_it_is_read_again() -> None:
    # needs and ranked were forgotten: saved answers, tune, reports and web pages took it for a ranked plan
    _, answer = answered()
    plan = replace(answer.plans[0], needs=("HybridEP",), ranked=False)
    assert plan_from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_a_change_that_is_offered_is_legal_fits_and_has_the_price_that_is_told() -> None:
    problem, answer = answered()
    profile = default_profile(problem.cluster, problem.launcher)
    configurations = [plan.config for plan in answer.plans]
    told = 0
    for plan, moves in zip(answer.plans, alternatives_of(problem, profile, configurations), strict=True):
        assert plan.why is not None
        for loss in plan.why.losses:
            if loss.change is not None:
                move = next(one for one in moves if one.words == loss.change and one.is_feasible)
                assert list(violations(problem, profile, move.configuration)) == []
                step = predict(problem, profile, move.configuration).step_time_s
                assert loss.step_change_s == pytest.approx(step - plan.prediction.step_time_s)
                assert loss.saves_s is not None
                assert loss.saves_s > 0
                told += 1
    assert told


def test_memory_binds_where_a_faster_change_does_not_fit_and_not_where_there_is_plenty() -> None:
    for gib, binds in ((40, True), (2000, False)):
        _, answer = answered(gib)
        why = answer.plans[0].why
        assert why is not None
        assert any(limit.name.startswith("memory: ") for limit in why.limits) is binds


def test_a_pin_that_alone_stops_a_faster_plan_binds() -> None:
    problem, free = answered(2000)
    pinned = replace(problem, options=replace(problem.options, pin={"tensor_parallel_size": 8}))
    profile = default_profile(pinned.cluster, pinned.launcher)
    best = ask(pinned, profile).plans[0]
    assert best.why is not None
    gains = {limit.name: limit.gain_s for limit in best.why.limits}
    assert gains["pin tensor_parallel_size = 8"] > 0.0
    assert free.plans[0].prediction.step_time_s < best.prediction.step_time_s
    without = reasons_of(problem, profile, [best.config], [best.prediction.step_time_s])[0]
    assert not any(limit.name.startswith("pin ") for limit in without.limits)


def test_reasons_that_the_time_cut_are_missed_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = a_problem(model=SMALL, cluster=a_cluster(num_nodes=2), batch=128, certify="none", top_k=20)
    whole = ask(problem, default_profile(problem.cluster, problem.launcher))
    assert not any("the time limit came" in warning for warning in whole.warnings)
    real, calls = explained.reasons_of, count()

    def first_alone(*args: object) -> object:
        if next(calls):
            raise OutOfTime
        return real(*args)  # type: ignore[arg-type]

    def no_odds(*_: object) -> object:
        raise OutOfTime

    monkeypatch.setattr(explained, "reasons_of", first_alone)
    monkeypatch.setattr("meshwright.solver.planner.plan.with_odds", no_odds)
    cut = ask(problem, default_profile(problem.cluster, problem.launcher))
    assert [plan.config for plan in cut.plans] == [plan.config for plan in whole.plans]
    assert [plan.why for plan in cut.plans] == [plan.why for plan in whole.plans[:16]] + [None] * 4
    assert cut.warnings == (
        *whole.warnings,
        "the time limit came first: 4 of 20 plans have no explanation",
        "the time limit came first: no plan's chance of being fastest was computed",
    )


def test_odds_of_placed_stages_that_the_time_cut_are_missed_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_time(*_: object) -> object:
        raise OutOfTime

    monkeypatch.setattr(explained, "reasons_of", out_of_time)
    monkeypatch.setattr("meshwright.solver.planner.plan.with_odds", out_of_time)
    groups = (a_group(nodes=1), a_group(nodes=1, speed=0.5, slug="slow"))
    problem = replace(a_mixed_problem(groups, batch=16, certify="none", top_k=2), launcher="none")
    answer = ask(problem, default_profile(problem.cluster, "none"))
    assert len(answer.plans) == 2
    assert answer.warnings[-2:] == (
        "the time limit came first: 2 of 2 plans have no explanation",
        "the time limit came first: no plan's chance of being fastest was computed",
    )


@pytest.mark.parametrize(
    ("memory_gib", "pin"), [(79, {}), (40, {}), (79, {"micro_batch_size": 1}), (30, {"recompute": "full"})]
)
def test_what_is_said_to_lower_a_loss_is_legal_and_fits(memory_gib: int, pin: dict[str, object]) -> None:
    # a pin says that the request allows nothing else; on small GPUs fewer recomputed layers do not fit
    pin = {"recompute_granularity" if name == "recompute" else name: value for name, value in pin.items()}
    cluster = a_cluster(num_nodes=2, gpu=a_gpu(memory_bytes=memory_gib * 2**30))
    problem = a_problem(model=SMALL, cluster=cluster, batch=128, certify="none", pin=pin, top_k=3)
    profile = default_profile(cluster, problem.launcher)
    said = 0
    for plan in ask(problem, profile).plans:
        assert plan.why is not None
        for loss in plan.why.losses:
            for words in filter(None, loss.lowered_by.split(", ")):
                assert any(
                    not list(violations(way.problem, profile, way.configuration))
                    for way in ways_in_words(problem, plan.config, loss.term)
                    if way.words == words
                ), (loss.term, words)
                said += 1
    assert said


def ways_in_words(problem: Problem, config: Configuration, term: str) -> list[ChangeToTry]:
    """Everything that the words of a loss may stand for."""
    profile = default_profile(problem.cluster, problem.launcher)
    facts = with_options(profile.framework, problem.workload.framework_options)
    (moves,) = alternatives_of(problem, profile, [config])
    return ways_of(term, problem, facts, config, moves)


# Reasons and odds of placed plans.

FAST, SLOW_GROUP = a_group(speed=1.0, slug="fast"), a_group(speed=0.7, slug="slow")


@cache
def placed_answer() -> tuple[Problem, Profile, Answer]:
    pin = {"micro_batch_size": 1, "zero_stage": 0}
    problem = a_mixed_problem((FAST, SLOW_GROUP), num_layers=8, batch=24, top_k=12, certify="none", pin=pin)
    profile = default_profile(problem.cluster, "none")
    return problem, profile, ask(problem, profile)


def test_the_waterfall_of_every_plan_adds_up_to_its_step_and_starts_at_each_groups_own_peak() -> None:
    _, _, answer = placed_answer()
    assert any(plan.config.replicas for plan in answer.plans)
    for plan in answer.plans:
        assert plan.why is not None
        fall = plan.why.waterfall_s
        assert sum(fall.values()) == pytest.approx(plan.prediction.step_time_s)
        # MFU is of the mean peak of the GPUs in use: its share of the step is the ideal
        assert fall["ideal"] == pytest.approx(plan.prediction.mfu * plan.prediction.step_time_s)


def test_on_one_group_alone_the_waterfall_is_that_of_a_mesh() -> None:
    problem, profile, _ = placed_answer()
    place = StageGroup(group="fast", num_gpus=0, num_nodes=0.0, tensor_parallel_size=1)
    raw = Configuration(stage_layers=(5, 3), stage_groups=(place, place))
    config = settled_on_groups(problem.cluster, raw, 24)
    mesh = replace(config, stage_groups=())
    (placed,) = evaluate(problem, profile, [config])
    alone = placed.stages[0].on
    step = predict(alone.problem, alone.profile, mesh).step_time_s
    assert predict(problem, profile, config).step_time_s == pytest.approx(step)
    even = evaluate(alone.problem, alone.profile, [mesh])
    (right,) = waterfalls(alone.problem, even, [step])
    assert waterfalls(problem, [placed], [step])[0] == pytest.approx(right)


def test_changes_of_stages_that_recompute_unlike_numbers_of_layers_name_a_number_for_each() -> None:
    problem, profile, _ = placed_answer()
    place = StageGroup(group="fast", num_gpus=0, num_nodes=0.0, tensor_parallel_size=1)
    raw = Configuration(
        stage_layers=(5, 3), stage_groups=(place, replace(place, group="slow")),
        recompute_granularity="full", recompute_layers=3, stage_recompute_layers=(3, 1),
    )  # fmt: skip
    config = settled_on_groups(problem.cluster, raw, 24)
    assert (config.stage_recompute_layers, config.recompute_layers) == ((3, 1), 3)
    (found,) = alternatives_of(problem, profile, [config])
    counts = {one.words: one.configuration for one in found}
    assert predict(problem, profile, counts["one more stage on fast"]).step_time_s > 0.0
    # 5 layers of which 3 are recomputed become 3 with 2 and 2 with 1; without a stage 3 + 1 of 8 are.
    assert counts["one more stage on fast"].stage_recompute_layers == (2, 1, 1)
    assert counts["one stage fewer on slow"].stage_recompute_layers == (4,)
    assert counts["a layer from stage 1 to 0"].stage_recompute_layers == (3, 1)
    every = counts["recompute every layer"]
    assert (every.stage_recompute_layers, every.recompute_layers) == ((), 8)


def test_losses_are_the_three_largest_terms_and_offered_changes_are_priced() -> None:
    _, _, answer = placed_answer()
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
    _, _, answer = placed_answer()
    named = [limit.name for plan in answer.plans if plan.why for limit in plan.why.limits]
    assert any(name.startswith("GPUs of fast: only 2") for name in named)
    gains = [[limit.gain_s for limit in plan.why.limits] for plan in answer.plans if plan.why]
    assert all(gain == sorted(gain, reverse=True) for gain in gains)


def test_less_memory_binds_on_the_named_stage_and_group() -> None:
    tight = a_mixed_problem(
        (a_group(memory_gib=6.0, slug="fast"), a_group(speed=0.7, memory_gib=6.0, slug="slow")),
        num_layers=8, batch=8, top_k=5, certify="none",
    )  # fmt: skip
    profile = default_profile(tight.cluster, "none")
    plans = ask(tight, profile).plans
    named = [limit.name for plan in plans if plan.why for limit in plan.why.limits]
    assert any("memory" in name and (" on fast" in name or " on slow" in name) for name in named)


def test_reasons_of_a_mesh_and_a_placed_plan_come_in_their_order() -> None:
    problem, profile, answer = placed_answer()
    placed = answer.plans[0].config
    mesh = Configuration(data_parallel_size=4, num_microbatches=6, stage_layers=(8,))
    steps = [predict(problem, profile, one).step_time_s for one in (mesh, placed)]
    found = reasons_of(problem, profile, [mesh, placed], steps)
    assert [sum(why.waterfall_s.values()) for why in found] == pytest.approx(steps)


def test_chances_of_placed_plans_add_up_and_alike_plans_err_alike() -> None:
    problem, profile, answer = placed_answer()
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
    config = settled_on_groups(problem.cluster, raw, 24)
    prediction = predict(problem, profile, config)
    return Plan(plan_id=f"{group}{size}", rank=1, config=config, prediction=prediction, objective_s=1.0)


def test_plans_on_different_groups_err_apart() -> None:
    problem, profile, _ = placed_answer()
    plans = [alone(problem, profile, group, size) for group in ("fast", "slow") for size in (1, 2)]
    covariance = log_covariance(problem, profile, plans)
    assert covariance[:2, 2:] == pytest.approx(np.zeros((2, 2)))
    assert covariance[0, 1] > 0.0
    assert covariance[2, 3] > 0.0


def test_a_measurement_among_close_placed_plans_is_worth_something() -> None:
    problem, profile, answer = placed_answer()
    worth = runs_to_measure(problem, profile, answer.plans, 2)
    assert worth[0][1] > 1e-4
