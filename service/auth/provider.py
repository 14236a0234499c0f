"""One OpenID Connect provider over HTTP: bounded turns, short time limits, metadata that is kept.

A provider that hangs must cost this service nothing but sign-ins: few threads at a time wait for it, none
of them for another's request, and a fault is remembered, so that those who come next are answered at once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from meshwright.service.errors import BusyError

MAX_AT_ONCE = 4  # sign-ins that wait for the provider; the server has 40 threads for all requests
TIMEOUT_S = 5.0  # for one whole answer, however slowly it comes
METADATA_S = 3600.0  # it is asked for again; the old one counts while the provider is away
FAULT_S = 10.0  # a fault is remembered for
MAX_BYTES = 2**20
_AWAY = "the sign-in provider did not answer correctly. Try again in a moment"
_FULL = "too many people are signing in at once. Try again in a moment"
Answered = TypeVar("Answered")


class Provider:
    """What one provider answers; safe to share between threads."""

    def __init__(self, issuer: str, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._clock_s = clock_s
        self._turns = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._metadata: tuple[float, Mapping[str, Any]] | None = None  # when it came, and what it says
        self._failed_at_s: float | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Take one of the few turns to ask the provider.

        Raises:
            BusyError: all are taken, or the provider has just failed to answer.
        """
        if self._failed_at_s is not None and self._clock_s() - self._failed_at_s < FAULT_S:
            raise BusyError(_AWAY)
        if not self._turns.acquire(blocking=False):
            raise BusyError(_FULL)
        try:
            yield
        finally:
            self._turns.release()

    def metadata(self) -> Mapping[str, Any]:
        """Return its addresses (OpenID Connect Discovery 1.0); two threads may ask at once, none waits.

        Raises:
            BusyError: it does not answer, or not with its own metadata.
        """
        kept = self._metadata
        if kept is None or self._clock_s() - kept[0] >= METADATA_S:
            try:
                kept = self._metadata = (self._clock_s(), self._discovered())
            except BusyError:
                if kept is None:
                    raise
        return kept[1]

    def _discovered(self) -> Mapping[str, Any]:
        found = self.document(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        needed = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        if found.get("issuer") != self._issuer or not all(
            isinstance(found.get(one), str) for one in needed
        ):
            raise self._failed()
        return found

    def document(self, address: str) -> Mapping[str, Any]:
        """Return a JSON object of the provider's.

        Raises:
            BusyError: it does not come whole within ``TIMEOUT_S`` and ``MAX_BYTES``, or is something else.
        """
        import httpx  # noqa: PLC0415 - 0.1 s of a server's start

        def read(client: Any) -> object:  # noqa: ANN401 - httpx is loaded by the first sign-in
            body = bytearray()
            with client.stream("GET", address) as answer:
                answer.raise_for_status()
                for piece in answer.iter_bytes():
                    body += piece
                    if len(body) > MAX_BYTES:
                        raise ValueError(address)
            return json.loads(body)

        found = self.asked(httpx.Client(timeout=TIMEOUT_S), read)
        if not isinstance(found, dict):
            raise self._failed()
        return found

    def asked(self, client: Any, ask: Callable[[Any], Answered], *refusals: type[Exception]) -> Answered:  # noqa: ANN401 - the same
        """Return what ``ask`` makes of the client's answers; ``refusals`` are the provider's, and go on.

        Raises:
            BusyError: anything else went wrong, or took longer than ``TIMEOUT_S``.
        """
        late = threading.Timer(TIMEOUT_S, client.close)  # of each byte httpx waits as long anew
        late.daemon = True
        with client:
            late.start()
            try:
                return ask(client)
            except refusals:
                raise
            except Exception:  # noqa: BLE001 - whatever a provider says wrong is its fault, not a bug
                raise self._failed() from None
            finally:
                late.cancel()

    def _failed(self) -> BusyError:
        self._failed_at_s = self._clock_s()
        return BusyError(_AWAY)
