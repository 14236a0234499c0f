import resource
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist, fmean

import pytest

from benchmarks.fit.accuracy_moved import moved
from benchmarks.fit.accuracy_order import Order, orders_of, regret_gained
from benchmarks.fit.accuracy_spread import (
    coverage,
    errors_by,
    interval_reliability,
    memory_reliability,
    memory_risks,
    peaks_by,
)
from benchmarks.fit.accuracy_tables import by_group, curves, error_percent, overall, row_by_row, worst
from benchmarks.fit.accuracy_trainers import DOCUMENT, document, read_trainer_runs
from meshwright.solver.accuracy import Report, Scored, validate
from tests.catalog import catalog_runs
from tests.processes.pace import pace

CLUSTERS = ("selene-a100-megatron-2021", "jeanzay-v100-32gb", "simumax-b200")


@pytest.fixture(scope="module")
def report() -> Report:
    return validate([run for run in catalog_runs() if run.cluster in CLUSTERS])


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_every_line_of_a_table_has_the_cells_of_its_head(report: Report) -> None:
    tables = (
        overall({"one": report, "two": report})[2:-1],
        by_group("cluster", report.clusters, report.clusters, {})[2:-1],
        curves({"c": {"random": [1.0, None]}}, (2, 4))[:-1],
        worst(report)[:-1],
    )
    for table in tables:
        assert len(table) > 2
        assert len({len(cells(line)) for line in table}) == 1


def test_the_worst_rows_come_first_and_no_cluster_fills_the_list(report: Report) -> None:
    lines = [cells(line) for line in worst(report)[2:-1]]
    errors = [abs(int(line[6])) for line in lines]
    assert errors == sorted(errors, reverse=True)
    assert Counter(line[1] for line in lines) == dict.fromkeys(CLUSTERS, 3)
    assert all(line[7] for line in lines)


def test_a_run_that_was_calibrated_on_has_no_error(report: Report) -> None:
    row = next(row for row in report.runs if row.prediction and row.run.measured.step_time_s)
    assert error_percent(row) is not None
    assert error_percent(replace(row, used_for_calibration=True)) is None


def test_a_gate_is_shown_row_by_row_with_measured_predicted_and_error(report: Report) -> None:
    source = "Megatron-LM SC21 Table 1 (Narayanan 2021)"
    lines = [cells(line) for line in row_by_row(report, source)[2:-1]]
    assert len(lines) == 10
    for line in lines:
        measured, predicted, error = (float(cell) for cell in line[6:])
        # three digits of seconds and one of per cent are printed
        assert error == pytest.approx(100.0 * (predicted / measured - 1.0), abs=0.1)
    assert lines[0][:4] == ["MISC-0043", "megatron-gpt-1.7B", "32", "1 · 1 · 1 · 32"]


# 99 runs at the percentiles of a normal distribution with sigma 0.1 of the log
QUANTILES = [NormalDist().inv_cdf(i / 100.0) for i in range(1, 100)]
BAND = 1.2815515655


def a_run(**changes: object) -> Scored:
    values: dict[str, object] = {
        "cluster": "here", "source": "table", "rank_group": None, "memory_kind": "unknown",
        "measured_s": 1.0, "predicted_s": 1.0, "low_s": 0.9, "high_s": 1.0 / 0.9, "measured_bytes": None,
        "predicted_bytes": 1.0, "out_of_memory": None, "out_of_memory_probability": 0.0,
        "log_memory_sigma": 0.1,
    }  # fmt: skip
    return Scored(**(values | changes))  # type: ignore[arg-type]


def off_by(z: float, **changes: object) -> Scored:
    """A run ``z`` sigmas of 0.1 from its prediction."""
    band = 2.718281828 ** (BAND * 0.1)
    return a_run(measured_s=2.718281828 ** (0.1 * z), low_s=1.0 / band, high_s=band, **changes)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_intervals_of_the_right_width_hold_what_they_promise(level: float) -> None:
    assert coverage([off_by(z) for z in QUANTILES], level) == pytest.approx(level, abs=0.02)


def test_a_large_cluster_counts_as_sixty_runs() -> None:
    # 600 runs outside weigh 60, 20 others inside weigh 20
    large = [off_by(3.0, cluster="large")] * 600
    assert coverage([*large, *[off_by(0.0)] * 20]) == pytest.approx(20 / 80)


def test_reliability_is_shown_for_every_run_and_for_capped_clusters() -> None:
    lines = interval_reliability({"blind": [off_by(3.0, cluster="large")] * 600 + [off_by(0.0)] * 200})
    assert [cells(line)[2] for line in lines[2:-1]] == ["25%", "50%"]


def test_groups_show_their_runs_error_bias_and_coverage() -> None:
    slow = [off_by(0.0), a_run(measured_s=0.5), a_run(measured_s=0.8)]  # errors 0, +100 and +25 %
    lines = errors_by("stack", {"one way": {"a": slow, "b": [a_run(measured_s=None)]}})
    assert cells(lines[2]) == ["a", "3", "41.7", "+25.0", "33%"]
    assert cells(lines[3]) == ["b", "0", "–", "–", "–"]
    # peaks 0, 12 and 15 % under what was predicted; 80 % lie within exp(1.28 x .1) - 1 = 13.7 % of it
    peaks = [a_run(predicted_bytes=ratio, measured_bytes=1.0) for ratio in (1.0, 1.12, 1.15)]
    lines = peaks_by("stack", {"one way": {"a": [*peaks, a_run()], "b": [a_run()]}})
    assert [cells(line) for line in lines[2:-1]] == [["a", "3", "9.0", "+12.0", "67%"]]


def test_only_sources_that_tell_of_failures_say_how_likely_they_are() -> None:
    runs = [
        a_run(out_of_memory=True, out_of_memory_probability=1.0),
        a_run(out_of_memory=False, out_of_memory_probability=0.3),
        a_run(out_of_memory=False, out_of_memory_probability=0.3, source="only what ran"),
    ]
    bins = {(low, high): len(mine) for low, high, mine in memory_risks(runs)}
    assert bins == {
        (0.0, 0.01): 0,
        (0.01, 0.05): 0,
        (0.05, 0.2): 0,
        (0.2, 0.5): 1,
        (0.5, 0.9): 0,
        (0.9, 1.0): 1,
    }
    lines = memory_reliability({"way": runs})
    assert [cells(line) for line in lines[2:-1]] == [
        ["way", "20% – 50%", "1", "0.3", "0", "2", "0.6", "0"],
        ["way", "90% – 100%", "1", "1.0", "1", "1", "1.0", "1"],
    ]


# The accuracy benchmark's options.

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "benchmarks.accuracy"]


def test_asking_for_help_runs_no_benchmark_and_an_unknown_option_is_refused() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    shown = subprocess.run([*COMMAND, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--quick" in shown.stdout
    spent_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert spent_s < 10.0 * pace()  # all runs: over 100 CPU s
    wrong = subprocess.run([*COMMAND, "--quik"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "--quik" in wrong.stderr


def test_tables_under_one_heading_are_told_apart_by_the_words_before_them() -> None:
    """Step times and memory of one software stack are compared with their own."""
    page = (
        "## How sure\n\nBy software stack:\n\n| stack | mean % |\n|---|---|\n| fsdp | 4.6 |\n\n"
        "Peak memory:\n\n| stack | mean % |\n|---|---|\n| fsdp | {memory} |\n"
    )
    count, _, *lines = moved(page.format(memory=3.2), page.format(memory=9.2))
    assert count == "1 of 2 figures on both pages moved by 0.3 or more."
    assert lines[2] == "| How sure; Peak memory | fsdp | mean % | 3.2 | 9.2 | +6.00 |"


def an_order(*changes: tuple[float, float], usual: tuple[float, float] = (0.0, 0.0)) -> Order:
    """A cluster with groups that lost so much of their correlation and gained so much regret."""
    return Order(
        cluster="c", runs=9, errors=(5.0, 4.0), groups=len(changes), correlations=(0.9, 0.9),
        regrets=(1.0, 1.0), changes=changes, usual=usual,
    )  # fmt: skip


def test_an_order_is_lost_where_its_groups_agree_and_not_by_one_near_tie() -> None:
    # 4 on average, sure to .5 and to 4: more than one point beyond that, and not
    assert an_order(*[(0.0, 3.0), (0.0, 4.0), (0.0, 5.0)] * 2).costs
    assert not an_order((0.0, 16.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)).costs
    assert an_order((0.05, 0.0), (0.05, 0.0)).costs
    assert not an_order((0.10, 0.0), (0.0, 0.0)).costs
    assert not an_order().costs


def test_of_a_single_group_no_more_is_asked_than_other_groups_vary_by() -> None:
    assert an_order((0.0, 3.0), usual=(0.05, 1.0)).costs
    assert not an_order((0.0, 3.0), usual=(0.05, 2.5)).costs


def test_calibration_may_not_cost_the_mean_of_clusters_any_regret() -> None:
    better, worse = (replace(an_order((0.0, 0.0)), regrets=pair) for pair in ((5.0, 3.0), (1.0, 2.5)))
    assert regret_gained([better, worse], "2 runs") == []
    (said,) = regret_gained([worse, worse, better], "2 runs")
    assert said == "calibration on 2 runs takes the mean regret of clusters 2.3 to 2.7 %"


def test_a_group_that_is_predicted_alike_has_no_order() -> None:
    runs = [run for run in catalog_runs() if run.cluster == "bridge-h100-skills"]
    (alike,) = orders_of(validate(runs), validate(runs, calibrate=1))
    # five runs of Moonlight with recomputation here and there: predictions differ by .2 %
    assert alike.groups == 0
    assert not alike.costs


def test_the_page_of_fine_tuning_has_every_run_and_peaks_within_five_percent_on_average() -> None:
    head, runs = read_trainer_runs()
    text = document(head, runs)
    assert text == DOCUMENT.read_text(encoding="utf-8")
    assert len(runs) == 6 + 20
    assert all(f"| {one.run.name} |" in text for one in runs)
    assert fmean(abs(one.memory_error) for one in runs) < 5.0
