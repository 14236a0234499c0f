"""``meshwright db``: the schema of the records, and copies of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from meshwright.profiles.documents import shown_path
from meshwright.profiles.errors import InvalidProblemError, PlannerError
from meshwright.service.cli.terminal import say_warnings
from meshwright.service.db import migrations
from meshwright.service.db.backup import BackupError, back_up, restore
from meshwright.service.db.database import Database, DatabaseSilentError, sqlite_path
from meshwright.service.errors import ServerStartError
from meshwright.service.settings import settings_with

app = typer.Typer(help="The records: schema and copies.", no_args_is_help=True)


class DatabaseUnreachableError(PlannerError):
    """The database cannot be reached or changed."""

    code = "database_unreachable"


@app.callback()
def options() -> None:
    """The records: schema and copies."""


@app.command()
def upgrade(
    database_url: Annotated[str | None, typer.Option(help="Default: the settings'.")] = None,
) -> None:
    """Bring the schema to its newest revision."""
    settings = settings_with({"database_url": database_url})
    database = Database(settings.database_url)
    try:
        database.await_server(within_s=settings.database_wait_s, tell=lambda words: say_warnings([words]))
        migrations.upgrade(database)
        typer.echo(f"the schema is at revision {migrations.current(database)}")
    except DatabaseSilentError as fault:
        raise DatabaseUnreachableError(f"the database cannot be reached: {fault}") from None
    except SQLAlchemyError as fault:
        message = f"the database cannot be brought up to date ({type(fault).__name__})"
        raise DatabaseUnreachableError(message) from None
    finally:
        database.close()


@app.command()
def check(
    database_url: Annotated[str | None, typer.Option(help="Default: the settings'.")] = None,
) -> None:
    """Say whether the schema is the one this version needs; exit 2 if not."""
    database = Database(settings_with({"database_url": database_url}).database_url)
    try:
        found, wanted = migrations.current(database), migrations.head()
    except SQLAlchemyError as fault:
        raise DatabaseUnreachableError(f"the database cannot be read ({type(fault).__name__})") from None
    finally:
        database.close()
    if found != wanted:
        state = "empty" if found is None else f"at revision {found}"
        message = f"the schema is {state}, this version needs {wanted}: meshwright db upgrade"
        raise DatabaseUnreachableError(message)
    typer.echo(f"the schema is at revision {found}, as this version needs it")


@app.command("backup")
def backup_command(
    target: Annotated[Path, typer.Argument(help="File to write; replaced when it is there.")],
    database_url: Annotated[str | None, typer.Option(help="Default: the settings'.")] = None,
) -> None:
    """Copy the SQLite file while the service runs; PostgreSQL has pg_dump."""
    source = _file(database_url)
    try:
        size_bytes = back_up(source, target)
    except BackupError as fault:
        raise InvalidProblemError.of("backup", str(fault)) from None
    typer.echo(f"{shown_path(target)}  {size_bytes} bytes")


@app.command("restore")
def restore_command(
    source: Annotated[Path, typer.Argument(help="A file that backup wrote.")],
    database_url: Annotated[str | None, typer.Option(help="Default: the settings'.")] = None,
) -> None:
    """Put a copy in the place of the SQLite file; the service must be stopped."""
    target = _file(database_url)
    try:
        restore(source, target)
    except (BackupError, ServerStartError) as fault:
        raise InvalidProblemError.of("restore", str(fault)) from None
    typer.echo(f"restored from {shown_path(source)}")


def _file(database_url: str | None) -> Path:
    path = sqlite_path(settings_with({"database_url": database_url}).database_url)
    if path is None:
        message = "the records are in PostgreSQL; use pg_dump and pg_restore"
        raise InvalidProblemError.of("--database-url", message)
    return path
