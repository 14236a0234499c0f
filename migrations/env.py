"""Alembic's entry: runs migrations on the connection that meshwright.service.db.migrations hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, text

from meshwright.service.db.tables import metadata

MIGRATION_LOCK = 6_377_421  # any number, as long as no other advisory lock uses it


def run_migrations() -> None:
    """Migrate under a lock, so that two starting servers take turns (SQLite locks by itself)."""
    connection: Connection = context.config.attributes["connection"]
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL lock_timeout = 0"))  # another one's turn may be a long one
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
        connection.execute(text("SET LOCAL lock_timeout TO DEFAULT"))  # the connection's own
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run_migrations()
