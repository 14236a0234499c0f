"""The first accuracy gates: well-known tables, uncalibrated."""

import pytest

from meshwright.solver.accuracy import Report, validate
from meshwright.solver.runs.table import CATALOG_RUNS, read_runs

GATES = ("Korthikanti 2022 Table 5", "Megatron-LM SC21 Table 1 (Narayanan 2021)")


@pytest.fixture(scope="module")
def report() -> Report:
    return validate([run for run in read_runs(CATALOG_RUNS) if run.source in GATES])


@pytest.mark.parametrize(("source", "rows"), [(GATES[0], 8), (GATES[1], 10)])
def test_the_mean_error_stays_within_12_percent_uncalibrated(
    report: Report, source: str, rows: int
) -> None:
    time = report.sources[source].time
    assert time is not None
    assert time.n == rows
    assert time.mean_absolute < 12.0
