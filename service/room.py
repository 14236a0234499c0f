"""How many more jobs a tenant may queue, without counting its queue for each of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

SHARE = 16  # of the room, filled between two counts
REMEMBER_S = 1.0  # jobs that come back to the queue are counted at most that much later
MAX_TENANTS = 4096


@dataclass(slots=True, kw_only=True)
class _Left:
    """What one tenant may still queue here before its queue is counted again."""

    jobs: int
    until_s: float  # by the monotonic clock


class Room:
    """The room of every tenant, for one API process; safe to share between threads.

    Counting a queue takes as long as the queue is. Of the room that a count finds, a ``SHARE``-th is filled
    without another count, within a second; so a small room is counted for every job. Jobs that leave only
    make more room: one process holds the limit as if each job were counted. Each further process may fill
    a share that it counted before the others filled the rest: a sixteenth of the limit more at most.
    """

    def __init__(self) -> None:
        self._left: dict[str, _Left] = {}
        self._lock = threading.Lock()

    def admits(self, tenant: str, count_room: Callable[[], int]) -> bool:
        """Whether one job more may be queued; ``count_room`` says how many fit by the records."""
        if self._take(tenant):
            return True
        room = count_room()
        if room <= 0:
            return False
        with self._lock:
            if len(self._left) >= MAX_TENANTS:
                self._left.clear()
            self._left[tenant] = _Left(jobs=(room - 1) // SHARE, until_s=time.monotonic() + REMEMBER_S)
        return True

    def _take(self, tenant: str) -> bool:
        """Fill a place that the last count has left."""
        with self._lock:
            left = self._left.get(tenant)
            if left is None or left.jobs <= 0 or time.monotonic() > left.until_s:
                return False
            left.jobs -= 1
            return True
