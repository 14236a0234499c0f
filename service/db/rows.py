"""Rows as records, and the queries that every list of rows shares."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Executable, Select, Table, func, null, or_, tuple_

MAX_NAMES = 500  # in one statement; SQLite of some age allows 999 parameters
Record = TypeVar("Record")


def one_of(
    connection: Connection, kind: type[Record], query: Executable, given: Mapping[str, Any] | None = None
) -> Record | None:
    """Return the row of a query as a record; None: there is none."""
    row = connection.execute(query, given).mappings().one_or_none()
    return None if row is None else kind(**row)


def added_to(connection: Connection, kind: type[Record], insert: Executable) -> Record:
    """Add a row, and return it as a record."""
    return kind(**connection.execute(insert).mappings().one())


def all_of(
    connection: Connection, kind: type[Record], query: Executable, given: Mapping[str, Any] | None = None
) -> list[Record]:
    """Return the rows of a query as records."""
    return [kind(**row) for row in connection.execute(query, given).mappings()]


def newest_first(
    query: Select[Any], table: Table, *, before: tuple[float, str] | None, limit: int
) -> Select[Any]:
    """Return up to ``limit`` rows, newest first, after the position ``before`` (created_at_s, id)."""
    if before is not None:
        query = query.where(tuple_(table.c.created_at_s, table.c.id) < before)
    return query.order_by(table.c.created_at_s.desc(), table.c.id.desc()).limit(limit)


def in_parts(names: Collection[str]) -> Iterator[list[str]]:
    """Yield names in parts that fit into one statement."""
    rest = iter(names)
    while part := list(islice(rest, MAX_NAMES)):
        yield part


def readable(connection: Connection, *columns: Column[Any]) -> list[ColumnElement[bool]]:
    """Return the conditions that columns hold JSON, or nothing: PostgreSQL keeps nothing else in them."""
    if connection.dialect.name != "sqlite":
        return []
    # json_valid of NULL is 0 in some releases of SQLite and NULL in others
    return [or_(one.is_(null()), func.json_valid(one) == 1) for one in columns]
