"""One request, repeated while that is safe and may help.

Every request of this client may be repeated: what makes something carries an idempotency key.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from meshwright_client.decoding import decoded
from meshwright_client.errors import Problem, ServiceUnavailableError, UnexpectedAnswerError, error_of

RETRIED = frozenset({429, 502, 503, 504})
FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 10.0
JITTER = random.SystemRandom()  # never `random` itself: a training seeds it and counts on its every draw
PROBLEM_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """A connection pool and how long to insist."""

    http: httpx.Client
    timeout_s: float  # to connect, and of an answer that does not wait for anything
    retry_s: float  # after the first failure

    def ask(self, method: str, path: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON, decoded by the caller
        """Send a request, and return the JSON body of its answer."""
        return body_of(self.send(method, path, **arguments))

    def send(
        self,
        method: str,
        path: str,
        *,
        json: object = None,
        params: Mapping[str, str | int | float] | None = None,
        headers: Mapping[str, str] | None = None,
        waits_s: float = 0.0,
        left_s: float = float("inf"),
    ) -> httpx.Response:
        """Return the answer, 2xx or 304; ``waits_s``: how long the service may wait before it answers.

        ``left_s``: repeat the request for this long at most.

        Raises:
            ProblemError: the service refuses, or for ``retry_s`` asks to come back later.
            ServiceUnavailableError: nothing answers for ``retry_s``.
        """
        timeout = httpx.Timeout(self.timeout_s, read=self.timeout_s + waits_s)
        failures, give_up_at = 0, 0.0
        while True:
            reply, fault = None, None
            try:
                reply = self.http.request(
                    method, path, json=json, params=params, headers=headers, timeout=timeout
                )
            except httpx.TransportError as lost:
                fault = lost
            if reply is not None and reply.status_code not in RETRIED:
                return accepted(reply)
            give_up_at = give_up_at or time.monotonic() + min(self.retry_s, left_s)
            pause_s = pause_before(failures, reply)
            if time.monotonic() + pause_s > give_up_at:
                return accepted(reply) if reply is not None else _nobody(self.http, fault)
            time.sleep(pause_s)
            failures += 1


def pause_before(failures: int, reply: httpx.Response | None) -> float:
    """Return the seconds until the next try: from Retry-After, or random and longer each time."""
    said_s = None if reply is None else retry_after_s(reply.headers.get("Retry-After"))
    if said_s is not None:
        return said_s
    longest_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0**failures)
    return JITTER.uniform(longest_s / 2, longest_s)


def retry_after_s(text: str | None) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3), or None."""
    if not text:
        return None
    if text.isascii() and text.isdecimal():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=timezone.utc)
    return max(0.0, (at - datetime.now(at.tzinfo)).total_seconds())


def accepted(reply: httpx.Response) -> httpx.Response:
    """Return the answer itself.

    Raises:
        ProblemError: the service refused.
    """
    if reply.is_success or reply.status_code == httpx.codes.NOT_MODIFIED:
        return reply
    raise error_of(reply.status_code, _problem(reply))


def body_of(reply: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of an answer.

    Raises:
        UnexpectedAnswerError: it is not JSON.
    """
    try:
        return reply.json()
    except ValueError:
        raise UnexpectedAnswerError("the answer is not JSON") from None


def _problem(reply: httpx.Response) -> Problem:
    """Return the problem document, or the status and its phrase."""
    if reply.headers.get("Content-Type", "").startswith(PROBLEM_TYPE):
        try:
            return decoded(Problem, reply.json())
        except (ValueError, UnexpectedAnswerError):
            pass
    return Problem(status=reply.status_code, title=reply.reason_phrase)


def _nobody(http: httpx.Client, fault: Exception | None) -> httpx.Response:
    address = f"{http.base_url.scheme}://{http.base_url.netloc.decode()}"
    raise ServiceUnavailableError(f"no service answers at {address} ({type(fault).__name__})") from fault
