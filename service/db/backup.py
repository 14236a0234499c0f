"""Copies of a SQLite file while a server writes to it (SQLite's online backup), and back again."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from meshwright.service.db.database import PRIVATE
from meshwright.service.db.file_lock import owned
from meshwright.service.errors import ServiceError

PAGES = 256  # copied at a time; writers get their turn between two such steps


class BackupError(ServiceError):
    """The copy cannot be made, or is not a database of this service."""

    code = "backup"


def back_up(source: Path, target: Path) -> int:
    """Copy a live database file; ``target`` appears whole or not at all. Returns its size in bytes.

    Raises:
        BackupError: the file does not exist, it is damaged, or the copy cannot be written.
    """
    if not source.is_file():
        raise BackupError(f"no database at {source.name}")
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        partial.touch(PRIVATE)
        with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(partial)) as copy:
            live.backup(copy, pages=PAGES)
            _require_sound(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a journal
        partial.replace(target)
        _sync(target.parent)
    except (sqlite3.Error, OSError) as fault:
        partial.unlink(missing_ok=True)
        raise BackupError(f"the copy failed: {fault}") from None
    return target.stat().st_size


def restore(source: Path, target: Path) -> None:
    """Replace a database file that no server is using with a copy.

    Raises:
        BackupError: the copy is damaged or not a database of this service.
        DatabaseBusyError: a server is using the file.
    """
    with owned(target):
        _settle(target)
        back_up(source, target)


def _settle(path: Path) -> None:
    """Write the log of a killed server into its file, so that no log is left for the copy to meet."""
    if path.is_file():
        with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as old:
            old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _require_sound(copy: sqlite3.Connection) -> None:
    (verdict,) = copy.execute("PRAGMA integrity_check(1)").fetchone()
    known = copy.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
    if verdict != "ok" or known != (1,):
        raise sqlite3.DatabaseError("it is damaged, or is not a database of this service")


def _sync(folder: Path) -> None:
    """Make a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
