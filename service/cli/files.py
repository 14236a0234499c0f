"""Writes files so that a reader sees the old text or the new one, never half of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from profiles.errors import InvalidProblemError
from service.json_input import shown

ANSWER_FILE = "answer.json"


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name beside ``path``, then rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            temporary.chmod(0o755)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save_folder(folder: Path, files: Mapping[str, str], *, plan_id: str, force: bool) -> None:
    """Write ``files`` into ``folder``, all or nothing when it is new.

    Raises:
        InvalidProblemError: the folder holds another plan or something else, or cannot be written.
    """
    if not (force or _may_hold(folder, plan_id)):
        message = f"{shown(str(folder))} holds something else; choose another folder, or --force"
        raise InvalidProblemError.of("--save-dir", message)
    try:
        if folder.exists():
            for name, text in files.items():
                write_text(folder / name, text)
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        _create(folder, files)
    except OSError as fault:
        reason = fault.strerror or "cannot be written"
        raise InvalidProblemError.of("--save-dir", f"{shown(str(folder))}: {reason}") from None


def _create(folder: Path, files: Mapping[str, str]) -> None:
    """Fill a temporary folder, then rename it."""
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        for name, text in files.items():
            write_text(temporary / name, text)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _may_hold(folder: Path, plan_id: str) -> bool:
    """Whether the folder is new, empty, or already that plan's."""
    if not folder.exists():
        return True
    if not folder.is_dir():
        return False
    try:
        if not any(folder.iterdir()):
            return True
        answer = json.loads((folder / ANSWER_FILE).read_text(encoding="utf-8"))
        return bool(answer["plans"][0]["plan_id"] == plan_id)
    except (OSError, ValueError, LookupError, TypeError):
        return False
