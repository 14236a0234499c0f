from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fit.evidence import (
    RUNS_OF_CLUSTER,
    TIME,
    Evidence,
    fitted,
    linearised,
    moved,
    solved,
    teaches,
)
from benchmarks.fit.leave_out import LeftOut, blind_profile_of, cluster_of, sigma_of
from meshwright.profiles.profile import Constants, Profile, stack_constants
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.fit import TIME_WIDTHS
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.predict import predict
from meshwright.solver.runs.table import CATALOG_RUNS, Run, read_runs

CLUSTERS = ("mosaic-a100-40gb-fsdp", "mosaic-a100-80gb-fsdp")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [run for run in read_runs(CATALOG_RUNS) if run.cluster in CLUSTERS and run.shape is not None][
        ::4
    ]


def slower(run: Run, constants: Constants) -> Run:
    """The run as a stack with other constants would have done it."""
    one = Observation.of(run)
    assert one is not None
    profile = replace(default_profile_of(one), constants=constants)
    seconds = predict(one.problem, profile, one.configuration).step_time_s
    return replace(run, measured=replace(run.measured, step_time_s=seconds))


def test_a_fit_finds_the_constants_that_made_the_runs(runs: list[Run]) -> None:
    shipped = stack_constants("fsdp")
    true = replace(shipped, gemm=0.85 * shipped.gemm)
    evidence = Evidence.of_times([slower(run, true) for run in runs])
    found = fitted(evidence, shipped, start=shipped, widths=TIME_WIDTHS)
    assert found.gemm == pytest.approx(true.gemm, rel=0.03)
    before, after = linearised(evidence, shipped), linearised(evidence, found)
    assert np.abs(after.left).mean() < 0.1 * np.abs(before.left).mean()


def test_one_step_from_the_optimum_stays_there(runs: list[Run]) -> None:
    # what leaving nothing out must give: the fit itself
    shipped = stack_constants("fsdp")
    evidence = Evidence.of_times(runs)
    found = fitted(evidence, shipped, start=shipped, widths=TIME_WIDTHS, iterations=12)
    again = solved(linearised(evidence, found), shipped, TIME_WIDTHS)
    for name in ("gemm", "attention", "network"):
        assert getattr(again, name) == pytest.approx(getattr(found, name), rel=0.02)


def test_the_profile_of_a_left_out_cluster_does_not_depend_on_its_measurements(runs: list[Run]) -> None:
    own = CLUSTERS[0]
    tenfold = [
        replace(run, measured=replace(run.measured, step_time_s=10.0 * (run.measured.step_time_s or 0.0)))
        if run.cluster == own
        else run
        for run in runs
    ]
    profiles: list[list[Profile]] = []
    for table in (runs, tenfold):
        profile_of = blind_profile_of(Evidence.of_times(table), cluster_of)
        seen = [one for run in runs if (one := Observation.of(run)) is not None]
        profiles.append([profile_of(one) for one in seen if cluster_of(one) == own])
    assert profiles[0] == profiles[1]
    assert profiles[0][0].constants != stack_constants("fsdp")


def test_constants_move_no_further_than_their_bounds() -> None:
    shipped = stack_constants("fsdp")
    after = moved(shipped, TIME.names, np.full(len(TIME.names), 9.0))
    assert after.network == 1.0
    assert after.gemm == pytest.approx(shipped.gemm * np.exp(9.0))


def test_tiny_models_of_continuous_integration_teach_their_own_stack_only() -> None:
    rows = [run for run in read_runs(CATALOG_RUNS) if run.cluster == "megatron-ci-a100"]
    evidence = Evidence.of_times(rows)
    assert set(evidence.stacks) == {"megatron-core"}
    assert len(evidence.runs) == RUNS_OF_CLUSTER < len(rows)
    assert not evidence.shared.runs


def test_tiny_models_teach_what_launches_take_and_nothing_else() -> None:
    rows = [run for run in read_runs(CATALOG_RUNS) if run.cluster == "megatron-ci-h100"]
    linear = linearised(Evidence.of_times(rows), stack_constants("megatron-core"))
    taught = {
        name for name, moves in zip(TIME.names, abs(linear.jacobian).max(axis=0), strict=True) if moves
    }
    assert taught == {"floor_s", "floor_moe", "fixed_s"}


def test_single_nodes_that_take_1_7_s_whatever_they_run_teach_nothing() -> None:
    rows = [run for run in read_runs(CATALOG_RUNS) if run.cluster == "megatron-ci-gb200" and run.shape]
    assert {run.shape.problem.cluster.num_nodes for run in rows if run.shape and teaches(run)} == {2}


def test_sigma_is_that_whose_central_80_percent_hold_80_percent() -> None:
    # errors 0.01 … 1.00: the 80th of 100 is 0.8, and 0.8 / 1.2816 = 0.624
    errors = [
        LeftOut(run_id=str(i), cluster=str(i), stack="x", log_error=(-1) ** i * i / 100)
        for i in range(1, 101)
    ]
    assert sigma_of(errors) == pytest.approx(0.8 / 1.2816, abs=0.01)


def test_a_large_cluster_counts_as_sixty_runs() -> None:
    # 600 runs off by 0.1 weigh 60, 40 others off by 0.5 weigh 40: the 80 % lie at 0.5
    large = [LeftOut(run_id="", cluster="large", stack="x", log_error=0.1)] * 600
    others = [LeftOut(run_id="", cluster=str(i), stack="x", log_error=0.5) for i in range(40)]
    assert sigma_of([*large, *others]) == pytest.approx(0.5 / 1.2816)
