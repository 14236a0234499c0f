"""Writes the launch files of a plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from meshwright_client.errors import UnexpectedAnswerError


def save(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write every file below ``folder``, whole or not at all; scripts can be run.

    Raises:
        UnexpectedAnswerError: a name would lie outside of ``folder``; nothing is written.
    """
    targets = {folder / _inside(name): text for name, text in files.items()}
    for path, text in targets.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            temporary.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                temporary.chmod(0o755)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return list(targets)


def _inside(name: str) -> PurePosixPath:
    """A name that stays below its folder."""
    path = PurePosixPath(name)
    if not path.name or path.is_absolute() or ".." in path.parts or set(name) & {"\\", ":", "\0"}:
        raise UnexpectedAnswerError(f"not the name of a launch file: {name[:64]!r}")
    return path
