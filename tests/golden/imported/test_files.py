"""Logs and topologies with one word changed, and what is read of them; UPDATE_GOLDEN=1 writes it anew.

The first outcome of a file is the whole record that it gives; each other one is a sentence that refuses the
changed file, or the values in which its record differs.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from meshwright.profiles.errors import ProfileError
from meshwright.profiles.importers.registry import import_profile
from tests.golden.answers.test_answers import values_of

FOLDER = Path(__file__).parent
FIXTURES = Path(__file__).parents[2] / "unit" / "profiles" / "fixtures" / "importers"
FILES = sorted(str(path.relative_to(FIXTURES)) for path in FIXTURES.rglob("*") if path.is_file())
EACH = 24
WORDS = ("", "0", "-1", "1", "7", "2.5", "1e9", "99999999999999999999", "x")


def changed(text: str, name: str) -> Iterator[str]:
    """The file with one of its words left out, or another in its place."""
    words = list(re.finditer(r"[-\w.]+", text))
    for number in range(EACH):
        random = Random(f"{name} {number}")
        word = random.choice(words)
        yield text[: word.start()] + random.choice(WORDS) + text[word.end() :]


def imported(path: Path) -> object:
    """The record as JSON has it, or the sentence that refuses the file."""
    try:
        found: Any = import_profile(path)
    except ProfileError as refused:
        return str(refused)
    return json.loads(json.dumps(asdict(found), default=str))


def outcomes(name: str, folder: Path) -> Iterator[object]:
    """The file's record, and what is unlike it with each change."""
    before = imported(FIXTURES / name)
    yield before
    was, path = dict(values_of(before)), folder / Path(name).name
    for text in changed((FIXTURES / name).read_text(encoding="utf-8"), name):
        path.write_text(text, encoding="utf-8")
        after = imported(path)
        now = dict(values_of(after)) if isinstance(after, dict) else {"refused": after}
        differing = (at for at in now | was if was.get(at) != now.get(at))
        yield now if "refused" in now else {at: now.get(at) for at in differing}


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_one_word_changed_is_refused_or_read_as_it_was_reviewed(
    name: str, tmp_path: Path
) -> None:
    path = FOLDER / "files" / f"{name.replace('/', '-')}.jsonl"
    found = [json.dumps(one, separators=(",", ":")) for one in outcomes(name, tmp_path)]
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text("\n".join(found) + "\n", encoding="utf-8")
    reviewed = path.read_text(encoding="utf-8").splitlines()
    assert [f"{a} -> {b}" for a, b in zip(reviewed, found, strict=True) if a != b] == []
