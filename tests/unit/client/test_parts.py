"""The small parts of the client: pauses, errors, files; and what it may import."""

import ast
import os
import random
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest

from meshwright_client.client import Client
from meshwright_client.errors import (
    IdempotencyConflictError,
    InvalidRequestError,
    Problem,
    ProblemError,
    ServerError,
    UnexpectedAnswerError,
    error_of,
)
from meshwright_client.files import save
from meshwright_client.transport import pause_before, retry_after_s

PACKAGE = Path(__file__).parents[3] / "client" / "meshwright_client"


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after_s("7") == 7.0
    in_ten_minutes = format_datetime(datetime.now(UTC) + timedelta(seconds=600), usegmt=True)
    assert 300.0 < (retry_after_s(in_ten_minutes) or 0.0) <= 600.0
    assert retry_after_s(format_datetime(datetime.now(UTC) - timedelta(hours=1))) == 0.0
    assert [retry_after_s(text) for text in (None, "", "soon", "-3", "1.5")] == [None] * 5


def test_pauses_double_up_to_ten_seconds_and_differ_between_clients() -> None:
    # 0.25, 0.5, 1, 2, 4, 8, then 10 s at most, and half of that at least
    for failures, most_s in enumerate([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]):
        pauses_s = [pause_before(failures, None) for _ in range(20)]
        assert most_s / 2 <= min(pauses_s) < max(pauses_s) <= most_s
    assert pause_before(0, httpx.Response(503, headers={"Retry-After": "3"})) == 3.0


def test_a_pause_takes_no_draw_from_the_numbers_that_a_training_has_seeded() -> None:
    before = random.getstate()
    pause_before(0, None)
    assert random.getstate() == before


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (422, "invalid_problem", InvalidRequestError),
        (422, "idempotency_conflict", IdempotencyConflictError),
        (418, "teapot", ProblemError),
        (500, "internal_error", ServerError),
    ],
)
def test_every_refusal_has_its_error(status: int, code: str, kind: type[ProblemError]) -> None:
    problem = Problem(type=f"urn:meshwright:problem:{code}", status=status, title="No")
    assert type(error_of(status, problem)) is kind
    assert problem.code == code
    assert str(error_of(status, problem)) == f"{status} No"


@pytest.mark.parametrize("name", ["../run.sh", "/run.sh", "a/../../run.sh", "", "..", "c:\\run.sh"])
def test_a_name_that_leaves_the_folder_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(UnexpectedAnswerError):
        save({"first.txt": "", name: "#!/bin/sh\n"}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_scripts_can_be_run_and_other_files_only_read(tmp_path: Path) -> None:
    script, text = save({"run.sh": "#!/bin/sh\n", "conf/a.json": "{}"}, tmp_path / "run")
    assert script.stat().st_mode & 0o111 == 0o111
    assert text.stat().st_mode & 0o111 == 0
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["conf", "run.sh"]


@pytest.mark.parametrize("url", ["", "planner", "ftp://planner", "http://", "http://a:b"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="the url"):
        Client(url)


@pytest.mark.parametrize("key", ["", "two\nlines", "clé"])
def test_what_is_no_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ValueError, match=r"^the key holds"):
        Client("http://127.0.0.1:1", key)


def test_the_client_needs_the_standard_library_and_httpx_only() -> None:
    found = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {name.split(".")[0] for name in names}
    jobs_own = {"torch", "transformers", "lightning"}  # imported where a running job has them anyway
    assert found - set(sys.stdlib_module_names) - jobs_own == {"httpx", "meshwright_client"}
    assert (PACKAGE / "py.typed").exists()


OLD = {"a/args.sh": "old", "launch.sh": "#!/bin/sh\nold", "plan.json": "old"}
NEW = {"a/args.sh": "new", "launch.sh": "#!/bin/sh\nnew", "b.sh": "new", "plan.json": "new"}


def test_a_save_that_is_killed_at_any_moment_leaves_nothing_that_starts_two_plans_at_once(
    tmp_path: Path,
) -> None:
    """Killed before each of its changes: 2 files are taken away, 4 take their places."""
    for moment in range(7):
        folder = tmp_path / str(moment)
        save(OLD, folder)
        child = os.fork()
        if child == 0:
            killed_at(moment, folder)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) == (moment < 6)
        kept = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.*")}
        kept = {name: text for name, text in kept.items() if not name.rpartition("/")[2].startswith(".")}
        if "launch.sh" in kept:  # all that it reads is of its own plan
            own = "old" if "old" in kept["launch.sh"] else "new"
            assert {text for name, text in kept.items() if not text.startswith("#!")} <= {own}
        if "plan.json" in kept:  # it is whole
            assert kept in (OLD, NEW)
        save(NEW, folder)
        assert not (folder / "launch.sh").read_text().endswith("old")


def killed_at(moment: int, folder: Path) -> None:
    """Save, in a process that kills itself before its so many-th change."""
    left = [moment]

    def counted(change: Callable[..., object]) -> Callable[..., object]:
        def changed(self: Path, *words: object, **named: object) -> object:
            if not self.name.startswith(".") or change is REPLACE:  # else it clears up
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
            return change(self, *words, **named)

        return changed

    Path.unlink, Path.replace = counted(UNLINK), counted(REPLACE)  # type: ignore[method-assign, assignment]
    save(NEW, folder)
    os._exit(0)


UNLINK, REPLACE = Path.unlink, Path.replace


def test_what_another_node_has_taken_away_meanwhile_is_no_fault(tmp_path: Path) -> None:
    save(OLD, tmp_path)
    read = Path.read_bytes

    def read_and_gone(self: Path) -> bytes:
        found = read(self)
        self.unlink()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", read_and_gone)
        save(NEW, tmp_path)
    assert {name: (tmp_path / name).read_text() for name in NEW} == NEW


def test_files_that_stay_the_same_are_never_away(tmp_path: Path) -> None:
    save(OLD, tmp_path)
    before = (tmp_path / "launch.sh").stat().st_mtime_ns
    away: list[Path] = []
    unlink = Path.unlink

    def seen(self: Path, *, missing_ok: bool = False) -> None:
        away.extend([] if self.name.endswith(".tmp") else [self])
        unlink(self, missing_ok=missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", seen)
        save(OLD, tmp_path)
    assert away == []
    assert (tmp_path / "launch.sh").stat().st_mtime_ns >= before
