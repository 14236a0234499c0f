"""Time as the database sees it; the clocks of workers and API hosts never decide anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Double, func, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from meshwright.service.db.tables import leaders


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


MAX_PAUSE_S = 60.0  # a step that the leader has not moved for so long was a sleep of this machine alone
MIN_STEP_S = 30.0  # less is a late look, or a clock that is kept right
CLOCK = "clock"  # a role in ``leaders``: its moment is the sum of all steps that moments were moved by


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLook:
    """The database's clock next to a steady one."""

    now_s: float
    steady_s: float
    took_s: float  # by the steady clock: how far the two may be apart
    moved_s: float  # the sum of all steps that moments in this database were moved by


class ClockWatch:
    """Compares the database's clock with a steady one; a machine that sleeps counts as a step.

    Args:
        steady_s: A clock in seconds that is never set.
    """

    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._last: ClockLook | None = None

    def look(self, connection: Connection) -> ClockLook:
        """Return both clocks now, and how far moments were moved until now."""
        moved_s = select(leaders.c.expires_at_s).where(leaders.c.role == CLOCK).scalar_subquery()
        began_s = self._steady_s()
        now, moved = connection.execute(select(now_s(), func.coalesce(moved_s, 0.0))).one()
        return ClockLook(now_s=now, steady_s=began_s, took_s=self._steady_s() - began_s, moved_s=moved)

    def step_s(self, seen: ClockLook) -> float:
        """Return by how much the database's clock was set since the look that was kept; 0.0: it was not.

        A step that another process has moved the moments by does not count.
        """
        last = self._last
        if last is None:
            return 0.0
        set_s = (seen.now_s - last.now_s) - (seen.steady_s - last.steady_s)
        least_s = MIN_STEP_S + last.took_s + seen.took_s
        open_s = set_s - (seen.moved_s - last.moved_s)
        return open_s if min(abs(set_s), abs(open_s)) >= least_s else 0.0

    def age_s(self, seen: ClockLook) -> float:
        """Return the seconds from the look that was kept until this one."""
        return 0.0 if self._last is None else seen.steady_s + seen.took_s - self._last.steady_s

    def keep(self, seen: ClockLook) -> None:
        """Compare the next look with this one."""
        self._last = seen

    def follow(self, seen: ClockLook) -> None:
        """Keep this look while another process leads, unless that has a step to move moments by first."""
        if self.step_s(seen) == 0.0 or self.age_s(seen) > MAX_PAUSE_S:
            self._last = seen
