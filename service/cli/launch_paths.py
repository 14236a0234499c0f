"""Launch files of the command line: one, several, or a folder of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiles.errors import InvalidProblemError
from service.json_input import shown_path
from service.launchers.reading.base import MAX_BYTES, MAX_FILES, Source

_KINDS = (
    "",
    ".sh",
    ".bash",
    ".sbatch",
    ".slurm",
    ".args",
    ".txt",
    ".json",
    ".yaml",
    ".yml",
    ".toml",
    ".py",
)
_OURS = ("answer.json", "problem.json")  # what a saved plan holds beside its launch files


def source_of(paths: Sequence[Path]) -> Source:
    """The files as one source: the first one counts, those of the same folder may be named by it.

    Raises:
        InvalidProblemError: a file cannot be read, or a folder holds none.
    """
    first = paths[0]
    if first.is_dir():
        if len(paths) > 1:
            raise InvalidProblemError.of("--from-args", "give one folder, or files")
        return _folder(first)
    files = {path.name: text_of(path) for path in paths}
    if len(files) != len(paths):
        raise InvalidProblemError.of("--from-args", "two files have the same name")
    return Source(
        name=first.name,
        text=files[first.name],
        files=files if len(files) > 1 else {},
        include=lambda name: _beside(first.parent / name),
    )


def text_of(path: Path) -> str:
    """The text of a file, as much as may be read of it.

    Raises:
        InvalidProblemError: it cannot be read, or is no text.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1).decode("utf-8-sig")
    except OSError as fault:
        message = f"{shown_path(path)}: {fault.strerror or 'cannot be read'}"
        raise InvalidProblemError.of("--from-args", message) from None
    except UnicodeDecodeError:
        message = f"{shown_path(path)}: the text is not UTF-8"
        raise InvalidProblemError.of("--from-args", message) from None


def _folder(folder: Path) -> Source:
    """The launch files of a folder, not those of its folders."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in _KINDS and path.is_file())
    except OSError as fault:
        message = f"{shown_path(folder)}: {fault.strerror or 'cannot be read'}"
        raise InvalidProblemError.of("--from-args", message) from None
    paths = [path for path in paths if path.name not in _OURS and not path.name.startswith(".")]
    if not 0 < len(paths) <= MAX_FILES:
        message = f"{shown_path(folder)} holds {len(paths)} files that may be launch files"
        raise InvalidProblemError.of("--from-args", message, allowed=f"1 to {MAX_FILES}; or name the files")
    files = {path.name: text_of(path) for path in paths}
    return Source(name=paths[0].name, text=files[paths[0].name], files=files)


def _beside(path: Path) -> str | None:
    """The text of a file beside the given one; None where there is none that can be read."""
    try:
        return text_of(path) if path.is_file() else None
    except (InvalidProblemError, ValueError):  # a name with NUL in it
        return None
