"""``meshwright plan``: sweeps joined as the service joins them, and what was verified of a plan before."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.main import app
from meshwright.service.verify.environments import FOLDER_VARIABLE, MEGATRON_LM
from tests.served.commands import answer_once, without_reasons
from tests.served.job_records import TINY_PROBLEM
from tests.served.reports import Page

TINY = ["--model", "gpt-3-350m", "--cluster", "dgx-h100", "--num-nodes", "1", "--seq-length", "512"]
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
QUICK = ["--certify", "none", "--top-k", "2"]


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are kept here; a question that is no sweep is answered once for all tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    answer_once(monkeypatch)


def plan(*options: str) -> Result:
    return CliRunner().invoke(app, ["plan", *options])


def test_a_sweep_prints_its_points_and_one_ranking() -> None:
    shown = plan(*TINY, *QUICK, "--sweep", "global_batch_size=16,32", "--json")
    assert shown.exit_code == 0, shown.output
    answer = json.loads(shown.stdout)
    assert answer["status"] == "optimal"
    assert [row["values"] for row in answer["points"]] == [
        {"global_batch_size": 16},
        {"global_batch_size": 32},
    ]
    assert [one["rank"] for one in answer["plans"]] == [1, 2]
    best = max(answer["points"], key=lambda row: row["tokens_per_s"])
    assert (answer["plans"][0]["plan_id"], best["rank"]) == (best["plan_id"], 1)


def test_a_terminal_shows_the_plan_to_run_before_its_levers_are_searched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, asked = list[str](), [*TINY, *QUICK, "--global-batch-size", "16"]

    def levers_of(*_: object, **__: object) -> tuple[()]:
        printed.append(capsys.readouterr().out)
        return ()

    monkeypatch.setattr("meshwright.solver.planner.launchers.levers_of", levers_of)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with pytest.raises(SystemExit):
        app(["plan", *asked])
    (before,), after = printed, capsys.readouterr().out
    words = [[*ANSI.sub("", text).split()] for text in (before, after)]
    assert [label in words[0] for label in ("run", "speed", "fits", "sure", "layout")] == [True] * 4 + [
        False
    ]
    assert "layout" in words[1]
    monkeypatch.delenv("TTY_COMPATIBLE")  # a pipe gets the kept answer at once
    with pytest.raises(SystemExit):
        app(["plan", *asked])
    assert capsys.readouterr().out.split() == words[0] + words[1]


SWEPT = {
    "cluster.num_nodes": [1, 2],
    "search.pin.tensor_parallel_size": [1, 8],
    "workload.global_batch_size": [8, 24],
}


@pytest.mark.parametrize("path", SWEPT)
def test_a_point_of_a_sweep_has_the_answer_of_its_own_search(path: str, tmp_path: Path) -> None:
    *parts, name = path.split(".")

    def answer(value: list[int] | int) -> dict[str, Any]:
        problem = json.loads(json.dumps(TINY_PROBLEM))
        inner = problem if isinstance(value, int) else problem.setdefault("sweep", {})
        for part in parts if isinstance(value, int) else ():
            inner = inner.setdefault(part, {})
        inner[name] = value
        file = tmp_path / "problem.json"
        file.write_text(json.dumps(problem))
        with without_reasons():
            return dict(json.loads(plan(str(file), "--json").stdout))

    for row, value in zip(answer(SWEPT[path])["points"], SWEPT[path], strict=True):
        own = answer(value)
        first = own["plans"][0]
        same = ("status", "gap", "bound_step_time_s", "certified_by")
        assert [row[each] for each in same] == [own[each] for each in same]
        assert (row["plan_id"], row["config"]) == (first["plan_id"], first["config"])
        assert row["step_time_s"] == first["prediction"]["step_time_s"]


def test_a_problem_file_may_hold_the_sweep_and_csv_has_a_line_for_each_point(tmp_path: Path) -> None:
    file = tmp_path / "problem.json"
    file.write_text(json.dumps({**TINY_PROBLEM, "sweep": {"tensor_parallel_size": [1, 2]}}))
    shown = plan(str(file), "--csv")
    assert shown.exit_code == 0, shown.output
    rows = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert [row["tensor_parallel_size"] for row in rows] == ["1", "2"]
    assert sorted(row["efficient"] for row in rows) == ["False", "True"]  # one of them is the faster


def test_short_names_and_the_table_for_people() -> None:
    shown = plan(*TINY, *QUICK, "--global-batch-size", "16", "--sweep", "tp=1,2")
    assert shown.exit_code == 0, shown.output
    assert "2 of 2 points have a plan" in shown.stdout


def test_a_sweep_that_is_wrong_is_bad_input() -> None:
    for sweep in ("nodes=1,2", "num_nodes=0", "num_nodes"):
        shown = plan(*TINY, *QUICK, "--global-batch-size", "16", "--sweep", sweep)
        assert isinstance(shown.exception, InvalidProblemError)


def test_what_a_launcher_made_of_a_plan_stands_under_its_table_and_in_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    MEGATRON_LM.python.parent.mkdir(parents=True)
    MEGATRON_LM.python.write_text("#!/bin/sh\necho no fan >&2\n")  # a launcher that refuses
    MEGATRON_LM.python.chmod(0o755)
    (MEGATRON_LM.folder / "ready").write_text(MEGATRON_LM.stamp)
    words = [*TINY, *QUICK, "--global-batch-size", "16"]
    assert "without a GPU" not in plan(*words).stdout
    second = json.loads(plan(*words, "--json").stdout)["plans"][1]["plan_id"]
    assert CliRunner().invoke(app, ["verify", second]).exit_code == 4
    said = "By the launcher's own code, without a GPU: #2 not built."
    assert said in plan(*words).stdout
    out = tmp_path / "report.html"
    shown = CliRunner().invoke(app, ["report", second, "--what-if", "none", "--out", str(out)])
    assert shown.exit_code == 0, shown.output
    assert said in Page(out.read_text()).text


@pytest.mark.parametrize("given", [["accelerate"], ["--from", "answer.json"]])
def test_verify_installs_no_launcher_that_it_would_ignore(given: list[str]) -> None:
    done = CliRunner().invoke(app, ["verify", "--install", "all", *given], standalone_mode=False)
    assert f"{given[0]}: --install only installs: remove the other options" in str(done.exception)


@pytest.mark.parametrize("option", ["--launcher", "--install"])
def test_verify_names_the_launcher_that_was_meant(option: str) -> None:
    line = ["verify", "--from", "none.json", option, "deepspeeed"]
    done = CliRunner().invoke(app, line, standalone_mode=False)
    assert f'{option}: unknown "deepspeeed". Did you mean deepspeed' in str(done.exception)
