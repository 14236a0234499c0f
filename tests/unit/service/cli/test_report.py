"""``meshwright report`` on an answer in a file."""

import json
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.export import write_export
from meshwright.service.cli.report import report
from meshwright.service.cli.saved_plans import plan_of_file
from meshwright.service.jobs.answers import answer_document
from tests.builders import a_problem, an_infeasible_answer
from tests.served.reports import Page, small_answer


@pytest.fixture
def answer_file(tmp_path: Path) -> Path:
    problem, answer = small_answer()
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(answer_document(answer, problem)))
    return path


def test_the_plan_of_a_rank_stands_first(answer_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    report(source=answer_file, rank=2, what_if="none", out=out)
    page = Page(out.read_text())
    chosen = [one["id"] for one in page.all("article") if "chosen" in one["class"]]
    assert chosen == [f"plan-{small_answer()[1].plans[1].plan_id}"]


def test_a_rank_that_is_not_there_is_refused(answer_file: Path) -> None:
    with pytest.raises(InvalidProblemError, match="3 plans, none of rank 9"):
        report(source=answer_file, rank=9)


def test_the_answer_that_export_writes_has_a_report_of_its_plan(answer_file: Path, tmp_path: Path) -> None:
    chosen = plan_of_file(answer_file, 2)
    write_export(chosen, launcher=None, save_dir=tmp_path / "run", force=False)
    out = tmp_path / "report.html"
    report(source=tmp_path / "run" / "answer.json", what_if="none", out=out)
    assert [one["id"] for one in Page(out.read_text()).all("article")] == [f"plan-{chosen.plan.plan_id}"]


def test_a_plan_without_its_search_says_which_file_has_it(answer_file: Path, tmp_path: Path) -> None:
    document = json.loads(answer_file.read_text())
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps({"plans": document["plans"], "problem": document["problem"]}))
    with pytest.raises(InvalidProblemError, match=r"Export it again, or give the answer\.json"):
        report(source=bare)


def test_a_timeline_is_written_for_perfetto(answer_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    report(source=answer_file, timeline=file)
    assert json.loads(file.read_text())["traceEvents"]


def test_an_answer_without_plans_has_a_report(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(answer_document(an_infeasible_answer(), a_problem())))
    out = tmp_path / "report.html"
    report(source=path, out=out)
    assert "nothing fits" in out.read_text()


def test_a_file_that_cannot_be_written_is_said(answer_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InvalidProblemError, match="--out"):
        report(source=answer_file, what_if="none", out=tmp_path / "file" / "report.html")
