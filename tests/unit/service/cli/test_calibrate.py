import csv
import io
import json
import re
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from rich.console import Console

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.calibrate import calibrate_command
from meshwright.service.cli.costs import profile_for
from meshwright.service.report.measured import compared_table
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.solver.calibration import calibrate as solver
from meshwright.solver.calibration.measured import Compared, compared
from meshwright.solver.calibration.priors import TIME_PROCESS
from meshwright.solver.problem import Problem
from meshwright.solver.runs.table import CATALOG_RUNS, read_runs
from tests.builders import a_problem
from tests.served.commands import remembering

CLUSTER = "mosaic-a100-80gb-fsdp"
_CALIBRATE, _COMPARED = remembering(solver.calibrate), remembering(compared)


@pytest.fixture(autouse=True)
def _each_table_is_learnt_from_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.service.cli.calibrate.calibrate", _CALIBRATE)
    monkeypatch.setattr("meshwright.service.cli.calibrate.compared", _COMPARED)


def table(path: Path, *, measured: int, candidates: int = 0) -> Path:
    with CATALOG_RUNS.open(encoding="utf-8") as handle:
        rows = [row for row in csv.DictReader(handle) if row["cluster"] == CLUSTER][: measured + candidates]
    for row in rows[measured:]:
        row["step_time_s"] = row["tokens_per_s_per_gpu"] = ""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def calibrate(path: Path, **options: object) -> None:
    calibrate_command(path, **{"json_output": True, **options})  # type: ignore[arg-type]


def test_what_was_learnt_is_written_and_changes_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cluster.json"
    calibrate(table(tmp_path / "runs.csv", measured=8), out=out)
    printed = json.loads(capsys.readouterr().out)
    assert {"schema_version": 1, **printed["calibration"]} == json.loads(out.read_text(encoding="utf-8"))
    assert printed["calibration"]["num_runs"] == 8
    problem = replace(a_problem(), launcher="torchtitan")
    assert profile_for(problem, out).version != profile_for(problem, None).version
    assert "used for" in capsys.readouterr().err  # a100, used for an H100


def test_rows_without_a_time_are_the_candidates_to_measure_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "runs.csv", measured=6, candidates=5)
    calibrate(path, measure_next=3)
    named = json.loads(capsys.readouterr().out)["measure_next"]
    with path.open(encoding="utf-8") as handle:
        unmeasured = {row["run_id"] for row in csv.DictReader(handle) if not row["step_time_s"]}
    assert len(named) == len(set(named)) == 3
    assert set(named) <= unmeasured


def test_what_to_measure_first_needs_no_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calibrate(table(tmp_path / "runs.csv", measured=0, candidates=9), measure_next=2)
    answer = json.loads(capsys.readouterr().out)
    assert answer["calibration"] is None
    assert len(answer["measure_next"]) == 2


def shaken(path: Path, share: float) -> Path:
    """The table with its step times alternately longer and shorter by a share."""
    with path.open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    for at, row in enumerate(rows):
        row["step_time_s"] = str(float(row["step_time_s"]) * (1.0 + share if at % 2 else 1.0 - share))
        row["tokens_per_s_per_gpu"] = ""
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_every_run_is_listed_as_measured_as_predicted_and_as_predicted_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "runs.csv", measured=6)
    calibrate(path)
    found = json.loads(capsys.readouterr().out)["runs"]
    measured = {run.run_id: run.measured.step_time_s for run in read_runs(path)}
    assert {one["run"]: one["measured_step_time_s"] for one in found} == measured
    off = [
        {name: abs(log(one[name] / one["measured_step_time_s"])) for name in one if name != "run"}
        for one in found
    ]
    assert sum(one["step_time_s"] for one in off) < sum(one["uncalibrated_step_time_s"] for one in off)
    calibrate(path, json_output=False)
    heading = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("run "))
    assert heading.split() == ["run", "measured", "predicted", "off", "by", "predicted", "now", "off", "by"]


def test_a_long_name_takes_several_lines_and_no_figure_is_cut() -> None:
    run = Compared(
        name="llama-3.1-70b on 16 nodes of our new cluster", measured_s=12.3, predicted_s=11.1, now_s=12.2
    )
    console = Console(file=io.StringIO(), width=72)
    console.print(*compared_table([run]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(figure in text for figure in ("12.3 s", "11.1 s", "12.2 s", "predicted now")), text


def test_runs_that_scatter_more_than_the_catalogs_are_reported_with_both_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = table(tmp_path / "runs.csv", measured=8)
    calibrate(path, json_output=False)
    assert "scatter" not in capsys.readouterr().out
    calibrate(shaken(path, 0.2), json_output=False)  # every second run takes 1.5 times its neighbour
    said = " ".join(capsys.readouterr().out.split())
    these, usual = (
        float(said.partition(words)[2].partition("%")[0])
        for words in ("these runs scatter by ", "of one catalogued cluster by ")
    )
    assert these > 2 * usual
    assert usual > 100 * TIME_PROCESS.noise


def test_as_few_runs_as_the_guide_has_are_reported_where_they_scatter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    text = GUIDE.read_text(encoding="utf-8")
    head, *rows = text.partition('title="runs.csv"\n')[2].partition("```")[0].split()
    factors = (1.25, 0.9, 1.3, 0.95)
    timed = [row.rpartition(",") for row in rows[:4]]
    apart = [f"{kept},{float(step_s) * by}" for (kept, _, step_s), by in zip(timed, factors, strict=True)]
    for runs, reported in ((rows, False), (apart, True)):
        path.write_text("\n".join([head, *runs]) + "\n", encoding="utf-8")
        calibrate(path, json_output=False)
        assert ("these runs scatter by" in capsys.readouterr().out) is reported


GUIDE = Path(__file__).parents[4] / "docs" / "howto" / "calibrate.md"


def test_the_runs_of_the_guide_are_open_ones_and_narrow_the_band_of_its_best_plan() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    rows = list(
        csv.DictReader(text.partition('csv title="runs.csv"\n')[2].partition("```")[0].splitlines())
    )
    with CATALOG_RUNS.open(encoding="utf-8") as handle:
        catalog = {row["run_id"]: row for row in csv.DictReader(handle)}
    timed = [row for row in rows if row["step_time_s"]]
    assert len(timed) == 4
    for row in timed:
        assert row == {name: catalog[row["run_id"]][name] for name in row}
    bands = [(float(low), float(high)) for low, high in re.findall(r"([\d.]+) to ([\d.]+) s likely", text)]
    before, after = (high - low for low, high in bands)
    assert after < before / 2


def test_nothing_is_left_to_measure_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match="every row is measured"):
        calibrate(table(tmp_path / "runs.csv", measured=4), measure_next=2)


def test_several_clusters_ask_for_a_name_and_a_wrong_name_for_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    with CATALOG_RUNS.open(encoding="utf-8") as handle:
        last_of = {row["cluster"]: row for row in csv.DictReader(handle)}
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(last_of[CLUSTER]))
        writer.writeheader()
        writer.writerows(last_of[name] for name in (CLUSTER, "zerobubble-a100"))
    with pytest.raises(InvalidProblemError, match="several"):
        calibrate(path)
    with pytest.raises(InvalidProblemError, match=CLUSTER):
        calibrate(path, cluster=CLUSTER + "x")


@pytest.mark.parametrize("content", ["", "{}", "run_id\n1\n", "\udcff"])
def test_a_file_that_is_no_calibration_is_refused_with_its_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    with pytest.raises(InvalidProblemError, match=r"wrong\.json"):
        profile_for(a_problem(), path)


def test_a_missing_calibration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match="No such file"):
        profile_for(a_problem(), tmp_path / "none.json")


@pytest.mark.parametrize("out", ["", ".", "/"])
def test_a_calibration_written_to_no_file_is_refused(tmp_path: Path, out: str) -> None:
    with pytest.raises(InvalidProblemError, match="directory"):
        calibrate(table(tmp_path / "runs.csv", measured=2), out=Path(out))


def test_a_peak_that_no_number_holds_writes_no_nan(tmp_path: Path) -> None:
    path, out = table(tmp_path / "runs.csv", measured=3), tmp_path / "cluster.json"
    with path.open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    rows[0]["peak_memory_gib"] = "1e300"  # bytes: 1e309, an infinity
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    calibrate(path, out=out)
    written = json.loads(out.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert written["num_runs"] == 2
    problem = replace(a_problem(), launcher="torchtitan")
    assert profile_for(problem, out).residual is not None


def test_a_calibration_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match="the input is too big"):
        profile_for(a_problem(), Path("/dev/zero"))


# Profile files that a command is given, alone and together.

FOLDER = Path(__file__).parents[4] / "benchmarks" / "data" / "sailor"
A100, V100 = (FOLDER / f"opt-350m-{gpu}.json" for gpu in ("a100-sxm-40gb", "v100-sxm-16gb"))


def asked(**part: object) -> Problem:
    return parse_problem(
        {
            "model": {"name": "opt-350m"},
            "cluster": {"groups": [{"gpu": "a100-sxm-40gb", "num_nodes": 2}]},
            "workload": {"global_batch_size": 64, "seq_length": 2048},
            "launcher": "none",
            **part,
        }
    )


def test_a_problem_file_names_its_profile_and_keeps_it() -> None:
    problem = asked(profile=str(A100))
    assert parse_problem(problem_to_mapping(problem)) == problem
    layers = profile_for(problem, None).layers
    assert layers is not None
    assert layers.model.name == "opt-350m"
    assert profile_for(asked(), None).layers is None


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([V100], "was measured on v100-sxm-16gb, not on a100-sxm-40gb"),
        ([A100, A100], "several profiles for a100-sxm-40gb: give one"),
    ],
)
def test_profiles_that_do_not_hold_are_refused(paths: list[Path], message: str) -> None:
    with pytest.raises(InvalidProblemError) as raised:
        profile_for(asked(), paths)
    (fault,) = raised.value.errors
    assert (fault.pointer, fault.message) == ("--profile", message)


def test_a_broken_measured_profile_names_file_and_field(tmp_path: Path) -> None:
    raw = json.loads(A100.read_text())
    del raw["subject"]["seq_length"]
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(InvalidProblemError, match=r"broken\.json, /subject/seq_length: is required"):
        profile_for(asked(), path)
