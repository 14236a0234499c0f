"""Folders and kept answers: all or nothing, and never somebody else's."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import default_profile
from meshwright.service.cli import saved_plans as kept
from meshwright.service.files import ANSWER_FILE, check_folder, save_folder, write_text
from meshwright.service.jobs.answers import answer_document
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import versions
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
        save_folder(tmp_path / "run", {**FILES, "train.sh/folder": ""}, plan_id="7f3a", force=False)
    assert names(tmp_path) == []


def test_the_folder_of_the_same_plan_is_written_again(tmp_path: Path) -> None:
    for script in ("set -e\n", "set -eu\n"):
        save_folder(tmp_path / "run", {**FILES, "launch.sh": script}, plan_id="7f3a", force=False)
        assert (tmp_path / "run" / "launch.sh").read_text() == script


def test_the_folder_of_another_plan_or_of_anything_else_is_refused_unless_forced(tmp_path: Path) -> None:
    save_folder(tmp_path / "run", FILES, plan_id="7f3a", force=False)
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    for folder in (tmp_path / "run", other):
        with pytest.raises(InvalidProblemError, match=r"contains (other files|files of another plan)"):
            save_folder(folder, FILES, plan_id="b00c", force=False)
    save_folder(other, FILES, plan_id="b00c", force=True)
    assert "thesis.tex" in names(other)


KILLED = """
import os, signal, sys
from pathlib import Path
from meshwright.service.files import save_folder

plain, left = Path.replace, int(sys.argv[2])

def replace(self, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, target)

Path.replace = replace
files = {"answer.json": '{"plans": [{"plan_id": "b00c"}]}', "args.sh": "new", "train.sh": "#!/bin/sh new"}
save_folder(Path(sys.argv[1]), files, plan_id="b00c", force=True)
"""


@pytest.mark.parametrize(("renames", "is_new"), [(0, True), (2, True), (0, False), (1, False), (3, False)])
def test_who_is_killed_while_writing_never_leaves_a_folder_that_looks_whole(
    tmp_path: Path, renames: int, is_new: bool
) -> None:
    folder = tmp_path / "run"
    if not is_new:
        save_folder(folder, {**FILES, "args.sh": "old"}, plan_id="7f3a", force=False)
    done = subprocess.run([sys.executable, "-c", KILLED, folder, str(renames)], check=False)
    assert done.returncode == (0 if renames == 3 else -signal.SIGKILL)
    if is_new:
        assert not folder.exists()
    elif renames < 3:  # nobody takes the mixture for a plan
        with pytest.raises(InvalidProblemError, match=r"contains (other files|files of another plan)"):
            check_folder(folder, force=False)
        kept = (folder / "args.sh").read_text()
        assert kept == ("old" if renames == 0 else "new")
    else:
        assert (folder / "train.sh").read_text() == "#!/bin/sh new"


def test_a_full_disk_leaves_the_old_files_as_they_are(tmp_path: Path) -> None:
    save_folder(tmp_path / "run", {**FILES, "args.sh": "old"}, plan_id="7f3a", force=False)
    code = (
        "import resource, sys; from pathlib import Path; "
        "from meshwright.service.files import save_folder;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100));"
        "files = {'answer.json': '{}', 'args.sh': 'x' * 1000};"
        "save_folder(Path(sys.argv[1]), files, plan_id='', force=True)"
    )
    for folder in (tmp_path / "run", tmp_path / "new"):
        done = subprocess.run([sys.executable, "-c", code, folder], check=False, capture_output=True)
        assert b"File too large" in done.stderr
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == [ANSWER_FILE, "args.sh", "train.sh"]
    assert (tmp_path / "run" / "args.sh").read_text() == "old"
    assert (tmp_path / "run" / ANSWER_FILE).read_text() == FILES[ANSWER_FILE]


def test_links_are_replaced_or_refused_and_what_they_point_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "train.sh").symlink_to(tmp_path / "target")
    (tmp_path / "run").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    save_folder(tmp_path / "run", FILES, plan_id="7f3a", force=True)
    assert (tmp_path / "target").read_text() == "mine"
    assert names(tmp_path / "real") == [ANSWER_FILE, "train.sh"]
    with pytest.raises(InvalidProblemError, match="Not a directory"):
        save_folder(tmp_path / "dangling", FILES, plan_id="7f3a", force=False)
    assert names(tmp_path) == ["dangling", "real", "run", "target"]


def test_the_folder_of_an_infeasible_answer_is_written_again(tmp_path: Path) -> None:
    for _ in range(2):
        save_folder(tmp_path / "run", {ANSWER_FILE: '{"plans": []}'}, plan_id="", force=False)
    save_folder(tmp_path / "run", FILES, plan_id="7f3a", force=False)  # the problem has a plan now
    assert (tmp_path / "run" / "train.sh").exists()


def test_before_a_plan_is_known_only_folders_of_plans_pass(tmp_path: Path) -> None:
    save_folder(tmp_path / "run", FILES, plan_id="7f3a", force=False)
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "new", tmp_path / "run"):
        check_folder(folder, force=False)
    with pytest.raises(InvalidProblemError, match="contains other files\\."):
        check_folder(tmp_path, force=False)
    for folder in (tmp_path / "file", tmp_path / "file" / "new" / "run"):
        with pytest.raises(InvalidProblemError, match="Not a directory"):
            check_folder(folder, force=True)


def test_before_a_search_only_a_folder_of_the_same_question_passes(tmp_path: Path) -> None:
    held = {"plans": [{"plan_id": "7f3a"}], "problem": {"search": {"num_nodes": [1, 2]}}}
    save_folder(tmp_path / "run", {ANSWER_FILE: json.dumps(held)}, plan_id="7f3a", force=False)
    check_folder(tmp_path / "run", force=False, problem={"search": {"num_nodes": (1, 2)}})
    with pytest.raises(InvalidProblemError, match="contains other files\\."):
        check_folder(tmp_path / "run", force=False, problem={"search": {"num_nodes": [1]}})


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


QUESTION = {
    "model": {"name": "llama-3.1-70b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 16},
    "workload": {"global_batch_size": 512, "seq_length": 8192},
}


def keep_plans(*plan_ids: str) -> list[str]:
    problem = parse_problem({**QUESTION, "search": {"seed": len(plan_ids)}})
    plans = [a_plan(rank=rank, plan_id=plan_id) for rank, plan_id in enumerate(plan_ids, start=1)]
    return kept.keep(answer_document(an_answer(*plans), problem), problem)


def test_a_kept_plan_is_found_by_a_prefix_of_its_id_with_its_problem() -> None:
    keep_plans("7f3a90c1d2e4", "b00c00000000")
    found = kept.find_plan("b00c")
    assert (found.plan, found.problem.cluster.num_gpus) == (a_plan(rank=2, plan_id="b00c00000000"), 128)


def test_a_running_plan_is_found_after_the_same_question_got_another_answer(state: Path) -> None:
    keep_plans("7f3a90c1d2e4")
    keep_plans("b00c00000000")  # as with another profile
    keep_plans("b00c00000000")
    assert kept.find_plan("7f3a").plan.plan_id == "7f3a90c1d2e4"
    assert len(list(state.iterdir())) == 2


def test_a_rank_means_no_plan_that_is_older_than_an_answer_of_roles(state: Path) -> None:
    keep_plans("7f3a90c1d2e4")
    assert kept.note_roles() == []
    with pytest.raises(InvalidProblemError, match="--save-dir run/; older plans have ids"):
        kept.find_plan("1")
    assert kept.find_plan("7f3a").plan.plan_id == "7f3a90c1d2e4"
    os.utime(state / "roles.json", (0, 0))  # before that answer
    assert kept.find_plan("1").plan.plan_id == "7f3a90c1d2e4"


def test_the_same_question_gets_its_kept_answer_while_code_and_costs_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = parse_problem(QUESTION)
    profile = default_profile(problem.cluster, problem.priced_as)
    answer = replace(an_answer(a_plan()), versions=versions(profile), certified_by=("exact-dp",))
    document = answer_document(answer, problem)
    kept.keep(document, problem)  # a point of a sweep, without what else would train faster
    kept.keep({**document, "certified_by": []}, problem, whole=True)  # not every row was looked at
    assert kept.known_answer(problem, profile) is None
    kept.keep(document, problem, whole=True)
    assert kept.known_answer(problem, profile) == answer
    slower = replace(profile, constants=replace(profile.constants, fixed_s=1.0))
    assert kept.known_answer(problem, slower) is None
    seeded = replace(problem, options=replace(problem.options, seed=1))
    assert kept.known_answer(seeded, profile) is None
    assumed = replace(
        problem, cluster=replace(problem.cluster, warnings=("h100: assuming SXM with 80 GB",))
    )
    assert kept.known_answer(assumed, profile) is None  # the same request, with a warning of its own
    kept.keep(answer_document(answer, assumed), assumed, whole=True)
    assert kept.known_answer(assumed, profile) == kept.known_answer(problem, profile) == answer
    monkeypatch.setattr(kept, "code_digest", lambda: "another")
    assert kept.known_answer(problem, profile) is None


def test_an_answer_that_cannot_be_kept_is_a_warning(state: Path) -> None:
    state.parent.parent.mkdir()
    state.parent.write_text("a file where the folder should be")
    (warning,) = keep_plans("7f3a90c1d2e4")
    assert "the answer can't be saved (Not a directory): use --save-dir" in warning
    with pytest.raises(InvalidProblemError, match="no saved plan starts with"):
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
    with pytest.raises(InvalidProblemError, match="no saved plan starts with"):
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
    with pytest.raises(InvalidProblemError, match="none of rank 9") as refused:
        kept.plan_of_file(source, 9)
    assert (refused.value.errors[0].allowed, refused.value.errors[0].nearest) == ("1 to 2", "2")


@pytest.mark.parametrize("document", [{}, {"plans": [{"rank": 1}], "problem": {}}, {"plans": 1}])
def test_a_file_that_is_no_answer_is_refused(tmp_path: Path, document: object) -> None:
    source = tmp_path / "result.json"
    source.write_text(json.dumps(document))
    with pytest.raises(InvalidProblemError):
        _ = kept.plan_of_file(source, 1).plan


def test_a_verdict_stays_in_its_folder_whatever_id_a_file_gives_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    plans = [a_plan(plan_id=name) for name in ("7f3a", "../../elsewhere", "a\0b", "\ud800")]
    for plan in plans:
        assert kept.keep_verdict(plan.plan_id, "verified") == []
    assert names(tmp_path) == ["meshwright"]
    assert names(tmp_path / "meshwright") == ["verdicts"]
    assert kept.verdicts_of(plans) == {plan.plan_id: "verified" for plan in plans}
