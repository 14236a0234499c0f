"""``meshwright keys``: who may call a service, made and ended beside its database."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Keys of a service.", no_args_is_help=True)

DatabaseUrl = Annotated[str | None, typer.Option(help="Default: the settings'.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")]


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="Whose records it opens.")] = "default",
    scope: Annotated[str, typer.Option(help="read, submit or admin; each includes the former.")] = "submit",
    title: Annotated[str, typer.Option(help="What it is for.")] = "",
    expires_in_days: Annotated[float | None, typer.Option(help="Default: never.")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key and print it, once; from then on the service demands keys."""
    from service.cli import key_commands  # noqa: PLC0415 - the database is loaded when it is needed

    given = {"tenant": tenant, "scope": scope, "title": title, "expires_in_days": expires_in_days}
    typer.echo(key_commands.create(database_url, given))


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Default: every tenant.")] = None,
    json_output: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List keys, newest first; their secrets are not kept."""
    from service.cli import key_commands  # noqa: PLC0415 - the same

    key_commands.show(database_url, tenant, as_json=json_output)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key.")], database_url: DatabaseUrl = None
) -> None:
    """End a key for good."""
    from service.cli import key_commands  # noqa: PLC0415 - the same

    key_commands.revoke(database_url, key_id)
    typer.echo(f"{key_id}  revoked")
