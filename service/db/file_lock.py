"""Ownership of a SQLite file: one server, or one restore, at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from meshwright.service.db.database import keep_private
from meshwright.service.errors import DatabaseBusyError, ServerStartError


@contextmanager
def owned(path: Path | None) -> Iterator[None]:
    """Hold the lock file next to a SQLite file; the lock ends with this process, even if it is killed."""
    if path is None:
        yield
        return
    with _lock_file(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            owner = lock.read(32).strip() or "unknown"
            raise DatabaseBusyError(f"{path.name} is already served by process {owner}") from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        keep_private(path)
        yield


def _lock_file(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(f"{path}.lock").open("a+", encoding="ascii")
    except OSError as fault:
        raise ServerStartError(f"records cannot be stored at {path}: {fault.strerror}") from None
