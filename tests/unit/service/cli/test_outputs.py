"""What a command writes is checked before it works, and carries the version of its form."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshwright.profiles.documents import SCHEMA_VERSION, document_text, without_version
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.cli.main import app
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem
from tests.served.commands import leaves

QUESTION = {
    "model": "llama-3.1-8b",
    "cluster": "dgx-h100",
    "workload": {"global_batch_size": 64, "seq_length": 4096},
}
LONG = "plan deepseek-v3 --cluster dgx-h100 --num-nodes 256 --global-batch-size 4096 --seq-length 8192"
WRITTEN = sorted(
    (path, one.opts[-1])
    for path, command in leaves()
    for one in command.params
    if one.param_type_name == "option"
    and one.name in ("save_dir", "out", "zip_file", "per_run", "timeline")
    and one.type_descriptor.annotation is Path
)


@pytest.mark.parametrize(("path", "option"), WRITTEN)
def test_every_command_checks_what_it_writes_before_anything_else(path: str, option: str) -> None:
    command = dict(leaves())[path]
    with pytest.raises(InvalidProblemError) as refused:
        command.make_context(path, [option, "/proc/nowhere/file"])
    (fault,) = refused.value.errors
    assert fault.pointer.startswith("--")
    assert "/proc/nowhere/file" in fault.message
    assert fault.tip == f"{fault.pointer} file"


def test_plan_and_the_others_with_a_folder_are_among_them() -> None:
    found = {path for path, _ in WRITTEN}
    assert {"plan", "export", "tune", "replan", "launch", "report", "profile", "fleet", "plot"} <= found


@pytest.mark.parametrize("taken", ["file", "folder"])
def test_no_search_has_begun_when_a_folder_is_refused(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "folder").mkdir()
    for name in ("file", "folder/other"):
        (tmp_path / name).write_text("kept")
    shown = CliRunner().invoke(app, [*LONG.split(), "--json", "--save-dir", str(tmp_path / taken)])
    assert isinstance(shown.exception, InvalidProblemError)
    assert (shown.stdout, shown.stderr) == ("", "")  # neither an answer nor a line of progress
    assert not (tmp_path / "state").exists()


def test_a_document_carries_the_version_of_its_form_as_its_first_key() -> None:
    text = document_text({"a": 1})
    assert text == f'{{\n "schema_version": {SCHEMA_VERSION},\n "a": 1\n}}\n'
    assert without_version(json.loads(text)) == {"a": 1}
    assert without_version({"a": 1}) == {"a": 1}  # as before there were versions


@pytest.mark.parametrize(
    ("version", "message"),
    [(2, "2 is of a newer Meshwright"), ("x", "x is no version"), (0, "0 is no version")],
)
def test_a_document_of_another_version_is_refused_by_name(
    version: object, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "problem.json"
    file.write_text(json.dumps({"schema_version": version, **QUESTION}))
    with pytest.raises(InvalidProblemError, match=f"problem.json: .*{message}.*Allowed: 1"):
        read_problem_file(file)
    with pytest.raises(InvalidProblemError, match=message):
        parse_problem({"schema_version": version, **QUESTION})


def test_every_file_of_a_plan_is_read_back_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = "plan gpt-3-350m --gpus 1xh100 --global-batch-size 8 --seq-length 512 --certify none --top-k 1"
    run = tmp_path / "run"
    shown = CliRunner().invoke(app, [*words.split(), "--json", "--save-dir", str(run)])
    assert shown.exit_code == 0, shown.output
    kept = next((tmp_path / "state").rglob("answers/*.json"))
    texts = (
        shown.stdout,
        *(path.read_text() for path in (run / "answer.json", run / "problem.json", kept)),
    )
    for document in map(json.loads, texts):
        assert next(iter(document.items())) == ("schema_version", 1)
    assert parse_problem(read_problem_file(run / "problem.json")) == parse_problem(json.loads(texts[2]))
    again = CliRunner().invoke(app, ["export", "--from", str(run / "answer.json")])
    assert again.exit_code == 0, again.output
