"""Copies of a PostgreSQL database by its own tools, with the checks that copies of a SQLite file have."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import URL

from meshwright.service.db.backup import BackupError
from meshwright.service.db.database import PRIVATE, Database

_MARK = "alembic_version"  # a table that every database of this service has
_OTHERS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = 'meshwright' AND pid <> pg_backend_pid()"
)


def dump(url: URL, target: Path) -> int:
    """Copy a database while the service runs; ``target`` appears whole or not at all. Returns its bytes.

    Raises:
        BackupError: ``pg_dump`` is missing or fails, or this is not a database of this service.
    """
    partial = target.with_name(f"{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        partial.touch(PRIVATE)
        _run(
            ["pg_dump", "--format=custom", "--no-owner", f"--file={partial}", f"--dbname={_plain(url)}"],
            url,
        )
        _require_sound(partial, url)
        partial.replace(target)
    except OSError as fault:
        raise BackupError(f"the copy failed: {fault}") from None
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def restore_dump(source: Path, url: URL) -> None:
    """Replace the records of a database that no service uses with a copy, in one transaction.

    Raises:
        BackupError: the copy is damaged or not of this service, the service runs, or ``pg_restore`` fails.
    """
    if not source.is_file():
        raise BackupError(f"no copy at {source.name}")
    _require_sound(source, url)
    database = Database(url.render_as_string(hide_password=False))
    try:
        with database.read() as connection:
            others = connection.execute(_OTHERS).scalar_one()
    finally:
        database.close()
    if others:
        raise BackupError(f"the service has {others} connections to the database: stop servers and workers")
    words = ["--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error"]
    _run(["pg_restore", *words, f"--dbname={_plain(url)}", str(source)], url)


def _require_sound(copy: Path, url: URL) -> None:
    """Refuse what is not a whole copy of a database of this service: its list names the tables."""
    listed = _run(["pg_restore", "--list", str(copy)], url)
    if f" {_MARK} " not in listed:
        raise BackupError("it is not a database of this service")


def _plain(url: URL) -> str:
    """Return a URL as libpq reads it, without the password, which no list of processes is to show."""
    return url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)


def _run(command: Sequence[str], url: URL) -> str:
    program = shutil.which(command[0])
    if program is None:
        raise BackupError(
            f"{command[0]} is not installed: install the PostgreSQL client (postgresql-client)"
        )
    own = {"PGPASSWORD": url.password} if url.password else {}
    done = subprocess.run(  # noqa: S603 - our own words, and no shell
        [program, *command[1:]], env={**os.environ, **own}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BackupError(f"{command[0]} failed: {said[:300]}")
    return done.stdout
