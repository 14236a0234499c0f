"""One database, SQLite or PostgreSQL, and its two kinds of transaction: read and write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import InterfaceError, OperationalError, TimeoutError  # noqa: A004 - the pool's
from sqlalchemy.pool import ConnectionPoolEntry

BUSY_TIMEOUT_MS = 5_000  # how long a SQLite writer waits for another one
POOL_TIMEOUT_S = 5.0

# The database is away, locked or full: trying again later is right. Every other error of it is a bug.
DATABASE_AWAY = (OperationalError, InterfaceError, TimeoutError)


class Database:
    """Connections to one database; safe to share between threads, never between processes."""

    def __init__(self, url: str) -> None:
        self.url: URL = make_url(url)
        self._engine = _engine(self.url)

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._engine.dialect.name

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads; on SQLite it never waits for a writer."""
        options = {"read_only": True} if self.dialect == "sqlite" else {}
        with self._engine.connect().execution_options(**options) as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is committed at the end of the block, or rolled back by an exception."""
        with self._engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close every pooled connection."""
        self._engine.dispose()


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite URL; None for every other database."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or parsed.database is None:
        return None
    return Path(parsed.database)


def compact_json(value: object) -> str:
    """JSON without spaces; NaN and infinities raise ValueError."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _engine(url: URL) -> Engine:
    """The engine, its pool and, on SQLite, its pragmas."""
    pool = {"pool_size": 8, "max_overflow": 32, "pool_timeout": POOL_TIMEOUT_S}
    if url.get_backend_name() != "sqlite":
        timeouts = {"connect_timeout": 5, "application_name": "meshwright"}
        return create_engine(
            url, json_serializer=compact_json, pool_pre_ping=True, connect_args=timeouts, **pool
        )
    engine = create_engine(url, json_serializer=compact_json, **pool)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


class _SqliteConnection(Protocol):
    """The part of ``sqlite3.Connection`` that is set up here."""

    isolation_level: str | None

    def execute(self, sql: str) -> object: ...


def _prepare_sqlite(connection: _SqliteConnection, _entry: ConnectionPoolEntry) -> None:
    """Let us begin transactions ourselves; readers beside one writer; foreign keys hold."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    """Writers take the lock at once: a deferred writer that has read fails instead of waiting."""
    read_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
