"""``meshwright db``: the schema of the records, and copies of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

from meshwright.profiles.documents import shown, shown_path
from meshwright.profiles.errors import InvalidProblemError, PlannerError
from meshwright.service.cli.terminal import say_warnings
from meshwright.service.db import migrations
from meshwright.service.db.backup import BackupError, back_up, restore
from meshwright.service.db.database import Database, DatabaseSilentError, sqlite_path
from meshwright.service.db.dump import dump, restore_dump
from meshwright.service.db.file_lock import owned
from meshwright.service.errors import NotFoundError, ServerStartError
from meshwright.service.settings import Settings, settings_with
from meshwright.service.stores.deletion import Deletion

app = typer.Typer(help="The records: schema and copies.", no_args_is_help=True)


class DatabaseUnreachableError(PlannerError):
    """The database cannot be reached or changed."""

    code = "database_unreachable"


@app.callback()
def options() -> None:
    """The records: schema and copies."""


@app.command()
def upgrade(
    database_url: Annotated[
        str | None, typer.Option(help="Database URL [default: MESHWRIGHT_DATABASE_URL]")
    ] = None,
) -> None:
    """Bring the schema to its newest revision. On PostgreSQL the service may keep running."""
    settings = settings_with({"database_url": database_url})
    with opened(settings) as database:
        database.await_server(within_s=settings.database_wait_s, tell=lambda words: say_warnings([words]))
        migrations.upgrade(database)
        _tell_revision(database)


@app.command()
def downgrade(
    revision: Annotated[
        str, typer.Argument(help="Revision that the older release's `db check` prints, e.g. 0014.")
    ],
    database_url: Annotated[
        str | None, typer.Option(help="Database URL [default: MESHWRIGHT_DATABASE_URL]")
    ] = None,
) -> None:
    """Take the schema back to an older revision. Run it with the newer release, before the older starts.

    Needed only where `db check` of the older release refuses the schema. Data that the older schema cannot
    hold is deleted; a SQLite file must not be in use.
    """
    settings = settings_with({"database_url": database_url})
    try:
        with owned(sqlite_path(settings.database_url)), opened(settings) as database:
            migrations.downgrade(database, revision)
            _tell_revision(database)
    except ServerStartError as fault:
        raise InvalidProblemError.of("downgrade", str(fault)) from None


@app.command()
def check(
    database_url: Annotated[
        str | None, typer.Option(help="Database URL [default: MESHWRIGHT_DATABASE_URL]")
    ] = None,
) -> None:
    """Report whether this version can serve the schema. Exit code 2: it can't."""
    with opened(settings_with({"database_url": database_url})) as database:
        found, fit = migrations.current(database), migrations.fit(database)
        if fit == "outdated":
            state = "empty" if found is None else f"at revision {found}"
            needed = f"this version needs {migrations.head()}: meshwright db upgrade"
            raise DatabaseUnreachableError(f"the schema is {state}, {needed}")
        migrations.require(database)
        _tell_revision(database)


@contextmanager
def opened(settings: Settings) -> Iterator[Database]:
    """Open the database of the settings; report its failure in one sentence."""
    database = Database(settings.database_url)
    try:
        yield database
    except DatabaseSilentError as fault:
        raise DatabaseUnreachableError(f"the database cannot be reached: {fault}") from None
    except migrations.UnsupportedSchemaError as fault:
        raise DatabaseUnreachableError(str(fault)) from None
    except (SQLAlchemyError, OSError) as fault:
        raise DatabaseUnreachableError(f"the database cannot be used ({type(fault).__name__})") from None
    finally:
        database.close()


def _tell_revision(database: Database) -> None:
    found, suffix = migrations.current(database), ""
    if found == migrations.head():
        suffix = ", as this version needs it"
    elif migrations.fit(database) == "newer":
        suffix = f". This version ({migrations.head()}) can serve it"
    typer.echo(f"the schema is at revision {found}{suffix}")


@app.command("delete-tenant")
def delete_tenant(
    tenant: Annotated[str, typer.Argument(help="Name of the tenant, as keys list shows it.")],
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Confirm that you want to delete the records for good.")
    ] = False,
    database_url: Annotated[
        str | None, typer.Option(help="Database URL [default: MESHWRIGHT_DATABASE_URL]")
    ] = None,
) -> None:
    """Delete all records of a tenant. Jobs, plans, profiles and keys go while the service runs."""
    if not yes:
        raise InvalidProblemError.of(
            "--yes", f"is missing: all records of {shown(tenant)} would be deleted for good"
        )
    with opened(settings_with({"database_url": database_url})) as database:
        migrations.require(database)
        try:
            gone = Deletion(database, actor="command line").tenant(tenant)
        except NotFoundError:
            raise InvalidProblemError.of("TENANT", "there is no such tenant") from None
    typer.echo(", ".join(f"{rows} {name.replace('_', ' ')}" for name, rows in gone.items()) + " deleted")


@app.command("backup")
def backup_command(
    target: Annotated[Path, typer.Argument(help="File to write (replaces an existing one).")],
    database_url: Annotated[
        str | None, typer.Option(help="Database URL [default: MESHWRIGHT_DATABASE_URL]")
    ] = None,
) -> None:
    """Copy the records while the service runs. Copies the SQLite file, or PostgreSQL by pg_dump."""
    url = settings_with({"database_url": database_url}).database_url
    source = sqlite_path(url)
    try:
        size_bytes = dump(make_url(url), target) if source is None else back_up(source, target)
    except BackupError as fault:
        raise InvalidProblemError.of("backup", str(fault)) from None
    typer.echo(f"{shown_path(target)}  {size_bytes} bytes")


@app.command("restore")
def restore_command(
    source: Annotated[Path, typer.Argument(help="A file that backup wrote.")],
    database_url: Annotated[
        str | None, typer.Option(help="Database URL [default: MESHWRIGHT_DATABASE_URL]")
    ] = None,
) -> None:
    """Put a copy in the place of the records. Stop the service first."""
    url = settings_with({"database_url": database_url}).database_url
    target = sqlite_path(url)
    made = datetime.fromtimestamp(source.stat().st_mtime, UTC) if source.is_file() else None
    try:
        if target is None:
            restore_dump(source, make_url(url))
        else:
            restore(source, target)
    except (BackupError, ServerStartError) as fault:
        raise InvalidProblemError.of("restore", str(fault)) from None
    typer.echo(f"restored from {shown_path(source)}")
    if made is not None:
        at = f"{made:%Y-%m-%dT%H:%M}Z"
        revived = f"keys and links that were revoked after the copy of {at} work again"
        say_warnings([f"{revived}: meshwright keys revoke-since {at}"])
