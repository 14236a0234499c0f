"""Runs the migrations; they are the only way the schema changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Protocol

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from meshwright.service.db.database import Database

_SCRIPTS = Path(__file__).parents[2] / "migrations"


def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the schema to ``revision``; does nothing when it is there."""
    if revision != "head" or current(database) != head():
        _run(database, command.upgrade, revision)


def downgrade(database: Database, revision: str) -> None:
    """Take the schema back to ``revision``; ``base`` removes everything."""
    _run(database, command.downgrade, revision)


def current(database: Database) -> str | None:
    """Return the revision the schema is at; None when it is empty."""
    with database.read() as connection:
        return MigrationContext.configure(connection).get_current_revision()


@cache
def head() -> str:
    """Return the newest revision this code knows."""
    revision = ScriptDirectory(str(_SCRIPTS)).get_current_head()
    if revision is None:
        raise RuntimeError("the migrations are missing from this installation")
    return revision


def _run(database: Database, run: _Command, revision: str) -> None:
    """Run one Alembic command inside one write transaction, so that it happens wholly or not at all."""
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    with database.write() as connection:
        config.attributes["connection"] = connection
        run(config, revision)


class _Command(Protocol):
    """``alembic.command.upgrade`` or ``downgrade``."""

    def __call__(self, config: Config, revision: str) -> None: ...
