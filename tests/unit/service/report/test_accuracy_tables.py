from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.fit.accuracy_tables import by_group, curves, error_percent, overall, row_by_row, worst
from meshwright.solver.accuracy import Report, validate
from meshwright.solver.runs.table import CATALOG_RUNS, read_runs

CLUSTERS = ("selene-a100-megatron-2021", "jeanzay-v100-32gb", "simumax-b200")


@pytest.fixture(scope="module")
def report() -> Report:
    return validate([run for run in read_runs(CATALOG_RUNS) if run.cluster in CLUSTERS])


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
