"""``meshwright keys``: make, list and revoke keys in the service's database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated

import typer

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.cli.database import opened
from meshwright.service.cli.terminal import print_json, screen
from meshwright.service.db import migrations
from meshwright.service.db.database import Database, sqlite_path
from meshwright.service.db.key_records import KeyRecord
from meshwright.service.errors import NotFoundError
from meshwright.service.report.formatting import plain_table
from meshwright.service.settings import settings_with

app = typer.Typer(help="Keys of a service.", no_args_is_help=True)

DatabaseUrl = Annotated[str | None, typer.Option(help="Database URL [default: MESHWRIGHT_DATABASE_URL]")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, alone on stdout.")]
SHOWN = 1000


@app.command()
def create(
    *,
    tenant: Annotated[str, typer.Option(help="Tenant whose records the key can access.")] = "default",
    scope: Annotated[
        str, typer.Option(help="read, submit or admin. Each includes the one before.")
    ] = "submit",
    title: Annotated[str, typer.Option(help="Note about the purpose of the key.")] = "",
    expires_in_days: Annotated[
        float | None, typer.Option(help="Days until it expires [default: never].")
    ] = None,
    max_cpu_s_per_day: Annotated[
        float | None,
        typer.Option(help="CPU seconds of searches per day (UTC) [default: MESHWRIGHT_MAX_CPU_S_PER_DAY]"),
    ] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key and print it once. From then on the service demands keys."""
    try:
        new = NewKey(
            tenant=tenant,
            scope=scope,
            title=title,
            expires_in_days=expires_in_days,
            max_cpu_s_per_day=max_cpu_s_per_day,
        )
    except InvalidProblemError as fault:
        raise InvalidProblemError(
            replace(error, pointer=f"--{error.pointer[1:].replace('_', '-')}") for error in fault.errors
        ) from None
    with _keys(database_url) as keys:
        typer.echo(keys.create(new)[1])


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Default: every tenant.")] = None,
    json_output: AsJson = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List keys, newest first. Their secrets are not kept."""
    with _keys(database_url) as keys:
        found = keys.page(tenant, page_size=SHOWN).items
    if json_output:
        print_json([asdict(key) for key in found])
        return
    rows = (
        (key.id, key.tenant, key.scope, _day(key.created_at_s), _state(key), key.title) for key in found
    )
    screen().print(plain_table(("key", "tenant", "scope", "created", "state", "title"), rows))


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key.")],
    *,
    with_links: Annotated[
        bool, typer.Option("--with-links", help="Also end the share links that it made.")
    ] = False,
    database_url: DatabaseUrl = None,
) -> None:
    """End a key for good."""
    with _keys(database_url) as keys:
        try:
            links = keys.revoke(key_id, with_links=with_links)
        except NotFoundError:
            raise InvalidProblemError.of("KEY_ID", "there is no such key") from None
    typer.echo(f"{key_id}  revoked{f', with {links} links' if with_links else ''}")


@app.command("revoke-since")
def revoke_since(
    since: Annotated[
        datetime,
        typer.Argument(
            help="When the restored backup was made (UTC).",
            formats=["%Y-%m-%dT%H:%MZ", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"],
        ),
    ],
    *,
    seen_in: Annotated[
        str | None,
        typer.Option(
            help="URL of the database before the restore: end only what was revoked there since "
            "[default: end every key and link of the backup]."
        ),
    ] = None,
    keep: Annotated[list[str] | None, typer.Option(help="Id of a key that stays (repeat it).")] = None,
    database_url: DatabaseUrl = None,
) -> None:
    """End keys and links that a restore brought back. They were revoked since the backup."""
    since_s = since.replace(tzinfo=UTC).timestamp()
    before = None if seen_in is None else Database(settings_with({"database_url": seen_in}).database_url)
    with _keys(database_url) as keys:
        ended, links = keys.revoke_since(since_s, seen_in=before, keep=keep or ())
    if before is not None:
        before.close()
    typer.echo(f"{ended} keys and {links} share links revoked")


@contextmanager
def _keys(database_url: str | None) -> Iterator[Keys]:
    """The keys of a database; the schema of a SQLite file is brought up to date first."""
    settings = settings_with({"database_url": database_url})
    path = sqlite_path(settings.database_url)
    with opened(settings) as database:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if settings.migrates:
            migrations.upgrade(database)
        yield Keys(database, actor="command line")


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")


def _state(key: KeyRecord) -> str:
    if key.revoked_at_s is not None:
        return "revoked"
    if key.expires_at_s is None:
        return "usable"
    return f"usable until {_day(key.expires_at_s)}" if key.usable else "expired"
