"""The front of step time and peak memory against all layouts of a small space."""

from dataclasses import replace

import pytest

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.profiles import profile_with
from meshwright.solver.answer import ParetoFront, ParetoPoint
from meshwright.solver.planner.pareto import STEP, undominated
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem
from tests.builders import a_cluster, a_model, a_plan, a_prediction, a_problem
from tests.problems.asked import answered

SHAPE = {"num_layers": 6, "hidden_size": 2048, "ffn_hidden_size": 8192, "num_attention_heads": 16}


def small(nodes: int = 1, **options: object) -> Problem:
    """6 layers on 8 GPUs."""
    limits: dict[str, object] = {"certify": "none", "pin": {"context_parallel_size": 1}, "top_k": 1}
    return a_problem(
        model=a_model(**SHAPE), cluster=a_cluster(num_nodes=nodes), batch=32, **limits | options
    )


def front(problem: Problem, *, anew: bool = False) -> ParetoFront:
    found = answered(problem, anew=anew).pareto
    assert found is not None
    return found


def point(step_s: float, peak_bytes: int) -> ParetoPoint:
    prediction = a_prediction(step_time_s=step_s, peak_memory_bytes=peak_bytes)
    return ParetoPoint(plan=replace(a_plan(), prediction=prediction), budget_bytes=peak_bytes)


def test_points_that_another_beats_or_equals_are_left_out() -> None:
    points = [point(2.0, 10), point(1.0, 20), point(3.0, 10), point(2.5, 15), point(1.0, 20)]
    found = [
        (p.plan.prediction.step_time_s, p.plan.prediction.peak_memory_bytes) for p in undominated(points)
    ]
    assert found == [(1.0, 20), (2.0, 10)]


def test_the_front_begins_with_the_best_plan_and_trades_time_for_memory() -> None:
    problem = small(pareto=True)
    found, best = front(problem), answered(problem).plans[0]
    assert found.complete
    assert found.points[0].plan.config == best.config
    steps = [point.plan.prediction.step_time_s for point in found.points]
    peaks = [point.plan.prediction.peak_memory_bytes for point in found.points]
    assert steps == sorted(steps)
    assert peaks == sorted(peaks, reverse=True)
    assert len(found.points) > 3


def test_no_layout_that_stays_within_a_points_budget_is_faster() -> None:
    found = front(small(pareto=True))
    everyone = answered(small(top_k=10_000)).plans
    for at in found.points:
        rivals = [p for p in everyone if p.prediction.peak_memory_bytes <= at.budget_bytes]
        assert all(p.prediction.step_time_s >= at.plan.prediction.step_time_s * (1 - 1e-9) for p in rivals)


def test_the_front_ends_where_no_layout_needs_less_memory() -> None:
    found = front(small(pareto=True))
    last = found.points[-1].plan.prediction.peak_memory_bytes
    everyone = answered(small(top_k=10_000)).plans
    assert min(plan.prediction.peak_memory_bytes for plan in everyone) >= last * (1 - STEP) * 0.999


def test_open_numbers_of_gpus_are_a_third_axis() -> None:
    found = front(small(nodes=2, pareto=True, num_nodes=(1, 2)))
    assert {point.plan.config.num_gpus for point in found.points} == {8, 16}


def test_the_front_of_the_fewest_nodes_is_drawn_on_their_gpus() -> None:
    # one of three nodes is enough; the front was drawn on all 24 GPUs, without the plan
    problem = small(nodes=3, pareto=True, gpus="fewest")
    found, best = front(problem), answered(problem).plans[0]
    assert {point.plan.config.num_gpus for point in found.points} == {8}
    assert found.points[0].plan.config == best.config


def test_without_being_asked_for_there_is_no_front() -> None:
    assert answered(small()).pareto is None


def test_a_point_that_the_calibration_makes_incredibly_fast_is_refused_though_the_first_plan_is_not() -> (
    None
):
    """GEMMs at 1 / exp(0.42) = 0.66 of their time, which no run taught.

    16 sequences leave 64 GPUs at 34 % MFU, but one node reaches 74 %: above 1.2 times 55.6 %, the best
    catalogued run of Megatron-Core (DGXC-0188).
    """
    shape = {"num_layers": 8, "hidden_size": 4096, "ffn_hidden_size": 16_384, "num_attention_heads": 32}
    limits = {"certify": "none", "top_k": 1, "num_nodes": (1, 8), "pin": {"context_parallel_size": 1}}
    problem = a_problem(model=a_model(**shape), cluster=a_cluster(num_nodes=8), batch=16, **limits)
    calibration = Calibration(
        cluster="ours", stack="megatron-core", gpu="h100-sxm-80gb", num_runs=2,
        log_offsets=dict.fromkeys(("gemm", "attention"), 0.42), residual=None, memory_residual=None,
        log_memory_sigma=None, runs=("tuesday", "friday"),
    )  # fmt: skip
    profile, _ = profile_with(problem, [calibration])
    assert ask(problem, profile).plans[0].prediction.mfu < 0.4
    with pytest.raises(InvalidProblemError, match="tuesday, friday predicts") as raised:
        ask(replace(problem, options=replace(problem.options, pareto=True)), profile)
    assert raised.value.errors[0].pointer == "/profile"


def test_a_front_of_too_many_rows_does_not_blame_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meshwright.solver.planner.pareto.is_too_large", lambda _: True)
    found = front(small(pareto=True), anew=True)
    assert not found.complete
    assert "time limit" not in found.claim
    assert "too many configurations" in found.claim


def test_a_front_that_ends_with_its_number_of_points_says_that_lighter_layouts_remain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = front(small(pareto=True))
    assert whole.complete
    assert len(whole.points) > 1
    monkeypatch.setattr("meshwright.solver.planner.pareto._MOST_POINTS", 1)
    found = front(small(pareto=True), anew=True)
    assert not found.complete
    assert "layouts with less memory remain" in found.claim
    assert "time limit" not in found.claim
