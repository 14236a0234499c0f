"""Launch files of the command line: one, several, or a folder of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiles.documents import shown_path
from profiles.errors import InvalidProblemError
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
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise _unreadable(path, "the file is too big", allowed=f"{MAX_BYTES} bytes")
        if (place := data.find(b"\0")) >= 0:
            raise _unreadable(path, f"line {_line(data, place)}: NUL is no text", allowed="UTF-8 text")
        return data.decode("utf-8-sig")
    except OSError as fault:
        raise _unreadable(path, fault.strerror or "cannot be read") from None
    except UnicodeDecodeError as fault:
        message = f"line {_line(data, fault.start)}: the text is not UTF-8"
        raise _unreadable(path, message, allowed="UTF-8 text") from None


def _line(data: bytes, place: int) -> int:
    """The line of a place."""
    return data.count(b"\n", 0, place) + 1


def _unreadable(path: Path, message: str, *, allowed: str | None = None) -> InvalidProblemError:
    """Why a file cannot be read."""
    return InvalidProblemError.of("--from-args", f"{shown_path(path)}: {message}", allowed=allowed)


def _folder(folder: Path) -> Source:
    """The launch files of a folder, not those of its folders."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix in _KINDS and path.is_file())
    except OSError as fault:
        raise _unreadable(folder, fault.strerror or "cannot be read") from None
    paths = [path for path in paths if path.name not in _OURS and not path.name.startswith(".")]
    if not 0 < len(paths) <= MAX_FILES:
        message = f"{shown_path(folder)} holds {len(paths)} files that may be launch files"
        raise InvalidProblemError.of("--from-args", message, allowed=f"1 to {MAX_FILES}; or name the files")
    files = {path.name: text_of(path) for path in paths}
    return Source(name=paths[0].name, text=files[paths[0].name], files=files)


def _beside(path: Path) -> str | None:
    """The text of a file beside the given one; None where there is none.

    Raises:
        InvalidProblemError: it cannot be read, or is no text.
    """
    try:
        there = path.is_file()
    except (OSError, ValueError):  # a name that no file system takes, or with NUL in it
        return None
    return text_of(path) if there else None
