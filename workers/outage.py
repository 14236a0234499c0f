"""A database that is away: one short line when it goes, ever fewer while it is away, one when it is back.

Several loops of a process notice the same outage, some of them several times a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from math import inf

from meshwright.service.db.database import DATABASE_AWAY

FIRST_PAUSE_S = 0.5  # between two tries of one caller; doubled after each
MAX_PAUSE_S = 5.0
FIRST_REPEAT_S = 10.0  # between two lines about one outage; doubled after each
_log = logging.getLogger(__name__)


class Outage:
    """Logs the outages of one database; safe to share between threads."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._began_s: float | None = None  # None: the database answers
        self._is_logged = False
        self._next_line_s = -inf
        self._repeat_s = FIRST_REPEAT_S

    def noticed(self, fault: Exception) -> None:
        """Log that the database is away, unless that was logged a moment ago."""
        with self._lock:
            now_s = self._clock_s()
            if self._began_s is None:
                self._began_s = now_s
                if now_s > self._next_line_s + self._repeat_s:  # long after the last outage
                    self._repeat_s = FIRST_REPEAT_S
            if now_s < self._next_line_s:
                return
            _log.warning(
                "waiting for the database, which has not answered for %.0f s (%s)",
                now_s - self._began_s,
                type(fault).__name__,
            )
            self._is_logged = True
            self._next_line_s = now_s + self._repeat_s
            self._repeat_s *= 2

    def over(self) -> None:
        """Log that the database is back, if it was logged as away."""
        with self._lock:
            if self._began_s is not None and self._is_logged:
                _log.warning("the database answers again after %.0f s", self._clock_s() - self._began_s)
            self._began_s, self._is_logged = None, False


OUTAGE = Outage()  # a worker process has one database


def patiently(step: Callable[[], object], leaving: threading.Event) -> bool:
    """Call ``step`` until the database answers it.

    Returns:
        Whether it was answered; False when ``leaving`` was set before.
    """
    pause_s = FIRST_PAUSE_S
    while not leaving.is_set():
        try:
            step()
        except DATABASE_AWAY as fault:
            OUTAGE.noticed(fault)
            leaving.wait(pause_s)
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)
        else:
            OUTAGE.over()
            return True
    return False
