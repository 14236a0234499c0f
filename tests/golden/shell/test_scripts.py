"""Drawn scripts, and the commands that are read in them; UPDATE_GOLDEN=1 writes the commands anew.

``drawing.py`` drew the scripts and compared the commands with those that bash runs. A value that is not
known is a name between two marks.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from meshwright.shell.script import read_script

SCRIPTS = Path(__file__).with_name("scripts.jsonl")


def commands(text: str) -> list[list[str]] | str:
    """The words of each command, or why the script cannot be read."""
    try:
        found = read_script(text)
    except ValueError as fault:
        return str(fault)
    return [[word.text for word in words] for words in found.commands]


def test_drawn_scripts_run_the_commands_that_were_reviewed() -> None:
    reviewed = [json.loads(line) for line in SCRIPTS.read_text(encoding="utf-8").splitlines()]
    found = [[text, commands(text)] for text, _ in reviewed]
    if os.environ.get("UPDATE_GOLDEN"):
        write(found)
        reviewed = found
    assert [f"{was} -> {now[1]}" for was, now in zip(reviewed, found, strict=True) if was != now] == []


def write(found: list[list[object]]) -> None:
    lines = [json.dumps(one, separators=(",", ":"), ensure_ascii=True) for one in found]
    SCRIPTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
