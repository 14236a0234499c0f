"""``meshwright db``: the schema of the records."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="The schema of the records.", no_args_is_help=True)


@app.callback()
def options() -> None:
    """The schema of the records."""


@app.command()
def upgrade(
    database_url: Annotated[str | None, typer.Option(help="Default: the settings'.")] = None,
) -> None:
    """Bring the schema to its newest revision."""
    from service.cli.schema import upgrade_schema  # noqa: PLC0415 - the database is loaded when it is needed

    typer.echo(f"the schema is at revision {upgrade_schema(database_url)}")
