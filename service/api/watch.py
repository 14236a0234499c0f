"""Tells the open connections of this process which jobs have news: one query for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from fastapi.concurrency import run_in_threadpool

from service.db.database import DATABASE_AWAY, Database
from service.db.event_records import newest_event_ids

LOOK_S = 0.2  # between two looks at all watched jobs
_log = logging.getLogger(__name__)


class Watch:
    """Waiters of one event loop; nothing is asked of the database while nobody waits."""

    def __init__(self, database: Database, *, is_stopping: Callable[[], bool]) -> None:
        self._database = database
        self.is_stopping = is_stopping
        self._waiting: dict[str, dict[asyncio.Event, int]] = defaultdict(dict)
        self._looking: asyncio.Task[None] | None = None

    async def news(self, job_id: str, *, after: int, timeout_s: float) -> bool:
        """Wait for an event of a job after the event ``after``; False: none came in time.

        Also True when the server is stopping: whoever waits is to finish.
        """
        bell = asyncio.Event()
        self._waiting[job_id][bell] = after
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            await asyncio.wait_for(bell.wait(), timeout_s)
        except TimeoutError:
            return False
        finally:
            del self._waiting[job_id][bell]
            if not self._waiting[job_id]:
                del self._waiting[job_id]
        return True

    async def _look(self) -> None:
        """Look at all watched jobs several times a second, for as long as somebody waits."""
        while self._waiting:
            await asyncio.sleep(LOOK_S)
            try:
                newest = await run_in_threadpool(self._newest, list(self._waiting))
            except DATABASE_AWAY as fault:
                _log.warning("events are not seen (%s)", type(fault).__name__)
                newest = {}
            for job_id, bells in self._waiting.items():
                for bell, after in bells.items():
                    if self.is_stopping() or newest.get(job_id, 0) > after:
                        bell.set()

    def _newest(self, job_ids: list[str]) -> dict[str, int]:
        with self._database.read() as connection:
            return newest_event_ids(connection, job_ids)
