"""The small parts of the client: frames, pauses, errors, files; and what it may import."""

import ast
import sys
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
from meshwright_client.events import Frame, frames
from meshwright_client.files import save
from meshwright_client.transport import pause_before, retry_after_s

PACKAGE = Path(__file__).parents[3] / "client" / "meshwright_client"


def test_frames_are_whole_events_and_signs_of_life() -> None:
    lines = [
        "retry: 1000",
        "",
        ": alive",
        "",
        "event: queued",
        "data: {",
        "data:}",
        "id: 7",
        "",
        "data: half",
    ]
    assert list(frames(lines)) == [Frame(), Frame(id="7", data="{\n}")]


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after_s("7") == 7.0
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 58.0 < (retry_after_s(in_a_minute) or 0.0) <= 60.0
    assert retry_after_s(format_datetime(datetime.now(UTC) - timedelta(hours=1))) == 0.0
    assert [retry_after_s(text) for text in (None, "", "soon", "-3", "1.5")] == [None] * 5


def test_pauses_double_up_to_ten_seconds_and_differ_between_clients() -> None:
    # 0.25, 0.5, 1, 2, 4, 8, then 10 s at most, and half of that at least
    for failures, most_s in enumerate([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]):
        pauses_s = [pause_before(failures, None) for _ in range(20)]
        assert most_s / 2 <= min(pauses_s) < max(pauses_s) <= most_s
    assert pause_before(0, httpx.Response(503, headers={"Retry-After": "3"})) == 3.0


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
