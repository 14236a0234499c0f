"""Every command of the documentation is run, and prints what is shown; ``UPDATE_DOCS=1`` writes it anew."""

import os
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

import meshwright
from meshwright.service.cli.main import app
from tests.e2e.transcripts import (
    BLOCK,
    PYTHON,
    ROOT,
    agrees,
    exchanges,
    rewritten,
    run_page,
    run_python,
    with_outputs,
)

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
RUN = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]
IN_PYTHON = [page for page in PAGES if PYTHON.search(page.read_text(encoding="utf-8"))]
SHELL = re.compile(r"^```sh *\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
ON_STDERR = ("warning: ", "wrote ")
STARTS = ("meshwright ", ".venv/bin/meshwright ")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_page_shows_what_its_commands_print(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    results = list(run_page(text, tmp_path))
    if os.environ.get("UPDATE_DOCS") == "1":
        page.write_text(rewritten(text, results), encoding="utf-8")
        results = [
            (one, printed)
            for one, (_, printed) in zip(
                [one for block in BLOCK.finditer(page.read_text()) for one in exchanges(block["body"])],
                results,
                strict=True,
            )
        ]
    for one, printed in results:
        assert agrees(one.shown, printed), f"{one.typed}\n" + "\n".join(printed) + "\n(UPDATE_DOCS=1)"


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_command_that_selects_lines_of_its_output_shows_some(page: Path) -> None:
    """A pattern that no longer matches prints nothing: the page would show that, or what is on stderr."""
    text = page.read_text(encoding="utf-8")
    every = [one for block in BLOCK.finditer(text) for one in exchanges(block["body"])]
    assert [
        one.typed
        for one in every
        if re.search(r"\| (sed -n|grep) ", one.typed)
        and (not one.shown or one.shown[0].startswith(ON_STDERR))
    ] == []


@pytest.mark.parametrize("page", IN_PYTHON, ids=name_of)
def test_a_page_shows_what_its_python_prints(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    printed = run_python(text, tmp_path)
    if os.environ.get("UPDATE_DOCS") == "1":
        text = with_outputs(text, printed)
        page.write_text(text, encoding="utf-8")
    for block, lines in zip(PYTHON.finditer(text), printed, strict=True):
        shown = tuple((block["shown"] or "").splitlines())
        assert agrees(shown, lines), f"{block['code']}\n" + "\n".join(lines) + "\n(UPDATE_DOCS=1)"


def test_the_page_about_python_shows_every_function_of_the_package() -> None:
    page = (ROOT / "docs" / "howto" / "python.md").read_text(encoding="utf-8")
    assert [name for name in meshwright.__all__ if f"`{name}" not in page] == []


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_plan_ids_of_commands_that_are_only_shown_were_printed_before_on_the_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in SHELL.finditer(text):
        for plan_id in re.findall(r"(?:export|--plan) ([0-9a-f]{4,12})\b", block["body"]):
            assert f"export {plan_id[:4]} " in text[: block.start()], f"{plan_id}: no command printed it"


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_page_shows_no_command_about_a_plan_that_it_did_not_find(page: Path) -> None:
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        for one in exchanges(block["body"]):
            shown = "\n".join(one.shown)
            for plan_id in re.findall(r"no saved plan starts with \"([0-9a-f]{4,12})\"", shown):
                assert page.name == "troubleshooting.md", f"{plan_id}: {one.typed}"


def commands_not_run() -> list[tuple[str, str]]:
    """``meshwright`` commands in ``sh`` blocks: those that need other machines, or other people's files."""
    found = []
    for page in PAGES:
        for block in SHELL.finditer(page.read_text(encoding="utf-8")):
            lines = block["body"].replace("\\\n", " ").splitlines()
            found += [(name_of(page), line) for line in lines if line.startswith(STARTS)]
    return found


@pytest.mark.parametrize(("page", "line"), commands_not_run())
def test_a_command_that_is_only_shown_has_options_that_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    words = words[:-1] if words[-1:] == ["&"] else words
    command = typer.main.get_command(app)
    while isinstance(command, TyperGroup):
        command = command.commands[words.pop(0)]
    if "--help" not in words:
        command.make_context(page, words)
