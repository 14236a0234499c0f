"""Time as the database sees it; the clocks of workers and API hosts never decide anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Double, select
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


MAX_PAUSE_S = 60.0  # between two looks that are compared
MIN_STEP_S = 30.0  # less is a late sweep, or a clock that is kept right


class ClockWatch:
    """Compares the database's clock with a steady one; a machine that sleeps counts as a step.

    Args:
        steady_s: A clock in seconds that is never set.
    """

    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._last: tuple[float, float] | None = None

    def look(self, connection: Connection) -> tuple[float, tuple[float, float]]:
        """Return the seconds by which the database's clock was set since the last look, and this look.

        A look of long ago does not count: another process has led, and seen the step.
        """
        seen = connection.execute(select(now_s())).scalar_one(), self._steady_s()
        if self._last is None or seen[1] - self._last[1] > MAX_PAUSE_S:
            return 0.0, seen
        return (seen[0] - self._last[0]) - (seen[1] - self._last[1]), seen

    def keep(self, seen: tuple[float, float]) -> None:
        """Compare the next look with this one, as what followed from it is stored."""
        self._last = seen
