from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fit.evidence import (
    TIME,
    Evidence,
    Linear,
    fitted,
    linearised,
    moved,
    solved,
    teaches,
)
from benchmarks.fit.leave_out import LeftOut, blind_profile_of, cluster_of, sigma_of
from benchmarks.fit.spreads import (
    CAUSES,
    Errors,
    doubt_of_unidentified_experts,
    fitted_causes,
    launch_noise_of,
    sigma_of_unknown_stack,
    stack_sigmas,
)
from benchmarks.fit.uncertainty import at_bound, level_constants, posterior_log_sds
from meshwright.profiles.profile import Constants, Profile, stack_constants
from meshwright.solver.calibration.calibrate import default_profile_of
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.calibration.priors import TIME_PROCESS, TIME_WIDTHS
from meshwright.solver.configuration import FloatArray
from meshwright.solver.cost.uncertainty import catalog_spreads
from meshwright.solver.predict import predict
from meshwright.solver.runs.table import Run
from tests.catalog import catalog_runs

CLUSTERS = ("mosaic-a100-40gb-fsdp", "mosaic-a100-80gb-fsdp")


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [run for run in catalog_runs() if run.cluster in CLUSTERS and run.shape is not None][::8]


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


def test_without_its_runs_nothing_tells_what_a_stack_launches_in(runs: list[Run]) -> None:
    small = [run for run in catalog_runs() if run.cluster == "vtrain-a100-single"][::20]
    one = Observation.of(small[0])
    assert one is not None
    evidence = Evidence.of_times([*small, *runs])
    assert "floor_s" not in default_profile_of(one).unidentified
    assert "floor_s" in blind_profile_of(evidence, cluster_of)(one).unidentified
    known = blind_profile_of(evidence, cluster_of, known=("floor_s",))(one)
    assert "floor_s" not in known.unidentified
    assert "network" in known.unidentified


def test_constants_move_no_further_than_their_bounds() -> None:
    shipped = stack_constants("fsdp")
    after = moved(shipped, TIME.names, np.full(len(TIME.names), 9.0))
    assert after.network == 1.0
    assert after.gemm == pytest.approx(shipped.gemm * np.exp(9.0))


def test_tests_of_continuous_integration_teach_no_times() -> None:
    rows = [run for run in catalog_runs() if run.cluster == "megatron-ci-a100"]
    assert not any(map(teaches, rows))
    assert not Evidence.of_times(rows).runs


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


RUNS = 400


def errors(own: float, launch: float) -> Errors:
    """Normal errors of one stack in four clusters; half of the runs hang on launches."""
    rng = np.random.default_rng(0)
    causes = np.zeros((RUNS, len(CAUSES)))
    causes[::2, 0] = 1.0
    sigma = np.sqrt(own**2 + (launch * causes[:, 0]) ** 2)
    return Errors(
        log_error=rng.normal(size=RUNS) * sigma,
        causes=causes,
        weights=np.full(RUNS, 0.25),
        clusters=tuple(str(i % 4) for i in range(RUNS)),
        stacks=("one",) * RUNS,
    )


def test_what_launches_add_is_told_from_what_every_run_is_off_by() -> None:
    own, added = fitted_causes(errors(own=0.05, launch=0.5))
    assert own == pytest.approx(0.05, rel=0.3)
    assert added[0] == pytest.approx(0.5, rel=0.3)


def test_twins_say_that_launches_make_runs_noisier() -> None:
    noise, growth = launch_noise_of(catalog_runs())
    assert 0.005 < noise < TIME_PROCESS.noise
    assert float(f"{growth:.1g}") == catalog_spreads()["time"]["launch_noise"]


def test_a_stack_of_four_clusters_covers_eighty_per_cent_of_its_runs() -> None:
    seen = errors(own=0.2, launch=0.0)
    nothing: FloatArray = np.zeros(len(CAUSES))
    own = stack_sigmas(seen, nothing, general=0.05, unknown=0.3)["one"]
    assert own == pytest.approx(0.2, rel=0.1)
    everything = np.ones(RUNS, dtype=bool)
    assert seen.coverage(seen.sigma(own, nothing), everything) == pytest.approx(0.8, abs=0.01)


def test_a_stack_of_one_cluster_stays_as_doubtful_as_an_unknown_one() -> None:
    # sqrt(0.05^2 + (0.3^2 - 0.05^2) / 1) = 0.3; with two clusters sqrt(0.0025 + 0.0875 / 2) = 0.2151
    alone = replace(errors(own=0.01, launch=0.0), clusters=("only",) * RUNS)
    nothing: FloatArray = np.zeros(len(CAUSES))
    assert stack_sigmas(alone, nothing, general=0.05, unknown=0.3)["one"] == pytest.approx(0.3)
    two = replace(alone, clusters=("a", "b") * (RUNS // 2))
    assert stack_sigmas(two, nothing, general=0.05, unknown=0.3)["one"] == pytest.approx(0.2151, abs=1e-4)


def test_a_large_stack_does_not_decide_alone_what_an_unknown_one_is_off_by() -> None:
    # 300 runs of one stack off by 0.01, 100 of another by 0.5: as many of each count
    seen = replace(
        errors(own=0.0, launch=0.0),
        log_error=np.where(np.arange(RUNS) < 300, 0.01, 0.5),
        causes=np.zeros((RUNS, len(CAUSES))),
        weights=np.ones(RUNS),
        stacks=("large",) * 300 + ("small",) * 100,
    )
    assert sigma_of_unknown_stack(seen, np.zeros(len(CAUSES))) == pytest.approx(0.5 / 1.2816, rel=0.01)


def test_unidentified_experts_add_what_the_intervals_of_their_runs_lack() -> None:
    # half of the runs are of experts and are off by 0.5: (0.5 / 1.2816)² is the stack's own 0.3² and theirs
    causes = np.zeros((RUNS, len(CAUSES)))
    causes[::2, CAUSES.index("unidentified_experts")] = 1.0
    seen = Errors(
        log_error=np.where(causes.any(axis=1), 0.5, 0.1),
        causes=causes,
        clusters=("one",) * RUNS,
        weights=np.ones(RUNS),
        stacks=("unlike",) * RUNS,
    )
    found = doubt_of_unidentified_experts(seen, np.zeros(len(CAUSES)), 0.3)
    assert found**2 == pytest.approx((0.5 / 1.2816) ** 2 - 0.3**2, rel=0.01)


QUANTITY = replace(TIME, widths={"gemm": 0.12, "network": 0.35})


def runs_of_gemm(count: int) -> Linear:
    """Runs whose time is all GEMM: one per cent of its level is one per cent of them."""
    return Linear(
        quantity=QUANTITY,
        at=stack_constants(None),
        left=np.zeros(count),
        jacobian=np.tile([-1.0, 0.0], (count, 1)),
        weights=np.ones(count),
    )


def test_four_runs_at_4_percent_noise_narrow_what_they_depend_on_to_2_percent() -> None:
    # precision 4 / 0.04^2 + 1 / 0.12^2 = 2500 + 69.4: sd 0.01973; of the network its prior, 0.35
    sds = posterior_log_sds(runs_of_gemm(4), QUANTITY.widths)
    assert sds == pytest.approx([0.01973, 0.35], abs=1e-5)


def test_what_no_run_depends_on_is_not_identified() -> None:
    found = level_constants(stack_constants(None), runs_of_gemm(4), QUANTITY.widths)
    assert found["gemm"].identified
    assert not found["network"].identified


def test_a_constant_at_its_bound_is_not_identified_however_many_runs_push_it_there() -> None:
    there = replace(stack_constants(None), gather_exposed=1.0)
    assert at_bound("gather_exposed", there.gather_exposed)
    assert not at_bound("gather_exposed", 0.5)
    assert at_bound("reserve", 1.0)
    quantity = replace(TIME, widths={"gather_exposed": 0.4})
    many = Linear(
        quantity=quantity, at=there, left=np.zeros(9), jacobian=np.ones((9, 1)), weights=np.ones(9)
    )
    assert not level_constants(there, many, quantity.widths)["gather_exposed"].identified
