import csv
import io
from dataclasses import replace

import pytest

from meshwright.solver.accuracy import (
    PER_RUN_COLUMNS,
    Report,
    Scored,
    error_figures,
    figures_of,
    peak_as_measured,
    spearman,
    validate,
)
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.runs.table import Run
from tests.catalog import catalog_runs

CLUSTER = "mosaic-a100-80gb-fsdp"


@pytest.fixture(scope="module")
def runs() -> tuple[Run, ...]:
    """One cluster's rows, and two of another that are refused."""
    all_runs = catalog_runs()
    others = [run for run in all_runs if run.cluster == "mlperf-l40s"][:2]
    refused = [replace(run, shape=None, refused_reason="peft = x is not modelled") for run in others]
    return (*(run for run in all_runs if run.cluster == CLUSTER), *refused)


@pytest.fixture(scope="module")
def report(runs: tuple[Run, ...]) -> Report:
    return validate(runs)


def test_every_row_is_predicted_or_refused(report: Report) -> None:
    for row in report.runs:
        assert (row.prediction is None) == (row.run.refused_reason is not None)
    assert sum(report.refused.values()) == 2


def test_a_prediction_sees_no_identity_and_no_measurement(runs: tuple[Run, ...], report: Report) -> None:
    blind = [
        replace(
            run,
            run_id="x",
            source="x",
            rank_group=None,
            measured=replace(run.measured, step_time_s=1e6, out_of_memory=True),
        )
        for run in runs
    ]
    again = validate(blind)
    for before, after in zip(report.runs, again.runs, strict=True):
        assert before.prediction == after.prediction


def test_a_step_shorter_than_its_flops_take_is_refused_and_not_scored(
    runs: tuple[Run, ...],
) -> None:
    first, second = runs[:2]
    report = validate([replace(first, measured=replace(first.measured, step_time_s=1e-9)), second])
    (reason,) = report.refused
    assert reason.startswith("step_time_s: 1e-09 s is less than the ")
    assert reason.endswith(" or more")
    assert report.overall.n == 1


def test_calibration_uses_at_most_half_and_does_not_score_them(runs: tuple[Run, ...]) -> None:
    report = validate(runs, calibrate=16)
    used = [row for row in report.runs if row.used_for_calibration]
    assert len(used) == 16
    assert report.clusters[CLUSTER].n == 61 - 16
    half = validate([run for run in runs if run.cluster == CLUSTER][:7], calibrate=16)
    assert sum(row.used_for_calibration for row in half.runs) == 3


def test_a_measurement_that_was_not_chosen_changes_nothing(runs: tuple[Run, ...]) -> None:
    runs = runs[:24]
    before = validate(runs, calibrate=4)
    changed = [
        run if row.used_for_calibration else replace(run, measured=replace(run.measured, step_time_s=9e3))
        for run, row in zip(runs, before.runs, strict=True)
    ]
    after = validate(changed, calibrate=4)
    for one, two in zip(before.runs, after.runs, strict=True):
        assert one.prediction == two.prediction


def test_a_chosen_run_that_ran_out_of_memory_is_a_label_and_another_is_drawn(runs: tuple[Run, ...]) -> None:
    mine = [run for run in runs if run.cluster == CLUSTER][:24]
    first = next(i for i, row in enumerate(validate(mine, calibrate=1).runs) if row.used_for_calibration)
    failed = replace(mine[first].measured, step_time_s=None, out_of_memory=True)
    mine[first] = replace(mine[first], measured=failed)
    used = [i for i, row in enumerate(validate(mine, calibrate=1).runs) if row.used_for_calibration]
    assert first in used
    assert len(used) == 2


def test_calibration_removes_a_constant_factor(runs: tuple[Run, ...]) -> None:
    # all runs three times as slow as they were: the uncalibrated bias is about -67 %
    slow = [
        replace(run, measured=replace(run.measured, step_time_s=3.0 * run.measured.step_time_s))
        for run in runs
        if run.measured.step_time_s
    ]
    time = validate(slow, calibrate=16).clusters[CLUSTER].time
    assert time is not None
    assert abs(time.bias) < 10.0


def test_the_table_has_one_line_a_run_and_the_promised_columns(report: Report) -> None:
    handle = io.StringIO()
    report.write_per_run(handle)
    rows = list(csv.DictReader(io.StringIO(handle.getvalue())))
    assert tuple(rows[0]) == PER_RUN_COLUMNS
    assert len(rows) == len(report.runs)
    predicted = [row for row in rows if not row["refused_reason"]]
    assert all(float(row["predicted_step_time_s"]) > 0 for row in predicted)
    assert all(row["predicted_oom"] in ("0", "1") for row in predicted)


def test_memory_is_predicted_as_the_row_counts_it(report: Report) -> None:
    row = next(row for row in report.runs if row.prediction)
    prediction, one = row.prediction, Observation.of(row.run)
    assert prediction is not None
    assert one is not None
    allocated, reserved, device = (
        peak_as_measured(prediction, replace(one, memory_kind=kind, memory_rank="worst"))
        for kind in ("allocated", "reserved", "device")
    )
    assert allocated < reserved < device
    # half of what the allocator holds idle goes back when memory runs out: the peak has the rest
    stage = prediction.stages[prediction.heaviest_stage].memory_bytes
    assert prediction.peak_memory_bytes == allocated + stage["context"] + stage["reserve"]
    assert device == prediction.peak_memory_bytes + stage["reserve"]


def test_a_first_steps_peak_is_of_passes_without_moments_or_of_the_steps_end(report: Report) -> None:
    row = next(row for row in report.runs if row.prediction)
    assert row.prediction is not None
    assert row.run.shape is not None
    problem = row.run.shape.problem
    told = Observation.of_shape(row.run.shape)
    told = replace(told, memory_kind="first_step", memory_rank="first", framework="nemo")
    terms = {"weights": 2, "gradients": 2, "optimizer": 12, "activations": 0, "workspace": 3, "buffers": 1}
    for activations, dtype, precision, peak in (
        (30, "bf16", "bf16", 2 + 2 + 4 + 30 + 3 + 1),  # the fp32 copies alone beside activations
        (1, "bf16", "bf16", 2 + 2 + 12 + 4 + 1),  # gradients copied to fp32 when activations are gone
        (1, "bf16", "fp8", 2 + 2 + 12 + 4 + 2 + 1),  # and copies in 2 bytes, to be cast to 8 bits
        (1, "fp32", "bf16", 2 + 2 + 12 + 1),  # fp32 gradients are no copies
    ):
        work = replace(problem.workload, precision=precision, framework_options={"gradient_dtype": dtype})
        one = replace(told, problem=replace(problem, workload=work))
        stage = replace(row.prediction.stages[0], memory_bytes=terms | {"activations": activations})
        assert peak_as_measured(replace(row.prediction, stages=(stage,)), one) == peak
    # of torch's shards in fp32, of which AdamW keeps no copy, a first pass has no states at all
    stage = replace(stage, memory_bytes=terms | {"activations": 30})
    one = replace(one, framework="fsdp")
    assert peak_as_measured(replace(row.prediction, stages=(stage,)), one) == 2 + 2 + 30 + 3 + 1


def test_states_that_nobody_says_who_keeps_are_shared_where_they_would_not_fit() -> None:
    silent = next(run for run in catalog_runs() if run.run_id == "VTRN-1441")
    assert silent.shape is not None
    assert (silent.shape.sharding_known, silent.shape.configuration.zero_stage) == (False, 0)
    stated = replace(silent, run_id="stated", shape=replace(silent.shape, sharding_known=True))
    report = validate([silent, stated])
    blind, told = (row.prediction for row in report.runs)
    assert blind is not None
    assert told is not None
    assert told.out_of_memory_probability > 0.5 > blind.out_of_memory_probability
    # 64 replicas: each keeps a 64th of the 16 bytes a weight
    states = [one.stages[0].memory_bytes["optimizer"] for one in (told, blind)]
    assert states[0] == pytest.approx(64 * states[1], rel=1e-6)
    assert blind.step_time_s == told.step_time_s, "times stay those of the stated layout"
    (warning,) = [words for words in report.warnings if "zero_stage" in words]
    assert "Its memory is compared with the optimizer's states sharded" in warning
    assert warning.endswith("(1 of 2 runs)")


def test_names_of_runs_do_not_decide_which_are_chosen(runs: tuple[Run, ...]) -> None:
    mine = [run for run in runs if run.cluster == CLUSTER][:12]
    # last first by name; all twelve configurations differ
    renamed = [replace(run, run_id=f"x{99 - i}", source="x") for i, run in enumerate(mine)]
    before = validate(mine, calibrate=4, choose="random", seed=3)
    after = validate(renamed, calibrate=4, choose="random", seed=3)
    used = [row.used_for_calibration for row in before.runs]
    assert used == [row.used_for_calibration for row in after.runs]
    assert sum(used) == 4


def test_where_no_run_returns_a_time_half_of_them_is_left_to_score(runs: tuple[Run, ...]) -> None:
    mine = [
        replace(run, measured=replace(run.measured, step_time_s=None, peak_memory_bytes=6e10))
        for run in runs
        if run.cluster == CLUSTER
    ][:8]
    report = validate(mine, calibrate=16)
    assert sum(row.used_for_calibration for row in report.runs) == 4


def scored(measured_s: float, predicted_s: float, **changes: object) -> Scored:
    values: dict[str, object] = {
        "cluster": "c", "source": "s", "rank_group": "g", "memory_kind": "allocated",
        "measured_s": measured_s, "predicted_s": predicted_s, "low_s": 0.9 * predicted_s,
        "high_s": 1.1 * predicted_s, "measured_bytes": None, "predicted_bytes": 1.0,
        "out_of_memory": False, "out_of_memory_probability": 0.0, "log_memory_sigma": 0.1,
    }  # fmt: skip
    return Scored(**(values | changes))  # type: ignore[arg-type]


def test_errors_are_relative_to_the_measurement() -> None:
    # +10 %, -20 %, 0 %
    figures = error_figures([11.0, 8.0, 5.0], [10.0, 10.0, 5.0])
    assert figures is not None
    assert figures.mean_absolute == pytest.approx(10.0)
    assert figures.median_absolute == pytest.approx(10.0)
    assert figures.max_absolute == pytest.approx(20.0)
    assert figures.bias == pytest.approx(0.0)


def test_no_runs_have_no_errors() -> None:
    assert error_figures([], []) is None


def test_ranks_agree_disagree_or_do_not_vary() -> None:
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1.0)
    assert spearman([1, 1, 1], [1, 2, 3]) is None


def test_coverage_counts_measurements_inside_the_interval() -> None:
    figures = figures_of([scored(1.0, 1.05), scored(1.0, 1.5)])
    assert figures.coverage == 0.5


def test_the_regret_is_what_the_predicted_best_loses() -> None:
    # predicted best measures 12, the true best 10: 20 %
    figures = figures_of([scored(12.0, 1.0), scored(10.0, 2.0), scored(15.0, 3.0)])
    assert figures.ranking is not None
    assert figures.ranking.top1_regret == pytest.approx(20.0)
    assert figures.ranking.spearman == pytest.approx(0.5)


def test_failed_runs_that_were_called_feasible_are_counted_at_both_limits() -> None:
    runs = [
        scored(1.0, 1.0, out_of_memory=True, out_of_memory_probability=0.9),
        scored(1.0, 1.0, out_of_memory=True, out_of_memory_probability=0.2),
        scored(1.0, 1.0, out_of_memory=True, out_of_memory_probability=0.001),
        scored(1.0, 1.0, out_of_memory_probability=0.3),
    ]
    figures = figures_of(runs).out_of_memory
    assert figures is not None
    assert figures.false_feasible == pytest.approx(2 / 3)
    assert figures.false_feasible_at_1_percent == pytest.approx(1 / 3)
    assert figures.accuracy == pytest.approx(2 / 4)


def test_memory_errors_are_kept_apart_by_kind() -> None:
    runs = [
        scored(1.0, 1.0, measured_bytes=10.0, predicted_bytes=11.0),
        scored(1.0, 1.0, measured_bytes=10.0, predicted_bytes=8.0, memory_kind="device"),
    ]
    memory = figures_of(runs).memory
    assert memory["allocated"].bias == pytest.approx(10.0)
    assert memory["device"].bias == pytest.approx(-20.0)
