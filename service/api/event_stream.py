"""Server-Sent Events of one job (WHATWG HTML, "Server-sent events"), told from the database.

The id of an event is its row's: a client that comes back with Last-Event-ID misses nothing.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi.sse import format_sse_event

from profiles.errors import InvalidProblemError
from service.api.schemas import EventView, ProgressView, moment
from service.api.watch import Watch
from service.db.event_records import EventRecord
from service.engine.states import TERMINAL_STATES

RETRY_MS = 1_000  # how long a client waits before it comes back
MAX_STREAM_S = 900.0  # then the client comes back, and its key is looked at again
MAX_DIGITS = 18  # of an event's id: below 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class EventStream:
    """One connection that follows one job."""

    watch: Watch
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
    progress = None if event.progress is None else ProgressView(**event.progress)
    view = EventView.model_validate(
        {
            "job_id": job_id,
            "state": event.state,
            "at": moment(event.at_s),
            "cancel_requested": event.cancel_requested,
            "progress": progress,
        }
    )
    data = view.model_dump_json(exclude_none=True)
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
