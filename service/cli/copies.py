"""What ``meshwright db backup`` and ``restore`` do."""

from __future__ import annotations

from pathlib import Path

from profiles.documents import shown_path
from profiles.errors import InvalidProblemError
from service.cli.configured import settings_with
from service.db.backup import BackupError, back_up, restore
from service.db.database import sqlite_path
from service.errors import ServerStartError


def back_up_records(database_url: str | None, target: Path) -> str:
    """Copy the records; what to tell.

    Raises:
        InvalidProblemError: the records are in no SQLite file, or cannot be copied.
    """
    source = _file(database_url)
    try:
        size_bytes = back_up(source, target)
    except BackupError as fault:
        raise InvalidProblemError.of("backup", str(fault)) from None
    return f"{shown_path(target)}  {size_bytes} bytes"


def restore_records(database_url: str | None, source: Path) -> str:
    """Put a copy in the place of the records; what to tell.

    Raises:
        InvalidProblemError: the records are in no SQLite file, are in use, or this is no copy of such.
    """
    target = _file(database_url)
    try:
        restore(source, target)
    except (BackupError, ServerStartError) as fault:
        raise InvalidProblemError.of("restore", str(fault)) from None
    return f"restored from {shown_path(source)}"


def _file(database_url: str | None) -> Path:
    """The SQLite file of the records.

    Raises:
        InvalidProblemError: they are in another database.
    """
    path = sqlite_path(settings_with({"database_url": database_url}).database_url)
    if path is None:
        message = "the records are in PostgreSQL; use pg_dump and pg_restore"
        raise InvalidProblemError.of("--database-url", message)
    return path
