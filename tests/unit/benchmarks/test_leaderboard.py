"""Entries of the leaderboard: read strictly, scored with one vote for each cluster."""

from pathlib import Path

import pytest

from benchmarks.leaderboard import COLUMNS, ENTRIES, EntryError, entries_of, page, read_entry, score
from meshwright.solver.runs.table import Run
from tests.catalog import catalog_runs


@pytest.fixture(scope="module")
def runs() -> dict[str, Run]:
    return {run.run_id: run for run in catalog_runs() if run.measured.step_time_s}


def entry(folder: Path, *rows: str) -> Path:
    path = folder / "entry.csv"
    path.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
    return path


def test_a_cluster_with_many_runs_has_one_vote(runs: dict[str, Run]) -> None:
    large = [name for name, run in runs.items() if run.cluster == "vtrain-a100-multi"][:3]
    small = next(name for name, run in runs.items() if run.cluster == "torchtitan-h200-whitefiber")
    took = {name: runs[name].measured.step_time_s or 0.0 for name in (*large, small)}
    seconds = {**{name: 1.1 * took[name] for name in large}, small: 0.7 * took[small]}
    found = score(seconds, runs, runs)
    assert found is not None
    # three runs 10 % too slow in one cluster, one 30 % too fast in another
    # by cluster (10 + 30) / 2, by run (3 · 10 + 30) / 4
    assert (found.runs, found.clusters) == (4, 2)
    figures = (found.by_cluster, found.by_run, found.median_of_runs, found.bias)
    assert figures == pytest.approx((20.0, 15.0, 10.0, 10.0))


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (["VTRN-9999,1,x,1,,"], 'line 2: run_id "VTRN-9999" is not a timed run of measured_runs.csv'),
        (["a,1,x,1,,", "a,2,x,1,,"], 'line 3: run_id "a" was predicted above'),
        (["a,-1,x,1,,"], 'line 2: predicted_step_time_s "-1" must be a positive number'),
        (["a,inf,x,1,,"], 'line 2: predicted_step_time_s "inf" must be a positive number'),
        (["a,1,x,1,,", "b,1,y,1,,"], 'predictor is "x" and "y"; one entry has one'),
        ([], "the columns must be run_id, "),
    ],
)
def test_a_wrong_entry_is_refused_with_its_line(tmp_path: Path, rows: list[str], fault: str) -> None:
    with pytest.raises(EntryError) as seen:
        read_entry(entry(tmp_path, *rows), {"a": 1.0, "b": 1.0})
    assert fault in str(seen.value)


def test_the_page_has_every_entry_and_every_predictor_that_was_not_run(runs: dict[str, Run]) -> None:
    entries = entries_of(ENTRIES, {name: run.measured.step_time_s or 0.0 for name, run in runs.items()})
    text = page(entries, runs)
    assert entries[0].predictor == "Meshwright"
    assert all(f"* **{one.predictor}** {one.version}" in text for one in entries)
    assert "* **vTrain**: not run." in text
