"""The file as it grows: written after every task, resumed, never mixed with other measurements."""

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError, ProfileError
from meshwright.profiles.measure.session import open_notebook
from meshwright.profiles.measured.profile import Skipped
from meshwright.profiles.measured.read import read_measured_profile
from tests.measured_profiles import MACHINE, SESSION, SUBJECT, measurement

FORWARD = measurement("qkv", "forward", 1e-3, m=32)


def test_every_task_is_on_disk_at_once_and_held_by_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    first = open_notebook(path, SUBJECT, MACHINE, SESSION)
    assert read_measured_profile(path).measurements == ()
    first.add("gemm/qkv", [FORWARD])
    assert read_measured_profile(path).measurements == (FORWARD,)
    second = open_notebook(path, SUBJECT, MACHINE, replace(SESSION, command="again"))
    assert second.holds("gemm/qkv")
    assert not second.holds("gemm/mlp_up")
    assert [session.command for session in second.profile.sessions] == [SESSION.command, "again"]


def test_a_skipped_task_is_tried_again_and_no_longer_skipped_once_measured(tmp_path: Path) -> None:
    notebook = open_notebook(tmp_path / "p.json", SUBJECT, MACHINE, SESSION)
    notebook.skip("gemm/qkv", "not enough memory")
    notebook.skip("gemm/qkv", "not enough memory")
    assert notebook.profile.skipped == (Skipped(task="gemm/qkv", reason="not enough memory"),)
    assert not notebook.holds("gemm/qkv")
    notebook.add("gemm/qkv", [FORWARD])
    assert list(notebook.profile.skipped) == []


@pytest.mark.parametrize(
    ("subject", "machine", "message"),
    [
        (replace(SUBJECT, seq_length=64), MACHINE, "seq_length: 64 here, 32 there"),
        (replace(SUBJECT, model=replace(SUBJECT.model, num_layers=3)), MACHINE, "of another shape"),
        (SUBJECT, replace(MACHINE, torch="2.12.0"), r"torch: 2\.12\.0 here, 2\.13\.0 there"),
        (SUBJECT, replace(MACHINE, driver=None), r"driver: None here, 570\.86\.15 there"),
    ],
)
def test_other_measurements_are_refused_and_the_file_stays_as_it_was(
    tmp_path: Path, subject: object, machine: object, message: str
) -> None:
    path = tmp_path / "p.json"
    open_notebook(path, SUBJECT, MACHINE, SESSION).add("gemm/qkv", [FORWARD])
    before = path.read_bytes()
    with pytest.raises(InvalidProblemError, match=f"--out: p.json holds other measurements .*{message}"):
        open_notebook(path, subject, machine, SESSION)  # type: ignore[arg-type]
    assert path.read_bytes() == before


def test_a_file_of_something_else_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "thesis.json"
    path.write_text('{"title": "ten years of work"}')
    with pytest.raises(ProfileError, match=r"thesis\.json is no measured profile"):
        open_notebook(path, SUBJECT, MACHINE, SESSION)
    assert path.read_text() == '{"title": "ten years of work"}'


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"p\.json: No such file"):
        open_notebook(tmp_path / "gone" / "p.json", SUBJECT, MACHINE, SESSION)
