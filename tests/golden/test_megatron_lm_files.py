"""Whole launch files, byte for byte. After a wanted change: UPDATE_GOLDEN=1 pytest tests/golden."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from meshwright.launchers.registry import export
from tests.launchers.cases import CASES
from tests.launchers.megatron_arguments import parser, words, words_by_bash

GOLDEN = Path(__file__).parent / "megatron_lm"
EVERY = pytest.mark.parametrize("name", sorted(CASES))


def exported(name: str) -> dict[str, str]:
    return export(CASES[name].plan, CASES[name].problem, "megatron-lm").files


@EVERY
def test_the_files_are_those_that_were_looked_at(name: str) -> None:
    folder = GOLDEN / name
    files = exported(name)
    if os.environ.get("UPDATE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)
    assert {path.name: path.read_text() for path in folder.iterdir()} == files


@EVERY
def test_bash_accepts_every_file(name: str) -> None:
    for path in (GOLDEN / name).glob("*.s*"):
        subprocess.run(["bash", "-n", path], check=True)


@EVERY
def test_bash_and_the_reader_of_the_tests_see_the_same_flags(name: str) -> None:
    path = GOLDEN / name / "megatron_args.sh"
    seen = words_by_bash(path)
    assert seen == words(path.read_text())
    parser().parse_args(seen)


@EVERY
def test_megatron_knows_every_flag_and_none_is_repeated(name: str) -> None:
    fixture = Path(__file__).parents[1] / "fixtures" / "megatron_lm_flags.txt"
    known = {line for line in fixture.read_text().splitlines() if not line.startswith("#")}
    flags = [word for word in words(exported(name)["megatron_args.sh"]) if word.startswith("--")]
    since_0_19 = {"--tensor-parallel-num-weight-shards", "--expert-tensor-parallel-num-weight-shards"}
    assert set(flags) <= known | since_0_19
    assert len(flags) == len(set(flags))
