"""Waits for the end of a job: by events, resumed where they broke off, else by long polls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from meshwright_client.answers import TERMINAL_STATES, Event, Job, Progress, State
from meshwright_client.decoding import decoded
from meshwright_client.errors import WaitTimeoutError
from meshwright_client.events import MEDIA_TYPE, Frame, frames
from meshwright_client.transport import Transport, body_of, pause_before

OnProgress = Callable[[State, Progress | None], None]
SILENCE_S = 35.0  # of a stream: two of the service's signs of life (15 s) are missing
MAX_FRUITLESS = 3  # streams in a row that bring nothing, though the service is there: no way for events
LONG_POLL_S = 20.0


@dataclass(slots=True, kw_only=True)
class Waiting:
    """One job that is waited for."""

    transport: Transport
    job_id: str
    until: float | None  # of the monotonic clock; None: as long as it takes
    on_progress: OnProgress
    seen: str | None = None  # id of the last event
    fruitless: int = 0

    def finished_job(self) -> Job:
        """The job once it has ended.

        Raises:
            WaitTimeoutError: it has not in time.
        """
        ended = False
        while not ended and self.fruitless < MAX_FRUITLESS and self._left_s() > SILENCE_S:
            ended = self._stream()
            if not ended:
                self._look()  # insists on a service that is there at all, or says what is wrong with it
        return self._poll()

    def _left_s(self) -> float:
        """Seconds until the deadline."""
        return float("inf") if self.until is None else max(0.0, self.until - time.monotonic())

    def _stream(self) -> bool:
        """Follow one connection to its end; True: the job has ended, or there is no time for another."""
        self.fruitless += 1  # until it brings something
        reply: httpx.Response | None = None
        try:
            headers = {"Accept": MEDIA_TYPE, **({"Last-Event-ID": self.seen} if self.seen else {})}
            timeout = httpx.Timeout(self.transport.timeout_s, read=SILENCE_S)
            path = f"/v1/jobs/{self.job_id}/events"
            with self.transport.http.stream("GET", path, headers=headers, timeout=timeout) as reply:
                if reply.status_code == httpx.codes.NO_CONTENT:
                    return True
                if reply.headers.get("Content-Type", "").startswith(MEDIA_TYPE) and self._read(reply):
                    return True
        except httpx.TransportError:
            pass
        time.sleep(pause_before(self.fruitless, reply))
        return False

    def _read(self, reply: httpx.Response) -> bool:
        """The events of one connection; True: the job has ended, or no further sign of life is awaited."""
        for frame in frames(reply.iter_lines()):
            self.fruitless = 0
            if frame.data and self._told(frame):
                return True
            if self._left_s() < SILENCE_S:
                return True
        return False

    def _told(self, frame: Frame) -> bool:
        """Pass one event on; True: it is the last one."""
        event = decoded(Event, json.loads(frame.data))
        self.seen = frame.id or self.seen
        self.on_progress(event.state, event.progress)
        return event.state in TERMINAL_STATES

    def _poll(self) -> Job:
        """Look at the job until it has ended."""
        job: Job | None = None
        etag = ""
        while True:
            wait_s = min(LONG_POLL_S, self._left_s()) if etag else 0.0  # first: how is it now?
            reply = self._look(wait_s, etag)
            if reply.status_code != httpx.codes.NOT_MODIFIED or job is None:
                job, etag = decoded(Job, body_of(reply)), reply.headers.get("ETag", "")
                self.on_progress(job.state, job.progress)
            if job.is_finished:
                return job
            if not self._left_s():
                raise WaitTimeoutError(job)

    def _look(self, wait_s: float = 0.0, etag: str = "") -> httpx.Response:
        """The job as it is, after ``wait_s`` at most once it differs from ``etag``."""
        return self.transport.send(
            "GET",
            f"/v1/jobs/{self.job_id}",
            params={"wait": wait_s} if wait_s else None,
            headers={"If-None-Match": etag} if etag else None,
            waits_s=wait_s,
            left_s=self._left_s(),
        )
