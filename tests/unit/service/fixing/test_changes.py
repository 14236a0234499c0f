"""The pipelines of ``deploy/ci`` write one comment, change it the next time, and fail above the limit."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from meshwright.service.fixing.changes import MARK, ComparedFile, Side, markdown

ROOT = Path(__file__).parents[4]
CI = ROOT / "deploy" / "ci"
_EXAMPLE = re.compile(r"## GitLab.*?```yaml\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("github-action", (CI / "github/action.yml").read_text()),
        ("gitlab-ci", (CI / "gitlab/meshwright-fix.yml").read_text()),
        ("gitlab-ci", "".join(_EXAMPLE.findall((CI / "README.md").read_text()))),
    ],
    ids=["action", "template", "guide"],
)
def test_pipelines_keep_to_their_schemas(schema: str, text: str) -> None:
    judge = Draft7Validator(json.loads((ROOT / f"tests/fixtures/ci/{schema}.json").read_text()))
    document = yaml.safe_load(text)
    assert document
    assert [error.message for error in judge.iter_errors(document)] == []
    job = document.get("runs", document.get("meshwright-fix", document))
    job["variables" if "include" in job else "steps"] = 5
    assert not judge.is_valid(document)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a folder with stand-ins for programs, which note the words that they are given."""
    programs = {
        "git": "",
        "pip": "",
        "meshwright": f"echo '{MARK}'; exit 4",
        "gh": 'case "$*" in *--paginate*) cat known;; esac',
    }
    (tmp_path / "bin").mkdir()
    for name, body in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>"{tmp_path}/asked"\n{body}\n')
        path.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "known").write_text("")
    return tmp_path


def run(script: str, place: Path, **variables: str) -> int:
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=place, env={"PATH": path, **variables}, check=False
    ).returncode


@pytest.mark.parametrize(("known", "method"), [("", "POST"), ("17\n18\n", "PATCH")])
def test_the_github_action_writes_one_comment(place: Path, known: str, method: str) -> None:
    steps = {one["name"]: one["run"] for one in _action()["runs"]["steps"] if "run" in one}
    (place / "known").write_text(known)
    at = {"GITHUB_OUTPUT": str(place / "output"), "GITHUB_STEP_SUMMARY": str(place / "summary")}
    words = {"GITHUB_SHA": "b2", "ARGUMENTS": "--cluster dgx-h100", "FAIL_ABOVE": "2%"}
    assert run(steps["Compare"], place, **at, **words) == 0
    assert (place / "output").read_text() == "code=4\n"
    assert run(steps["Comment"], place, GITHUB_REPOSITORY="o/r", NUMBER="3") == 0
    assert run(steps["Limit"], place, CODE="4") == 4
    asked = (place / "asked").read_text().splitlines()
    assert "meshwright fix --compare b2^1 b2 --cluster dgx-h100 --fail-above 2%" in asked
    place_of = "comments/17" if known else "3/comments"
    assert f"--method {method} repos/o/r/issues/{place_of} " in asked[-1]
    assert asked[-1].endswith("-F body=@comment.md")


def _action() -> Any:  # noqa: ANN401 - a document
    return yaml.safe_load((CI / "github" / "action.yml").read_text())


@pytest.fixture
def notes() -> Iterator[tuple[str, list[str], list[dict[str, Any]]]]:
    """Yield a GitLab with the notes of one merge request: its address, what it was asked, the notes."""
    asked, known = list[str](), list[dict[str, Any]]()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            asked.append(f"{self.command} {self.path}")
            if self.command == "POST":
                known.append({"id": 5, **body})
            listed = known if "page=1" in self.path.split("&") else []
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(listed).encode())

        do_GET = do_POST = do_PUT = answer  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked, known
    server.shutdown()
    server.server_close()


def test_the_gitlab_job_writes_one_note_and_changes_it(
    place: Path, notes: tuple[str, list[str], list[dict[str, Any]]]
) -> None:
    url, asked, known = notes
    script = yaml.safe_load((CI / "gitlab" / "meshwright-fix.yml").read_text())["meshwright-fix"]["script"][
        -1
    ]
    given = {
        "CI_API_V4_URL": url, "CI_PROJECT_ID": "1", "CI_MERGE_REQUEST_IID": "2", "CI_COMMIT_SHA": "b2",
        "CI_MERGE_REQUEST_DIFF_BASE_SHA": "a1", "MESHWRIGHT_NOTE_TOKEN": "t", "MESHWRIGHT_FAIL_ABOVE": "2%",
        "MESHWRIGHT_ARGUMENTS": "--cluster dgx-h100",
    }  # fmt: skip
    assert run(script, place, **given) == 4
    assert asked[-1] == "POST /projects/1/merge_requests/2/notes"
    assert known[0]["body"].startswith(MARK)
    assert run(script, place, **given) == 4
    assert asked[-1] == "PUT /projects/1/merge_requests/2/notes/5"


def test_a_file_that_is_no_longer_read_is_left_out_of_no_comment() -> None:
    new = [ComparedFile(name=f"{at}.sh", base=Side(absent=True), head=Side()) for at in range(40)]
    broken = ComparedFile(name="broken.sh", base=Side(), head=Side(fault="no such option"))
    comment = markdown([*new, broken], 2.0, "8 GPUs")
    assert "- `broken.sh` after: no such option" in comment
    assert "1 more files are left out of this table." in comment
