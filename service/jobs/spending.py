"""CPU seconds of keys: what an API process spends on requests, and whether a key may spend more today.

Workers count the seconds of searches and verifications by themselves. Requests take milliseconds to
seconds, so their seconds are gathered here and written together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from meshwright.service.db.database import DATABASE_AWAY, Database
from meshwright.service.db.usage_records import add_usage, used_today
from meshwright.service.errors import RateLimit, TooManyRequestsError

Made = TypeVar("Made")
KEPT_S = 1.0  # CPU seconds of one key that are not written yet, at most; a killed process forgets them


@dataclass(frozen=True, slots=True, kw_only=True)
class Spender:
    """Whose CPU seconds these are; ``most_s``: a day of that key's, None: as the settings state."""

    tenant: str
    key_id: str | None
    most_s: float | None = None


class Spending:
    """The CPU seconds of one API process; safe to share between threads."""

    def __init__(self, database: Database, *, most_s: float | None) -> None:
        self._database = database
        self._most_s = most_s  # a day of every key without a quota of its own
        self._pending: dict[tuple[str, str | None], float] = {}
        self._lock = threading.Lock()

    def metered(self, spender: Spender, work: Callable[[], Made]) -> Made:
        """Return the result of ``work``, whose CPU seconds on this thread become the spender's.

        Raises:
            TooManyRequestsError: the spender has used up its seconds of today.
        """
        if (spender.most_s or self._most_s) is not None:
            with self._database.read() as connection:
                self.require(connection, spender)
        began_s = time.thread_time()
        try:
            return work()
        finally:
            self.add(spender, time.thread_time() - began_s)

    def add(self, spender: Spender, cpu_s: float) -> None:
        """Count CPU seconds; they are written once a key has ``KEPT_S`` of them."""
        key = spender.tenant, spender.key_id
        with self._lock:
            self._pending[key] = self._pending.get(key, 0.0) + cpu_s
            full = self._pending[key] >= KEPT_S
        if full:
            self.write()

    def write(self) -> None:
        """Write all that was counted; what a database that is away does not take is kept."""
        with self._lock:
            counted, self._pending = self._pending, {}
        if not counted:
            return

        def store(connection: Connection) -> None:
            for (tenant, key_id), cpu_s in sorted(counted.items(), key=str):
                add_usage(connection, tenant, key_id, cpu_s=cpu_s, ended=False)

        try:
            self._database.write_together(store)
        except DATABASE_AWAY:
            with self._lock:
                for key, cpu_s in counted.items():
                    self._pending[key] = self._pending.get(key, 0.0) + cpu_s

    def close(self) -> None:
        """Write the rest at the end of the process."""
        with suppress(*DATABASE_AWAY):
            self.write()

    def require(self, connection: Connection, spender: Spender) -> None:
        """Refuse work of a key that has used up its CPU seconds of today.

        Raises:
            TooManyRequestsError: with the time until tomorrow.
        """
        most_s = spender.most_s or self._most_s
        if most_s is None:
            return
        used_s, left_s = used_today(connection, spender.tenant, spender.key_id)
        with self._lock:
            used_s += self._pending.get((spender.tenant, spender.key_id), 0.0)
        if used_s >= most_s:
            used = f"{round(used_s, 3):.10g} of {most_s:.10g} CPU seconds today (UTC)"
            limit = RateLimit(name="cpu", quota=int(most_s), unit="cpu-seconds", window_s=86_400)
            message = f"this key has used {used}"
            raise TooManyRequestsError(message, retry_after_s=left_s, limit=limit)
