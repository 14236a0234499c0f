"""Problem details (RFC 9457): the one shape of every error that the API answers with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Self

import h11
from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from uvicorn.protocols.http.h11_impl import H11Protocol

from meshwright.profiles.errors import FieldError
from meshwright.service.requests.fields import patch_of

MEDIA_TYPE = "application/problem+json"
CLIENT_LEFT = 499  # nginx's status of a client that left; only in metrics and the log


class FaultView(BaseModel):
    """One faulty field."""

    pointer: str  # JSON pointer into the body; /query/… for a query parameter, /header/… for a header
    message: str
    allowed: str | None = None
    nearest: str | None = None
    value: int | str | None = None  # the wrong value
    values: list[int | str] | None = None  # the legal values, where they are few
    tip: dict[str, Any] | None = Field(
        default=None,
        description="a JSON merge patch (RFC 7396) of the problem, with which it has an answer: "
        '{"launcher": "trl"}',
    )

    @classmethod
    def of(cls, error: FieldError) -> Self:
        """Return a fault as the API states it."""
        return cls(**{**asdict(error), "tip": patch_of(error.tip)})


class ProblemView(BaseModel):
    """A problem; ``type`` is stable, ``detail`` is for people."""

    type: str
    title: str
    status: int | None = None  # absent where a job failed: that is no HTTP answer
    detail: str | None = None
    instance: str | None = None
    request_id: str | None = None
    errors: list[FaultView] | None = None


# What is no page loads nothing and is framed nowhere, should a browser show it (OWASP, REST Security Cheat
# Sheet, "Security Headers"); pages bring a policy of their own.
NO_PAGE = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def type_of(code: str) -> str:
    """The stable type of a problem, from the code of its error."""
    return f"urn:meshwright:problem:{code}"


def problem_response(
    request: Request,
    status: int,
    *,
    code: str,
    detail: str | None = None,
    errors: Iterable[FieldError] = (),
    headers: dict[str, str] | None = None,
) -> Response:
    """An answer with a problem document."""
    request_id = getattr(request.state, "request_id", None)
    view = ProblemView(
        type=type_of(code),
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=request.url.path[:256],
        request_id=request_id,
        errors=[FaultView.of(error) for error in errors] or None,
    )
    return Response(
        view.model_dump_json(exclude_none=True),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers={**NO_PAGE, **(headers or {}), **({"X-Request-ID": request_id} if request_id else {})},
    )


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of the problems that a route may answer with."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemView"}}}
    found: dict[int | str, dict[str, Any]] = {
        status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses
    }
    if 429 in found:  # noqa: PLR2004 - Too Many Requests
        found[429] = {**found[429], "headers": _OF_A_LIMIT}
    return found


_OF_A_LIMIT = {
    name: {"description": description, "schema": {"type": kind}}
    for name, description, kind in (
        ("Retry-After", "seconds until the request may succeed", "integer"),
        ("RateLimit-Policy", 'the limit that was met: `"submits";q=60;w=60` is 60 in 60 seconds', "string"),
        (
            "RateLimit",
            'what is left of it, and seconds until there is more: `"submits";r=0;t=12`',
            "string",
        ),
    )
}


# --------------------------------------------------------------------------------------------------
# The answer to a malformed request: a problem document, as for every other mistake.
#
# No route, and no middleware, ever sees such a request; uvicorn itself would answer with plain text.


HEAD_S = 10.0  # for a request's head to arrive; the body has a limit of its own


def _written(status: HTTPStatus, code: str, detail: str) -> tuple[h11.Event, ...]:
    """An answer to what never became a request, after which the connection is closed."""
    view = ProblemView(type=type_of(code), title=status.phrase, status=status, detail=detail)
    body = view.model_dump_json(exclude_none=True).encode()
    head = h11.Response(
        status_code=status,
        reason=status.phrase.encode(),
        headers=[
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ],
    )
    return head, h11.Data(data=body), h11.EndOfMessage()


_MALFORMED = _written(HTTPStatus.BAD_REQUEST, "bad_request", "malformed HTTP/1.1 request")
_LATE = _written(
    HTTPStatus.REQUEST_TIMEOUT, "head_too_slow", f"the request headers did not arrive within {HEAD_S:g} s"
)


class ProblemProtocol(H11Protocol):
    """Uvicorn's HTTP/1.1, with a problem document for what is none, and for a head that is late."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Read; what has begun as a head must end as one in time."""
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer, unless an answer is under way, and hang up; ``msg`` is uvicorn's own and says no more."""
        del msg
        self._hang_up(_MALFORMED)

    def _await_head(self) -> None:
        """Allow ``HEAD_S`` from the connection, or the first byte; uvicorn ends what is idle after it."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._late is None:
            self._late = self.loop.call_later(HEAD_S, self._hang_up, _LATE)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _hang_up(self, answer: tuple[h11.Event, ...]) -> None:
        self._stop_waiting()
        try:
            for event in answer:
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass
        self.transport.close()
