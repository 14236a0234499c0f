"""Tells the open connections of this process what happened to their jobs: one look for all of them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool

from service.db.database import DATABASE_AWAY, Database
from service.db.event_records import EventRecord, events_after, newest_event_ids

LOOK_S = 0.2  # between two looks at all watched jobs
MAX_EVENTS = 500  # of one job, read at once
_log = logging.getLogger(__name__)
_Job = tuple[str, str]  # tenant, id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waiter:
    """One connection that has seen the events of a job up to ``after``."""

    after: int
    events: asyncio.Future[list[EventRecord]]


class Watch:
    """Waiters of one event loop; nothing is asked of the database while nobody waits.

    However many connections follow a job, its events are read once, on one thread.
    """

    def __init__(self, database: Database, *, is_stopping: Callable[[], bool]) -> None:
        self._database = database
        self.is_stopping = is_stopping
        self._waiting: dict[_Job, set[_Waiter]] = {}
        self._looking: asyncio.Task[None] | None = None

    async def events(self, tenant: str, job_id: str, *, after: int, timeout_s: float) -> list[EventRecord]:
        """The next events of a job after ``after``; none came in time, or the server stops: []."""
        waiter = _Waiter(after=after, events=asyncio.get_running_loop().create_future())
        others = self._waiting.setdefault((tenant, job_id), set())
        others.add(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            return await asyncio.wait_for(waiter.events, timeout_s)
        except TimeoutError:
            return []
        finally:
            others.discard(waiter)
            if not others and self._waiting.get((tenant, job_id)) is others:
                del self._waiting[tenant, job_id]

    async def _look(self) -> None:
        """Look at all watched jobs several times a second, for as long as somebody waits."""
        while self._waiting:
            await asyncio.sleep(LOOK_S)
            seen = {job: min(one.after for one in waiters) for job, waiters in self._waiting.items()}
            try:
                found = await run_in_threadpool(self._news, seen)
            except DATABASE_AWAY as fault:
                _log.warning("events are not seen (%s)", type(fault).__name__)
                found = {}
            for job, waiters in self._waiting.items():
                self._tell(waiters, found.get(job, []), after=seen.get(job, math.inf))

    def _tell(self, waiters: set[_Waiter], found: list[EventRecord], *, after: float) -> None:
        """Give each of a job's waiters what is new to it; who came meanwhile and knows less waits on."""
        for waiter in waiters:
            new = [event for event in found if event.id > waiter.after >= after]
            if (new or self.is_stopping()) and not waiter.events.done():
                waiter.events.set_result(new)

    def _news(self, seen: dict[_Job, int]) -> dict[_Job, list[EventRecord]]:
        """The events of the jobs that have any after those that were seen."""
        with self._database.read() as connection:
            newest = newest_event_ids(connection, [job_id for _, job_id in seen])
            return {
                (tenant, job_id): events_after(connection, tenant, job_id, after=after, limit=MAX_EVENTS)
                for (tenant, job_id), after in seen.items()
                if newest.get(job_id, 0) > after
            }
