import json
from dataclasses import replace
from math import exp, log
from typing import Any

import numpy as np
import pytest

from meshwright.profiles.calibration import UPPER_BOUNDS, Calibration, bounded, read_calibration
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Residual, default_profile
from meshwright.solver.configuration import Columns
from meshwright.solver.cost.price import price
from meshwright.solver.cost.residuals import NUM_FEATURES, features
from tests.builders import a_cluster, a_configuration, a_gpu, a_problem

RESIDUAL = Residual(
    points=((0.0,) * NUM_FEATURES,), weights=(1.0,), precision=((1.0,),), amplitude=0.1, length=1e3,
    trend_amplitude=0.0, trend_length=1.0, noise=0.1, scale=1.0,
)  # fmt: skip
CALIBRATION = Calibration(
    cluster="ours", stack="megatron-core", gpu="h100-sxm-80gb", num_runs=5,
    log_offsets={"gemm": log(0.9), "network": log(10.0)}, residual=RESIDUAL, memory_residual=None,
    log_memory_sigma=0.05,
)  # fmt: skip
PROFILE = default_profile(a_cluster(), "megatron-lm")


def test_offsets_multiply_the_constants_of_the_stack_up_to_their_bounds() -> None:
    after = CALIBRATION.applied(PROFILE)
    assert after.constants.gemm == pytest.approx(0.9 * PROFILE.constants.gemm)
    assert after.constants.network == UPPER_BOUNDS["network"] == 1.0
    assert after.log_memory_sigma == 0.05
    assert "calibrated on 5 runs" in after.title


def test_bounds_hold_on_both_sides() -> None:
    assert bounded("network", 2.0) == 1.0
    assert bounded("reserve", 0.9) == 1.0
    assert bounded("gemm", 2.0) == 2.0


def test_the_residual_multiplies_time_by_one_factor_a_row() -> None:
    problem, columns = a_problem(), Columns.of([a_configuration(), a_configuration(micro_batch_size=2)])
    plain = price(problem, columns, PROFILE)
    after = price(problem, columns, replace(PROFILE, residual=RESIDUAL))
    factor = np.exp(RESIDUAL.log_factor(features(problem, columns)))
    assert factor[0] > 1.0
    assert after.straggler == pytest.approx(plain.straggler * factor)
    assert after.fixed_s == pytest.approx(plain.fixed_s * factor)
    assert np.array_equal(after.forward_s, plain.forward_s)
    assert np.array_equal(after.activation_bytes, plain.activation_bytes)


def test_the_memory_residual_multiplies_every_byte() -> None:
    problem, columns = a_problem(), Columns.of([a_configuration()])
    plain = price(problem, columns, PROFILE)
    after = price(problem, columns, replace(PROFILE, memory_residual=RESIDUAL))
    factor = np.exp(RESIDUAL.log_factor(features(problem, columns)))
    for name in ("weights_bytes", "activation_bytes", "context_bytes", "head_workspace_bytes"):
        assert getattr(after, name) == pytest.approx(getattr(plain, name) * factor[0])
    assert np.array_equal(after.straggler, plain.straggler)


def test_another_gpu_is_told_and_another_stack_is_refused() -> None:
    slow = a_gpu(slug="a100-sxm-80gb", architecture="ampere")
    assert CALIBRATION.mismatches(PROFILE) == ()
    other = default_profile(a_cluster(gpu=slow), "torchtitan")
    assert CALIBRATION.mismatches(other) == ("calibrated on h100-sxm-80gb, used for a100-sxm-80gb",)
    CALIBRATION.require_stack(PROFILE)
    with pytest.raises(InvalidProblemError, match="stack megatron-core, but you asked for fsdp"):
        CALIBRATION.require_stack(other)


def test_the_features_of_this_version_are_counted() -> None:
    assert features(a_problem(), Columns.of([a_configuration()])).shape == (1, NUM_FEATURES)
    assert CALIBRATION.fits_features(NUM_FEATURES)
    assert not CALIBRATION.fits_features(NUM_FEATURES + 1)


def test_runs_that_pad_experts_to_a_capacity_tell_little_of_runs_that_drop_no_token() -> None:
    # 3 switches of 0.7 apart; of what is left over near a run (length 1.4) exp(-(2.1 / 1.4)^2 / 2) = 32 %
    # is carried over
    problem, columns = a_problem(), Columns.of([a_configuration()])
    workload = replace(problem.workload, framework_options={"moe_capacity_factor": 1.5})
    padded = features(replace(problem, workload=workload), columns)
    apart = float(((padded - features(problem, columns)) ** 2).sum())
    assert exp(-apart / 1.4**2 / 2) == pytest.approx(exp(-((2.1 / 1.4) ** 2) / 2))


@pytest.mark.parametrize(
    ("other", "doublings"),
    [
        ({"tensor_parallel_size": 4, "data_parallel_size": 8}, 2 + 1),
        ({"pipeline_parallel_size": 2, "data_parallel_size": 8}, 1 + 1),
        ({"pipeline_parallel_size": 1, "data_parallel_size": 2}, 2 + 1 + 3),  # 2 nodes of 16
        ({"pipeline_parallel_size": 1, "data_parallel_size": 1}, 2 + 2 + 4 + 1),  # a single node
    ],
)
def test_tensor_ranks_set_runs_twice_as_far_apart_as_other_sizes_and_one_node_does_like_a_size(
    other: dict[str, int], doublings: int
) -> None:
    # tensor 8, pipeline 4 and data 4, on 16 nodes
    here, there = (
        features(a_problem(), Columns.of([a_configuration(**changes)]))[0] for changes in ({}, other)
    )
    assert np.abs(here - there).sum() / log(2.0) == pytest.approx(doublings, abs=0.05)


def document() -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(json.dumps(CALIBRATION.to_json()))
    return raw


def test_a_calibration_is_read_as_it_was_written() -> None:
    assert read_calibration(document()) == CALIBRATION


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("format", "another/1"), ("log_offsets", {"gemm": "fast"}), ("log_offsets", {"colour": 0.1}),
        ("log_offsets", [1]), ("residual", {}), ("num_runs", None), ("log_offsets", {"gemm": 99.0}),
        ("log_memory_sigma", "wide"),
        ("log_offsets", {"gemm": float("nan")}), ("log_offsets", {"gemm": 10**400}),
        ("log_offsets", {"gemm": True}), ("num_runs", float("inf")), ("num_runs", -1),
        ("log_memory_sigma", -0.1), ("log_memory_sigma", 1e300),
        ("gpu", "a" * 100_000), ("stack", "\x1b[31m"), ("log_sds", {"gemm": -1.0}), ("log_sds", [1]),
    ],
)  # fmt: skip
def test_a_broken_calibration_is_refused(part: str, value: object) -> None:
    raw = document() | {part: value}
    with pytest.raises(InvalidProblemError):
        read_calibration(raw)


@pytest.mark.parametrize("raw", [{}, {"format": None}, {"format": document()["format"]}])
def test_what_is_no_calibration_at_all_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(InvalidProblemError):
        read_calibration(raw)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("weights", [1.0, 2.0]),
        ("points", []),
        ("length", 0.0),
        ("noise", -1.0),
        ("precision", [[1.0, 2.0]]),
        ("weights", [1e300]),
        ("amplitude", 1e200),
        ("scale", 1e300),
        ("length", 1e-300),
        ("points", [[1e300] * 18]),
    ],
)
def test_a_residual_that_means_nothing_is_refused(part: str, value: object) -> None:
    raw = document()
    raw["residual"][part] = value
    with pytest.raises(InvalidProblemError):
        read_calibration(raw)
