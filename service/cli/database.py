"""``meshwright db``: the schema of the records, and copies of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="The records: schema and copies.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """The records: schema and copies."""


@app.command()
def upgrade(
    database_url: Annotated[str | None, typer.Option(help="Default: the settings'.")] = None,
) -> None:
    """Bring the schema to its newest revision."""
    from service.cli.schema import upgrade_schema  # noqa: PLC0415 - the database is loaded when it is needed

    typer.echo(f"the schema is at revision {upgrade_schema(database_url)}")


@app.command()
def check(
    database_url: Annotated[str | None, typer.Option(help="Default: the settings'.")] = None,
) -> None:
    """Say whether the schema is the one this version needs; exit 2 if not."""
    from service.cli.schema import check_schema  # noqa: PLC0415 - the same

    typer.echo(check_schema(database_url))


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="File to write; replaced when it is there.")],
    database_url: Annotated[str | None, typer.Option(help="Default: the settings'.")] = None,
) -> None:
    """Copy the SQLite file while the service runs; PostgreSQL has pg_dump."""
    from service.cli.copies import back_up_records  # noqa: PLC0415 - the same

    typer.echo(back_up_records(database_url, target))


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(help="A file that backup wrote.")],
    database_url: Annotated[str | None, typer.Option(help="Default: the settings'.")] = None,
) -> None:
    """Put a copy in the place of the SQLite file; the service must be stopped."""
    from service.cli.copies import restore_records  # noqa: PLC0415 - the same

    typer.echo(restore_records(database_url, source))
