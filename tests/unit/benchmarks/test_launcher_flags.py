"""Tables of arguments are compared with the sources of their releases."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.catalog.launcher_flags import (
    PROGRAMS,
    Release,
    declared,
    faults,
    main,
    merged,
    written,
)
from meshwright.launchers.flags import table_path

NAME = "llama-factory"
SOURCE = """
from dataclasses import dataclass

@dataclass
class DataArguments:
    cutoff_len: int = {default}
    {new}: bool = False
"""


@pytest.fixture
def releases(tmp_path: Path) -> Path:
    """LLaMA-Factory in all its releases, with a new argument and a new default of a known one."""
    for release in PROGRAMS[NAME]:
        folder = tmp_path / release.name / "llamafactory" / "hparams"
        folder.mkdir(parents=True)
        (folder / "data_args.py").write_text(SOURCE.format(default=77, new="a_new_argument"))
    return tmp_path


def test_an_argument_without_a_row_is_named(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = faults(NAME, releases)
    assert found[0] == f"{NAME}: a_new_argument has no row"
    assert f"{NAME}: the row of cutoff_len is not its declaration" in found
    assert main(["--check", str(releases), NAME]) == 1
    assert "a_new_argument has no row" in capsys.readouterr().out


def test_a_row_keeps_what_is_said_by_hand_and_a_new_one_has_no_role(releases: Path) -> None:
    known = yaml.safe_load(table_path(NAME).read_text("utf-8"))
    rows = merged(NAME, releases)
    assert rows["cutoff_len"] == {**known["cutoff_len"], "default": 77}
    assert rows["a_new_argument"] == {"type": "bool", "default": False}
    assert yaml.safe_load(written(NAME, rows)) == rows


def test_of_several_classes_of_a_section_the_first_declaration_counts(tmp_path: Path) -> None:
    text = (
        "class First:\n    size: int = 1\n\nclass Second:\n    size: int = 2\n    other: int = 3\n\n"
        "class Root:\n    part: First | Second\n"
    )
    (tmp_path / "a.py").write_text(text)
    found = declared(tmp_path, Release(name="one", files=("a.py",), roots=("Root",)))
    assert (found["part.size"].default, found["part.other"].default) == (1, 3)
