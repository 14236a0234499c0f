"""Folders and kept answers: all or nothing, and never somebody else's."""

import json
from pathlib import Path

import pytest

from profiles.errors import InvalidProblemError
from service.cli import kept
from service.cli.files import ANSWER_FILE, check_folder, save_folder, write_text
from service.request import parse_problem
from tests.builders import a_plan, an_answer

FILES = {ANSWER_FILE: '{"plans": [{"plan_id": "7f3a"}]}', "train.sh": "#!/bin/sh\n"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_holds_exactly_the_files_and_scripts_can_run(tmp_path: Path) -> None:
    save_folder(tmp_path / "run", FILES, plan_id="7f3a", force=False)
    assert names(tmp_path / "run") == [ANSWER_FILE, "train.sh"]
    assert (tmp_path / "run" / "train.sh").stat().st_mode & 0o100
    assert names(tmp_path) == ["run"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match="--save-dir"):
        save_folder(tmp_path / "run", {**FILES, "missing/folder": ""}, plan_id="7f3a", force=False)
    assert names(tmp_path) == []


def test_the_folder_of_the_same_plan_is_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        save_folder(tmp_path / "run", FILES, plan_id="7f3a", force=False)


def test_the_folder_of_another_plan_or_of_anything_else_is_refused_unless_forced(tmp_path: Path) -> None:
    save_folder(tmp_path / "run", FILES, plan_id="7f3a", force=False)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    for folder in (tmp_path / "run", other):
        with pytest.raises(InvalidProblemError, match="holds something else"):
            save_folder(folder, FILES, plan_id="b00c", force=False)
    save_folder(other, FILES, plan_id="b00c", force=True)
    assert "thesis.tex" in names(other)


def test_the_folder_of_an_infeasible_answer_is_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        save_folder(tmp_path / "run", {ANSWER_FILE: '{"plans": []}'}, plan_id="", force=False)


def test_before_a_plan_is_known_only_folders_of_plans_pass(tmp_path: Path) -> None:
    save_folder(tmp_path / "run", FILES, plan_id="7f3a", force=False)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "new", tmp_path / "run"):
        check_folder(folder, force=False)
    for folder in (tmp_path, tmp_path / "file"):
        with pytest.raises(InvalidProblemError, match="holds something else;"):
            check_folder(folder, force=False)


def test_a_folder_whose_name_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    for force in (False, True):
        with pytest.raises(InvalidProblemError, match="File name too long"):
            save_folder(tmp_path / ("x" * 300), FILES, plan_id="7f3a", force=force)


def test_writing_a_file_leaves_no_temporary_one(tmp_path: Path) -> None:
    write_text(tmp_path / "a.json", "{}")
    assert names(tmp_path) == ["a.json"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "meshwright" / "answers"


def keep_plans(*plan_ids: str) -> list[str]:
    request = {
        "model": {"name": "llama-3.1-70b"},
        "cluster": {"name": "dgx-h100", "num_nodes": 16},
        "workload": {"global_batch_size": 512, "seq_length": 8192},
        "search": {"seed": len(plan_ids)},
    }
    problem = parse_problem(request)
    plans = [a_plan(rank=rank, plan_id=plan_id) for rank, plan_id in enumerate(plan_ids, start=1)]
    return kept.keep(kept.answer_document(an_answer(*plans), problem), problem)


def test_a_kept_plan_is_found_by_a_prefix_of_its_id_with_its_problem() -> None:
    keep_plans("7f3a90c1d2e4", "b00c00000000")
    found = kept.find_plan("b00c")
    assert (found.plan, found.problem.cluster.num_gpus) == (a_plan(rank=2, plan_id="b00c00000000"), 128)


def test_an_answer_that_cannot_be_kept_is_a_warning(state: Path) -> None:
    state.parent.parent.mkdir()
    state.parent.write_text("a file where the folder should be")
    (warning,) = keep_plans("7f3a90c1d2e4")
    assert "the answer is not kept (Not a directory): export it with --save-dir" in warning
    with pytest.raises(InvalidProblemError, match="is kept here"):
        kept.find_plan("7f3a")


def test_a_state_folder_that_is_not_absolute_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    # XDG base directory specification: "If an implementation encounters a relative path … ignore it."
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert kept.state_folder() == Path.home() / ".local" / "state" / "meshwright" / "answers"


def test_a_prefix_of_several_plans_names_them() -> None:
    keep_plans("7f3a90c1d2e4", "7f3b00000000")
    with pytest.raises(InvalidProblemError, match="7f3a90c1d2e4, 7f3b00000000"):
        kept.find_plan("7f3")


@pytest.mark.parametrize("plan_id", ["dead", "", "../../etc", '"'])
def test_an_id_that_is_not_kept_is_refused(plan_id: str) -> None:
    keep_plans("7f3a90c1d2e4")
    with pytest.raises(InvalidProblemError, match="is kept here"):
        kept.find_plan(plan_id)


def test_a_damaged_kept_answer_is_passed_over(state: Path) -> None:
    keep_plans("7f3a90c1d2e4")
    for number, text in enumerate(
        ['{"plan_id": "7f3a', '[{"plan_id": "7f3a"}]', '{"plans": [{}], "plan_id": "7f3a"}']
    ):
        (state / f"damaged{number}.json").write_text(text)
    assert kept.find_plan("7f3a").plan.plan_id == "7f3a90c1d2e4"


def test_only_the_newest_answers_are_kept(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_KEPT", 2)
    for count in (1, 2, 3):
        keep_plans(*(f"{count}{index}" for index in range(count)))
    assert len(list(state.iterdir())) == 2


def test_an_answers_file_gives_the_plan_of_a_rank(tmp_path: Path) -> None:
    keep_plans("7f3a90c1d2e4", "b00c00000000")
    source = next((tmp_path / "state" / "meshwright" / "answers").iterdir())
    assert kept.plan_of_file(source, 2).plan.plan_id == "b00c00000000"
    with pytest.raises(InvalidProblemError, match="none of rank 3"):
        kept.plan_of_file(source, 3)


@pytest.mark.parametrize("document", [{}, {"plans": [{"rank": 1}], "problem": {}}, {"plans": 1}])
def test_a_file_that_is_no_answer_is_refused(tmp_path: Path, document: object) -> None:
    source = tmp_path / "result.json"
    source.write_text(json.dumps(document))
    with pytest.raises(InvalidProblemError):
        kept.plan_of_file(source, 1)
