"""Sends the events of jobs to the open connections of this process, with one look for all of them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fastapi.concurrency import run_in_threadpool
from fastapi.sse import format_sse_event

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.api.schemas import EventView, ProgressView, moment
from meshwright.service.db.database import DATABASE_AWAY, Database
from meshwright.service.db.event_records import EventRecord, events_after, newest_event_ids
from meshwright.service.jobs.states import TERMINAL_STATES
from meshwright.service.stored import FOREIGN_SHAPE

LOOK_S = 0.2  # between two looks at all watched jobs
MAX_EVENTS = 500  # of one job, read at once
_log = logging.getLogger(__name__)
_Job = tuple[str, str]  # tenant, id


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Waiter:
    """One connection that has seen the events of a job up to ``after``."""

    after: int
    events: asyncio.Future[list[EventRecord]]


class EventWatch:
    """Waiters of one event loop; the database is not asked while no client waits.

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
        """Look at all watched jobs several times a second, as long as a client waits."""
        while self._waiting:
            await asyncio.sleep(LOOK_S)
            seen = {job: min(one.after for one in waiters) for job, waiters in self._waiting.items()}
            try:
                found = await run_in_threadpool(self._news, seen)
            except DATABASE_AWAY as fault:
                _log.warning("events cannot be read (%s)", type(fault).__name__)
                found = {}
            for job, waiters in self._waiting.items():
                after = seen.get(job, math.inf)  # who came meanwhile and knows less waits on
                for waiter in waiters:
                    new = [one for one in found.get(job, []) if one.id > waiter.after >= after]
                    if (new or self.is_stopping()) and not waiter.events.done():
                        waiter.events.set_result(new)

    def _news(self, seen: dict[_Job, int]) -> dict[_Job, list[EventRecord]]:
        with self._database.read() as connection:
            newest = newest_event_ids(connection, [job_id for _, job_id in seen])
            return {
                (tenant, job_id): events_after(connection, tenant, job_id, after=after, limit=MAX_EVENTS)
                for (tenant, job_id), after in seen.items()
                if newest.get(job_id, 0) > after
            }


# --------------------------------------------------------------------------------------------------
# Server-Sent Events of one job (WHATWG HTML, "Server-sent events"), read from the database.
#
# The id of an event is its row's: a client that comes back with Last-Event-ID misses nothing.


RETRY_MS = 1_000  # how long a client waits before it comes back
MAX_STREAM_S = 900.0  # then the client comes back, and its key is looked at again
MAX_DIGITS = 18  # of an event's id: below 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """One connection that follows one job."""

    watch: EventWatch
    tenant: str
    job_id: str
    heartbeat_s: float  # between two comments that keep proxies from closing a silent connection

    async def frames(self, first: list[EventRecord], *, after: int) -> AsyncIterator[bytes]:
        """``first`` and every later event as they go over the wire, until the job or the server ends."""
        yield f"retry: {RETRY_MS}\n\n".encode()
        until, events = time.monotonic() + MAX_STREAM_S, first
        while time.monotonic() < until:
            for event in events:
                yield frame(self.job_id, event)
                after = event.id
                if event.state in TERMINAL_STATES:
                    return
            if self.watch.is_stopping():
                return
            events = await self.watch.events(
                self.tenant, self.job_id, after=after, timeout_s=self.heartbeat_s
            )
            if not events:
                yield b": alive\n\n"


def frame(job_id: str, event: EventRecord) -> bytes:
    """One event as it goes over the wire, named after the job's state."""
    try:
        progress = None if event.progress is None else ProgressView(**event.progress)
    except FOREIGN_SHAPE:  # of another release, or damaged: the state is what counts
        progress = None
    data = EventView.model_validate(
        {
            "job_id": job_id,
            "state": event.state,
            "at": moment(event.at_s),
            "cancel_requested": event.cancel_requested,
            "progress": progress,
        }
    ).model_dump_json(exclude_none=True)
    return format_sse_event(data_str=data, event=event.state, id=str(event.id))


def event_id_of(header: str | None) -> int:
    """The event that a client saw last; 0: none.

    Raises:
        InvalidProblemError: it is no id of ours.
    """
    text = header or "0"
    if not text.isascii() or not text.isdecimal() or len(text) > MAX_DIGITS:
        raise InvalidProblemError.of("/header/Last-Event-ID", "is not an event's id")
    return int(text)
