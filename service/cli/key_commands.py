"""What ``meshwright keys`` does: reads and writes keys in the service's database."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from rich.table import Table
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from profiles.errors import InvalidProblemError
from service.cli.configured import settings_with
from service.cli.schema import DatabaseUnreachableError
from service.cli.screen import screen
from service.db import migrations
from service.db.database import Database, sqlite_path
from service.db.key_records import KeyRecord
from service.errors import NotFoundError
from service.keys import Keys, NewKey

SHOWN = 1000


def create(database_url: str | None, given: Mapping[str, Any]) -> str:
    """The token of a new key.

    Raises:
        InvalidProblemError: an option is wrong.
        DatabaseUnreachableError: the database cannot be reached, or its schema is another one.
    """
    try:
        new = NewKey(**given)
    except InvalidProblemError as fault:
        options = (f"--{error.pointer[1:].replace('_', '-')}" for error in fault.errors)
        named = zip(fault.errors, options, strict=True)
        raise InvalidProblemError(replace(error, pointer=option) for error, option in named) from None
    with _keys(database_url) as keys:
        return keys.create(new)[1]


def show(database_url: str | None, tenant: str | None, *, as_json: bool) -> None:
    """The newest keys, one line each."""
    with _keys(database_url) as keys:
        found = keys.page(tenant, page_size=SHOWN).items
    if as_json:
        sys.stdout.write(json.dumps([asdict(key) for key in found], indent=1) + "\n")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("key", "tenant", "scope", "created", "state", "title"):
        table.add_column(title, no_wrap=True)
    for key in found:
        cells = (key.id, key.tenant, key.scope, _day(key.created_at_s), _state(key), key.title)
        table.add_row(*(Text(cell) for cell in cells))
    screen().print(table)


def revoke(database_url: str | None, key_id: str) -> None:
    """End a key for good.

    Raises:
        InvalidProblemError: there is no such key.
    """
    with _keys(database_url) as keys:
        try:
            keys.revoke(key_id)
        except NotFoundError:
            raise InvalidProblemError.of("KEY_ID", "there is no such key") from None


@contextmanager
def _keys(database_url: str | None) -> Iterator[Keys]:
    """The keys of a database; the schema of a SQLite file is brought up to date first."""
    settings = settings_with({"database_url": database_url})
    path = sqlite_path(settings.database_url)
    database = Database(settings.database_url)
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if settings.migrates:
            migrations.upgrade(database)
        yield Keys(database, actor="command line")
    except (SQLAlchemyError, OSError) as fault:
        raise DatabaseUnreachableError(f"the keys cannot be reached ({type(fault).__name__})") from None
    finally:
        database.close()


def _day(time_s: float) -> str:
    """Seconds since 1970 as a day and a time in UTC."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")


def _state(key: KeyRecord) -> str:
    """Usable until when, or why not any more."""
    if key.revoked_at_s is not None:
        return "revoked"
    if key.expires_at_s is None:
        return "usable"
    return f"usable until {_day(key.expires_at_s)}" if key.usable else "expired"
