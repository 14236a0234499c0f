"""Writes the launch files of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from uuid import uuid4

from meshwright_client.errors import UnexpectedAnswerError


def save(files: Mapping[str, str], folder: Path) -> list[Path]:
    """Write every file below ``folder``; scripts can be run.

    They take their places once all of them are written. The last file and scripts are taken away before and
    come last: who is killed meanwhile leaves nothing that starts a mixture of two plans, and who finds the
    last file finds all others beside it.

    Raises:
        UnexpectedAnswerError: a name would lie outside of ``folder``; nothing is written.
        OSError: one cannot be written; those that were there are as they were.
    """
    targets = {folder / inside(name): text for name, text in files.items()}
    mark = uuid4().hex  # several nodes may write, whose processes may have one number
    written = {path.with_name(f".{path.name}.{mark}.tmp"): path for path in targets}
    try:
        for temporary, path in written.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(targets[path], encoding="utf-8")
            if targets[path].startswith("#!"):
                temporary.chmod(0o755)
        last = list(targets)[-1:]
        late = [path for path in targets if path in last or targets[path].startswith("#!")]
        for path in reversed(late):
            with suppress(FileNotFoundError):  # nothing is there, or another node was faster
                if path.read_bytes() != targets[path].encode():
                    path.unlink()
        for temporary, path in sorted(written.items(), key=lambda one: one[1] in late):
            temporary.replace(path)
    finally:
        for temporary in written:
            temporary.unlink(missing_ok=True)
    return list(targets)


def inside(name: str) -> PurePosixPath:
    """A name that stays below its folder.

    Raises:
        UnexpectedAnswerError: it does not.
    """
    path = PurePosixPath(name)
    if not path.name or path.is_absolute() or ".." in path.parts or set(name) & {"\\", ":", "\0"}:
        raise UnexpectedAnswerError(f"not the name of a launch file: {name[:64]!r}")
    return path
