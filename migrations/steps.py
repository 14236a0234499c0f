"""Steps of migrations that run while the service does: indexes and batches outside of transactions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sa
from alembic import context, op

_INVALID = sa.text("SELECT NOT indisvalid FROM pg_index WHERE indexrelid = to_regclass(:name)")


@contextmanager
def outside_transactions() -> Iterator[None]:
    """Let every statement commit by itself on PostgreSQL; such a migration must bear to be run twice.

    On SQLite all migrations are one transaction: no other connection writes to the file meanwhile.
    """
    if op.get_context().dialect.name == "sqlite":
        yield
        return
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")  # a concurrent build waits for transactions, and holds up none
        op.execute("SET statement_timeout = 0")
        try:
            yield
        finally:  # the connection goes back to the pool
            op.execute("RESET lock_timeout")
            op.execute("RESET statement_timeout")


def add_index(name: str, table: str, columns: Sequence[str], *, where: str | None = None) -> None:
    """Build an index without holding up writers; call it ``outside_transactions``.

    PostgreSQL leaves an invalid index when such a build is interrupted, which is built anew.
    """
    condition = None if where is None else sa.text(where)
    if op.get_context().dialect.name == "sqlite":
        op.create_index(name, table, list(columns), sqlite_where=condition)
        return
    if not context.is_offline_mode() and op.get_bind().execute(_INVALID, {"name": name}).scalar():
        drop_index(name, table)
    op.create_index(
        name,
        table,
        list(columns),
        postgresql_where=condition,
        postgresql_concurrently=True,
        if_not_exists=True,
    )


def drop_index(name: str, table: str) -> None:
    """Drop an index without holding up writers; call it ``outside_transactions``."""
    if op.get_context().dialect.name == "sqlite":
        op.drop_index(name, table, if_exists=True)
    else:
        op.drop_index(name, table, if_exists=True, postgresql_concurrently=True)
