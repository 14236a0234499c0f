"""Time as the database sees it; the clocks of workers and API hosts never decide anything."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Double
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class now_s(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """Seconds since 1970 by the database's own clock, as a double."""

    type = Double()
    inherit_cache = True


@compiles(now_s, "postgresql")
def _on_postgresql(_element: now_s, _compiler: SQLCompiler, **_options: Any) -> str:  # noqa: ANN401
    """``clock_timestamp`` moves on inside a transaction; ``now`` would not.

    As a subquery it is read once a statement, and so a condition can use an index.
    """
    return "(SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION))"


@compiles(now_s, "sqlite")
def _on_sqlite(_element: now_s, _compiler: SQLCompiler, **_options: Any) -> str:  # noqa: ANN401
    """Julian days to seconds: 2440587.5 is 1970-01-01; milliseconds, also before SQLite 3.42."""
    return "((julianday('now') - 2440587.5) * 86400.0)"
