"""Files that contradict themselves, or that their launcher would not start with, are noticed when read."""

from __future__ import annotations

import pytest

from tests.launchers.edits import EDITS, Edit, found_by_us

CASES = [(launcher, edit) for launcher, edits in EDITS.items() for edit in edits()]


@pytest.mark.parametrize(
    ("launcher", "edit"), CASES, ids=[f"{launcher}: {edit.name}" for launcher, edit in CASES]
)
def test_what_is_wrong_in_a_file_is_refused_or_listed(launcher: str, edit: Edit) -> None:
    assert found_by_us(edit, launcher) == ("listed" if edit.listed else "refused")
