"""Alembic's entry: runs migrations on the connection that meshwright.service.db.migrations hands over."""

from __future__ import annotations

import time

from alembic import context
from sqlalchemy import Connection, text

from meshwright.service.db.migrations import note_compatibility
from meshwright.service.db.tables import metadata

MIGRATION_LOCK = 6_377_421  # any number, as long as no other advisory lock uses it
LOOK_S = 0.1  # between two tries to get the lock


def run_migrations() -> None:
    """Migrate in one transaction on SQLite; on PostgreSQL in one each, or none, under a lock."""
    if context.is_offline_mode():  # the statements of PostgreSQL as text, for the linter
        context.configure(dialect_name="postgresql", transaction_per_migration=True)
        context.run_migrations()
        return
    connection: Connection = context.config.attributes["connection"]
    if connection.dialect.name == "sqlite":
        _run(connection, each=False)
        return
    _take_turn(connection)
    try:
        _run(connection, each=True)
    finally:
        connection.rollback()
        connection.execute(text("SELECT pg_advisory_unlock(:lock)"), {"lock": MIGRATION_LOCK})
        connection.commit()


def _run(connection: Connection, *, each: bool) -> None:
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
        transaction_per_migration=each,
        on_version_apply=note_compatibility,
    )
    with context.begin_transaction():
        context.run_migrations()


def _take_turn(connection: Connection) -> None:
    """Wait for the migration of another server, without a transaction that its index builds would await."""
    ask = text("SELECT pg_try_advisory_lock(:lock)")
    while not connection.execute(ask, {"lock": MIGRATION_LOCK}).scalar_one():
        connection.rollback()
        time.sleep(LOOK_S)
    connection.commit()


run_migrations()
