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
from dataclasses import dataclass
from typing import Any

from meshwright.service.errors import BusyError, UnauthorizedError

MAX_AT_ONCE = 4  # sign-ins that wait for the provider; the server has 40 threads for all requests
TIMEOUT_S = 5.0  # for one whole answer, however slowly it comes
METADATA_S = 3600.0  # metadata and keys are asked for again; old ones count while the provider is away
FAULT_S = 10.0  # a fault is remembered for
MAX_BYTES = 2**20
_AWAY = "the sign-in provider did not answer correctly. Try again in a moment"
_FULL = "too many people are signing in at once. Try again in a moment"
_NOT_CONFIRMED = "the sign-in provider does not confirm this sign-in"
_REFUSALS = range(400, 500)
Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A document of the provider's, and when it came."""

    document: Json
    at_s: float


class Provider:
    """What one provider answers; safe to share between threads."""

    def __init__(self, issuer: str, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._issuer = issuer
        self._clock_s = clock_s
        self._turns = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._kept: dict[str, _Kept] = {}  # by address
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

    def metadata(self) -> Json:
        """Return its addresses (OpenID Connect Discovery 1.0); two threads may ask at once, none waits.

        Raises:
            BusyError: it does not answer, or not with its own metadata.
        """
        return self._document(
            f"{self._issuer.rstrip('/')}/.well-known/openid-configuration", METADATA_S, self._require_own
        )

    def _require_own(self, found: Json) -> None:
        needed = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        if found.get("issuer") != self._issuer or not all(
            isinstance(found.get(one), str) for one in needed
        ):
            raise self._failed()

    def keys(self, *, max_age_s: float = METADATA_S) -> Json:
        """Return its JSON Web Key Set; a kept one that is younger than ``max_age_s``, if there is one.

        Raises:
            BusyError: it does not answer.
        """
        return self._document(self.metadata()["jwks_uri"], max_age_s, lambda _: None)

    def token(self, form: Mapping[str, str], *, secret: tuple[str, str] | None) -> str:
        """Return the ID token for a code (OpenID Connect Core 1.0, section 3.1.3).

        Args:
            form: The fields of the request.
            secret: Id and secret of a client that has one, sent as HTTP Basic authentication.

        Raises:
            UnauthorizedError: the provider refuses the code.
            BusyError: it does not answer.
        """
        endpoint = self.metadata()["token_endpoint"]
        status, found = self._asked("POST", endpoint, data=dict(form), auth=secret)
        token = found.get("id_token") if isinstance(found, dict) else None
        if status in _REFUSALS or (isinstance(found, dict) and "error" in found):
            raise UnauthorizedError(_NOT_CONFIRMED)
        if not isinstance(token, str):
            raise self._failed()
        return token

    def _document(self, address: str, max_age_s: float, require: Callable[[Json], None]) -> Json:
        """Return a JSON object at an address; a kept one if it is young, or the provider is away."""
        kept = self._kept.get(address)
        if kept is None or self._clock_s() - kept.at_s >= max_age_s:
            try:
                status, found = self._asked("GET", address)
                if status in _REFUSALS or not isinstance(found, dict):
                    raise self._failed()
                require(found)
            except BusyError:
                if kept is None:
                    raise
            else:
                kept = self._kept[address] = _Kept(document=found, at_s=self._clock_s())
        return kept.document

    def _asked(self, method: str, address: str, **request: Any) -> tuple[int, object]:  # noqa: ANN401 - httpx's
        """Return the status of one answer and its JSON; a refusal may be anything, and is None then.

        Raises:
            BusyError: it does not come whole within ``TIMEOUT_S`` and ``MAX_BYTES``, or is not JSON.
        """
        import httpx  # noqa: PLC0415 - 0.1 s of a server's start

        status, body = 0, bytearray()
        try:
            client = httpx.Client(timeout=TIMEOUT_S)
            late = threading.Timer(TIMEOUT_S, client.close)  # of each byte httpx waits as long anew
            late.daemon = True
            with client:
                late.start()
                try:
                    with client.stream(method, address, **request) as answer:
                        status = answer.status_code
                        for piece in answer.iter_bytes():
                            body += piece
                            if len(body) > MAX_BYTES:
                                raise ValueError(address)
                finally:
                    late.cancel()
            if status not in _REFUSALS:
                answer.raise_for_status()
            return status, json.loads(body)
        except Exception:  # noqa: BLE001 - whatever a provider says wrong is its fault, not a bug
            if status in _REFUSALS:
                return status, None
            raise self._failed() from None

    def _failed(self) -> BusyError:
        self._failed_at_s = self._clock_s()
        return BusyError(_AWAY)
