"""Runs the migrations, the only way the schema changes, and decides which code can serve which schema.

A migration adds first and removes in a later release. It declares ``oldest_code``: the revision at which
code can live with the schema after it. The database keeps that, so that an older release, which does not
know the migration, can read it.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from sqlalchemy import Connection, column, delete, insert, inspect, select, table

from meshwright.service.db.database import Database, until_locked
from meshwright.service.db.tables import schema_compatibility

if TYPE_CHECKING:  # a server that finds its schema current does without it: 0.1 CPU s
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import Script

_VERSION = table("alembic_version", column("version_num"))
_SCRIPTS = Path(__file__).parents[2] / "migrations"
LINTED_FROM = "0014"  # migrations after this one change a database that is in use

Fit = Literal["current", "newer", "outdated", "unsupported"]


class UnsupportedSchemaError(Exception):
    """The schema is of another release, and this one cannot do what was asked with it."""


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the schema to ``revision``; does nothing when it is there, or is newer and can be served.

    Raises:
        UnsupportedSchemaError: a newer release changed it in a way that this one cannot serve.
    """
    if revision == "head":
        found, at = _look(database)
        if found == "unsupported":
            raise UnsupportedSchemaError(_advice(found, at))
        if found != "outdated":
            return
    from alembic import command  # noqa: PLC0415 - see above

    _run(database, command.upgrade, revision)


def downgrade(database: Database, revision: str) -> None:
    """Take the schema back to ``revision``; ``base`` removes everything.

    Raises:
        UnsupportedSchemaError: this release does not know the revision, or that of the schema.
    """
    if revision != "base" and revision not in known():
        raise UnsupportedSchemaError(f"{revision}: no such revision. Allowed: base, {', '.join(known())}")
    found = current(database)
    if found is not None and found not in known():
        raise UnsupportedSchemaError(
            f"a newer release made revision {found}: run `meshwright db downgrade` with that release"
        )
    if revision != "base" and (found is None or found < revision):
        raise UnsupportedSchemaError(f"{revision}: the schema is at {found}, which is older")
    from alembic import command  # noqa: PLC0415 - see above

    _run(database, command.downgrade, revision)


def current(database: Database) -> str | None:
    """Return the revision the schema is at; None when it is empty."""
    with database.read() as connection:
        return _current(connection)


def fit(database: Database) -> Fit:
    """Return whether this code can serve the schema: if it is ``current``, or ``newer`` and compatible.

    ``outdated``: the schema lacks migrations; ``unsupported``: a newer release made it incompatible.
    """
    return _look(database)[0]


def require(database: Database) -> None:
    """Require a schema that this code can serve.

    Raises:
        UnsupportedSchemaError: it is another one; the message names the command that changes it.
    """
    found, at = _look(database)
    if found not in {"current", "newer"}:
        raise UnsupportedSchemaError(_advice(found, at))


@cache
def known() -> tuple[str, ...]:
    """Return the revisions that this code knows, oldest first; the file of each begins with its own."""
    return tuple(sorted(path.name[:4] for path in (_SCRIPTS / "versions").glob("[0-9]*.py")))


@cache
def head() -> str:
    """Return the newest revision this code knows."""
    if not known():
        raise RuntimeError("the migrations are missing from this installation")
    return known()[-1]


def oldest_code(revision: str) -> str:
    """Return the revision of the oldest code that can live with the schema at ``revision``."""
    return max(
        getattr(one.module, "oldest_code", one.revision) for one in _scripts() if one.revision <= revision
    )


def note_compatibility(
    ctx: MigrationContext, step: object, heads: Collection[str], run_args: object
) -> None:
    """Keep the oldest code that can serve the schema, in the transaction of each migration."""
    del step, run_args  # Alembic gives them by name
    connection, revision = ctx.connection, max(heads, default="")
    if connection is None or revision <= LINTED_FROM:  # an older schema has no place for it
        return
    connection.execute(delete(schema_compatibility))
    connection.execute(insert(schema_compatibility).values(oldest_code=oldest_code(revision)))


def as_sql() -> str:
    """Return the statements with which migrations change a PostgreSQL that is in use."""
    from alembic import command  # noqa: PLC0415 - see above

    text = io.StringIO()
    config = _config()
    config.output_buffer = text
    command.upgrade(config, f"{LINTED_FROM}:head", sql=True)
    return text.getvalue()


@cache
def _scripts() -> tuple[Script, ...]:
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see above

    return tuple(ScriptDirectory(str(_SCRIPTS)).walk_revisions())


def _look(database: Database) -> tuple[Fit, str | None]:
    """Return how this code fits the schema, and the schema's revision, from one reading."""
    with database.read() as connection:
        at = _current(connection)
        if at == head():
            return "current", at
        if at is None or at in known():
            return "outdated", at
        oldest = connection.execute(select(schema_compatibility.c.oldest_code)).scalar_one_or_none()
    return "newer" if oldest in known() else "unsupported", at


def _advice(found: Fit, at: str | None) -> str:
    if found != "unsupported":
        return "the database schema is not current. Run: meshwright db upgrade"
    return (
        f"the database schema {at} belongs to a newer Meshwright. Update this one, or run with "
        f"that release: meshwright db downgrade {head()}"
    )


def _current(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION.name):
        return None
    revision: str | None = connection.execute(select(_VERSION.c.version_num)).scalar_one_or_none()
    return revision


def _config() -> Config:
    from alembic.config import Config  # noqa: PLC0415 - see above

    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    return config


def _run(database: Database, run: _Command, revision: str) -> None:
    """Run one Alembic command; one that did not get its locks in time is run again from where it was."""

    def once() -> None:
        config = _config()
        with database.migrating() as connection:
            config.attributes["connection"] = connection
            run(config, revision)

    until_locked(once)


class _Command(Protocol):
    """``alembic.command.upgrade`` or ``downgrade``."""

    def __call__(self, config: Config, revision: str) -> None: ...


if __name__ == "__main__":
    sys.stdout.write(as_sql())
