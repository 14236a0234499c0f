"""One database, SQLite or PostgreSQL, and its two kinds of transaction: read and write."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Protocol, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url, update
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.exc import (
    DisconnectionError,
    InterfaceError,
    OperationalError,
    TimeoutError,  # noqa: A004 - the pool's
)
from sqlalchemy.pool import ConnectionPoolEntry

from meshwright.service.db.grouping import Grouping, WritersTimeoutError
from meshwright.service.db.tables import schema_compatibility
from meshwright.service.stored import read_document

Made = TypeVar("Made")
BUSY_TIMEOUT_MS = 5_000  # how long a SQLite writer waits for another one
PROBE_MS = 100  # how long the question whether it takes writes waits for another writer
POOL_TIMEOUT_S = 5.0
PRIVATE = 0o600  # of a SQLite file and its journals: they hold every tenant's records
RECYCLE_S = 600.0  # a SQLite connection reads statistics when it is opened
ANALYSED_ROWS = 1_000  # of each index: milliseconds, however long the table
# A client that froze inside a transaction keeps its locks no longer than this, and no other client waits
# longer for one: less than a lease, so that another worker takes over in time.
PATIENCE = "-c idle_in_transaction_session_timeout=5000 -c lock_timeout=5000"
# A server that vanished without a word is noticed; else a worker would wait a quarter of an hour (Linux's
# tcp_retries2) or two (tcp_keepalive_time) for its answer.
KEEPALIVE = {
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
CONNECT_TIMEOUT_S = 5
POSTGRESQL_PORT = 5432
WAIT_LOOK_S = 0.25  # between two looks at a server that is starting
WAIT_TOLD_S = 5.0  # between two sentences about it
PING_AFTER_S = 1.0  # of idleness; a connection that broke sooner costs one request a 503

REMEMBER_S = 1.0  # anybody may ask whether the service is ready, which writes no more often
_SAME = {schema_compatibility.c.oldest_code: schema_compatibility.c.oldest_code}

# SQLSTATEs (PostgreSQL 18, appendix A): read_only_sql_transaction, idle_in_transaction_session_timeout,
# transaction_timeout.
AWAY_STATES = frozenset({"25006", "25P03", "25P04"})

# SQLSTATEs lock_not_available and deadlock_detected: another transaction was first.
_LOST_LOCKS = frozenset({"55P03", "40P01"})
MAX_LOCK_TRIES = (
    20  # of a statement that waited 5 s for a lock, or was in a deadlock; others go on in between
)
LOCK_PAUSE_S = 1.0

# SQLSTATEs disk_full and internal_error; PostgreSQL has no code for quotas and limits on files.
DISK_FULL, _INTERNAL = "53100", "XX000"
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
ROOM_BYTES = 2**20  # by which a SQLite file with room can grow: most transactions are smaller

# The database is away, locked or full: trying again later is right. Every other error of it is a bug.
DATABASE_AWAY = (OperationalError, InterfaceError, TimeoutError)


class DatabaseSilentError(Exception):
    """No database server took connections in time; the message names it and the time."""


class Database:
    """Connections to one database; safe to share between threads, never between processes."""

    def __init__(self, url: str) -> None:
        self.url: URL = make_url(url)
        self._engine = _engine(self.url)
        whole = {"writes": True} if self.dialect == "sqlite" else {"isolation_level": "READ COMMITTED"}
        self._writer = self._engine.execution_options(**whole)
        self._takes_writes: bool | None = None
        self._ask_again_at = 0.0
        self._asking = threading.Lock()
        self._grouping = (
            Grouping(self._writer, timeout_s=BUSY_TIMEOUT_MS / 1000) if self.dialect == "sqlite" else None
        )

    @property
    def dialect(self) -> str:
        """Return ``sqlite`` or ``postgresql``."""
        return self._engine.dialect.name

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a connection to read from; on SQLite it never waits for a writer.

        Each statement sees what is committed as it begins. A transaction around it would take longer than
        the statement.
        """
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction: committed at the end of the block, or rolled back by an exception."""
        with self._grouping.turn() if self._grouping else nullcontext(), self._writer.begin() as connection:
            yield connection

    def write_together(self, work: Callable[[Connection], Made], *, by_one_statement: bool = False) -> Made:
        """Return the result of ``work`` after a commit, which the work of other threads may share.

        Args:
            work: what reads and writes.
            by_one_statement: only one statement of it writes. PostgreSQL commits that by itself, which
                saves the two round trips of a transaction.

        Raises:
            Exception: what the work, or the commit, failed with; then nothing of it is kept.
        """
        if self._grouping:
            return self._grouping.write(work)
        with self._engine.connect() if by_one_statement else self.write() as connection:
            return work(connection)  # PostgreSQL lets commits share a sync by itself

    def write_patiently(self, work: Callable[[Connection], Made]) -> Made:
        """Return the result of ``work`` after its commit; run it again where others had its locks.

        For work that holds locks of many tenants at once, as retention does: such a transaction can be in
        a deadlock with a migration.
        """

        def once() -> Made:
            with self.write() as connection:
                return work(connection)

        return until_locked(once)

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """Open a connection to change the schema with: in a transaction on SQLite, else in its own."""
        if self._grouping:
            with self.write() as connection:
                yield connection
        else:
            with self._writer.connect() as connection:
                yield connection

    def note_statistics(self) -> None:
        """Let SQLite look at its tables, to choose indexes well; PostgreSQL does so by itself."""
        if self.dialect == "sqlite":
            with self.write() as connection:
                connection.exec_driver_sql(f"PRAGMA analysis_limit = {ANALYSED_ROWS}")
                connection.exec_driver_sql("ANALYZE")

    def takes_writes(self) -> bool:
        """Return whether a row can be written now, or could a moment ago.

        One thread asks the database; the others get its last answer, and wait only for the first one.
        A SQLite file that another process is writing to takes writes.
        """
        late = time.monotonic() >= self._ask_again_at
        if late and self._asking.acquire(blocking=self._takes_writes is None):
            try:
                if time.monotonic() >= self._ask_again_at:
                    self._takes_writes = self._try_write()
                    self._ask_again_at = time.monotonic() + REMEMBER_S
            finally:
                self._asking.release()
        return bool(self._takes_writes)

    def _try_write(self) -> bool:
        write = self._write_briefly() if self._grouping else self.write()
        try:
            with write as connection:
                connection.execute(update(schema_compatibility).values(_SAME))
        except DATABASE_AWAY as fault:
            return _is_busy(fault)
        return True

    @contextmanager
    def _write_briefly(self) -> Iterator[Connection]:
        """Open a SQLite transaction to write, and wait for other writers no longer than ``PROBE_MS``."""
        turn = self._grouping.turn(within_s=PROBE_MS / 1000) if self._grouping else nullcontext()
        with turn, self._engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {PROBE_MS}")
            try:
                yield connection
                connection.commit()
            except Exception:
                connection.invalidate()  # a commit that failed, as on a full disk, leaves a transaction
                raise
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")

    def await_server(self, *, within_s: float, tell: Callable[[str], None]) -> None:
        """Wait for a PostgreSQL that is still starting; a SQLite file needs no server.

        Asks as ``pg_isready`` does (PQping, PostgreSQL 18 documentation, section 32.1): a wrong password or
        an unknown database is an answer, and not waited for. ``tell`` receives a sentence now and then.

        Raises:
            DatabaseSilentError: no server took connections within ``within_s`` seconds.
        """
        if self.dialect == "sqlite":
            return
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - SQLite does without psycopg
        from psycopg.pq import PGconn, Ping  # noqa: PLC0415

        _, options = self._engine.dialect.create_connect_args(self.url)
        plain = {name: value for name, value in options.items() if isinstance(value, str | int)}
        conninfo = make_conninfo("", **{"connect_timeout": CONNECT_TIMEOUT_S, **plain}).encode()
        where = f"{self.url.host or 'the local socket'}:{self.url.port or POSTGRESQL_PORT}"
        began_s, told_s = time.monotonic(), -WAIT_TOLD_S
        while (found := PGconn.ping(conninfo)) != Ping.OK:
            waited_s = time.monotonic() - began_s
            why = "is starting or stopping" if found == Ping.REJECT else "does not answer"
            if waited_s >= within_s or found == Ping.NO_ATTEMPT:  # the address itself cannot be asked
                raise DatabaseSilentError(f"PostgreSQL at {where} {why}; waited {within_s:g} s for it")
            if waited_s - told_s >= WAIT_TOLD_S:
                tell(
                    f"PostgreSQL at {where} {why}; waiting for it, {within_s - waited_s:.0f} s more at most"
                )
                told_s = waited_s
            time.sleep(min(WAIT_LOOK_S, within_s - waited_s))

    def is_full(self, fault: Exception) -> bool:
        """Return whether ``fault`` came from a full disk, or a quota that is used up."""
        cause = getattr(fault, "orig", None)
        if _sqlite_kind(cause) == sqlite3.SQLITE_IOERR:  # what SQLite makes of a quota
            return self.url.database is not None and _has_no_room(Path(self.url.database))
        return _sqlite_kind(cause) == sqlite3.SQLITE_FULL or _is_full_server(cause)

    def close(self) -> None:
        """Close every pooled connection."""
        self._engine.dispose()


def until_locked(attempt: Callable[[], Made]) -> Made:
    """Return the result of ``attempt``, made again while it does not get its locks in time.

    Raises:
        OperationalError: the last of ``MAX_LOCK_TRIES`` did not get them either, or something else failed.
    """
    for _ in range(MAX_LOCK_TRIES - 1):
        try:
            return attempt()
        except OperationalError as fault:
            if getattr(fault.orig, "sqlstate", None) not in _LOST_LOCKS:
                raise
            time.sleep(LOCK_PAUSE_S)
    return attempt()


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite URL; None for every other database."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or parsed.database is None:
        return None
    return Path(parsed.database)


def compact_json(value: object) -> str:
    """Return JSON without spaces; NaN and infinities raise ValueError."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def _engine(url: URL) -> Engine:
    documents = {"json_serializer": compact_json, "json_deserializer": read_document}
    pool = {"pool_size": 8, "max_overflow": 32, "pool_timeout": POOL_TIMEOUT_S}
    logs = {"hide_parameters": True}  # an error names its statement, and nothing that a tenant has stored
    if url.get_backend_name() != "sqlite":
        engine = create_engine(
            url, isolation_level="AUTOCOMMIT", connect_args=_manners(url), **documents, **pool, **logs,
        )  # fmt: skip
        event.listen(engine, "checkin", _note_use)
        event.listen(engine, "checkout", partial(_require_alive, engine))
        event.listen(engine, "handle_error", _tell_away)
        return engine
    engine = create_engine(url, pool_recycle=RECYCLE_S, **documents, **pool, **logs)
    if url.database is not None:
        event.listen(engine, "do_connect", partial(_make_private, Path(url.database)))
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _is_full_server(cause: BaseException | None) -> bool:
    refusals = [os.strerror(number) for number in _NO_ROOM]
    return getattr(cause, "sqlstate", None) == DISK_FULL or (
        getattr(cause, "sqlstate", None) == _INTERNAL and any(one in str(cause) for one in refusals)
    )


def _has_no_room(file: Path) -> bool:
    """Return whether no file of the same folder can become ``ROOM_BYTES`` longer than ``file``."""
    try:
        with TemporaryFile(dir=file.parent) as probe:
            probe.seek(
                max(_size_bytes(file.with_name(file.name + end)) for end in ("", "-wal", "-journal"))
            )
            probe.write(bytes(ROOM_BYTES))
    except OSError as refusal:
        return refusal.errno in _NO_ROOM
    return False


def _size_bytes(file: Path) -> int:
    """Return the length of a file; 0 of one that is not there, as SQLite deletes its journals."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _is_busy(fault: Exception) -> bool:
    """Return whether others were writing to a SQLite file: this process, or another one."""
    is_busy = isinstance(fault, OperationalError) and _sqlite_kind(fault.orig) == sqlite3.SQLITE_BUSY
    return is_busy or isinstance(fault, WritersTimeoutError)


def _sqlite_kind(cause: BaseException | None) -> int:
    """Return the kind of an error of SQLite: extended codes keep it in the lowest byte."""
    return cause.sqlite_errorcode & 0xFF if isinstance(cause, sqlite3.OperationalError) else 0


def _manners(url: URL) -> dict[str, object]:
    """Return the options of connections to PostgreSQL; those in the URL take precedence."""
    usual = {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "meshwright", **KEEPALIVE}
    given = url.query.get("options", "")
    own = given if isinstance(given, str) else " ".join(given)
    return {
        **{name: value for name, value in usual.items() if name not in url.query},
        "options": f"{PATIENCE} {own}".strip(),
    }


def _tell_away(context: ExceptionContext) -> None:
    """Report a server as away if it ended an idle transaction, lost its lead, or has no room.

    psycopg calls these internal errors, which are bugs elsewhere.

    Raises:
        OperationalError: instead of them.
    """
    fault = context.original_exception
    if getattr(fault, "sqlstate", None) in AWAY_STATES:
        context.is_disconnect = True
        raise OperationalError(context.statement, None, fault, connection_invalidated=True)
    if _is_full_server(fault):
        raise OperationalError(context.statement, None, fault)


def _note_use(_connection: DBAPIConnection | None, entry: ConnectionPoolEntry) -> None:
    entry.info["used_at_s"] = time.monotonic()


def _require_alive(
    engine: Engine, connection: DBAPIConnection, entry: ConnectionPoolEntry, _proxy: object
) -> None:
    """Ask a connection that was idle whether it still is one; else the pool makes another."""
    if time.monotonic() - entry.info.get("used_at_s", time.monotonic()) < PING_AFTER_S:
        return
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        raise DisconnectionError from None


def keep_private(path: Path) -> None:
    """Keep other users from a SQLite file, its journals and its lock, which they could hold.

    SQLite gives new journals the file's mode.
    """
    for suffix in ("", "-wal", "-shm", ".lock"):
        file = path.with_name(path.name + suffix)
        with suppress(FileNotFoundError):
            if stat.S_IMODE(file.stat().st_mode) & ~PRIVATE:
                file.chmod(PRIVATE)


def _make_private(path: Path, *_arguments: object) -> None:
    """Make a new file for its owner alone, before SQLite makes it as the umask allows."""
    with suppress(OSError):  # it is there, or SQLite names what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE))


class _SqliteConnection(Protocol):
    """The part of ``sqlite3.Connection`` that is set up here."""

    isolation_level: str | None

    def execute(self, sql: str) -> object: ...


def _prepare_sqlite(connection: _SqliteConnection, _entry: ConnectionPoolEntry) -> None:
    """Let us begin transactions ourselves; allow readers during a write; enforce foreign keys."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")


def _begin_sqlite(connection: Connection) -> None:
    """Begin writers with the lock: a deferred writer that has read fails instead of waiting."""
    if connection.get_execution_options().get("writes", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
