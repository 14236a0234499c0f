"""The outermost layer: request ids, and which names this server answers to."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from ipaddress import ip_address

from fastapi import Request, Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from meshwright.service.api.errors import RETRY_AFTER_S
from meshwright.service.api.metrics import Metrics
from meshwright.service.api.problems import CLIENT_LEFT, NO_PAGE, problem_response
from meshwright.service.telemetry import REQUESTS, about

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_log = logging.getLogger(REQUESTS)
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[^:]*)(:\d+)?")


class InHand:
    """The requests of one event loop that are being answered."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count the request of this task."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is answered by a task")
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    def cut_short(self) -> None:
        """End every request whose answer has not begun with a 503; call it in the event loop."""
        for task in tuple(self._tasks):
            task.cancel()


class Edge:
    """ASGI middleware; a server without keys answers to names of its own only.

    Else a web page of anybody could have its name resolve to this server (DNS rebinding), and the browsers
    of those who may reach it would do as the page says. A page cannot choose an address in digits.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        any_host: Callable[[], bool],
        host_names: AbstractSet[str],
        metrics: Metrics,
        in_hand: InHand,
    ) -> None:
        self._app = app
        self._in_hand = in_hand
        self._metrics = metrics
        self._any_host = any_host
        self._host_names = host_names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id", ""))
        scope.setdefault("state", {})["request_id"] = request_id
        sent = _Sent(send, request_id)
        began_s = time.monotonic()
        with about(request_id=request_id):
            try:
                with self._in_hand.held():
                    await self._serve(scope, receive, sent, headers)
            except asyncio.CancelledError:
                if sent.status != CLIENT_LEFT:  # its answer has begun
                    raise
                await _cut_short(Request(scope))(scope, receive, sent)
            except Exception:
                sent.status = 500  # a bug: the layer outside of this one answers
                raise
            finally:
                self._count(scope, sent.status, time.monotonic() - began_s)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        if not self._any_host() and not _is_own(headers.get("host", ""), self._host_names):
            detail = (
                "without keys this server answers only to IP addresses, loopback names and the names in "
                "MESHWRIGHT_ALLOWED_HOSTS"
            )
            refusal = problem_response(Request(scope), 421, code="misdirected", detail=detail)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count and log one answer; the path's template, as ids in it are the tenant's business."""
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = getattr(scope.get("route"), "path", "none")
        self._metrics.count(method=method, route=route, status=status, seconds=seconds)
        _log.info(
            "%s %s %d %.1f ms",
            method,
            route,
            status,
            1000 * seconds,
            extra={
                "data": {"method": method, "route": route, "status": status, "ms": round(1000 * seconds, 1)}
            },
        )


def _cut_short(request: Request) -> Response:
    """Answer what a server that stops could not finish within its grace period."""
    return problem_response(
        request, 503, code="stopping",
        detail="this server is stopping: repeat the request in a moment, with its Idempotency-Key if it "
        "has one. What was stored under that key is known",
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )  # fmt: skip


class _Sent:
    """``send`` that adds the request's id, and a policy where there is none, and remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = CLIENT_LEFT

    async def __call__(self, message: Message) -> None:
        """Send one message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._request_id
            for name, value in NO_PAGE.items():
                headers.setdefault(name, value)
        await self._send(message)


def _request_id(given: str) -> str:
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _is_own(host: str, names: AbstractSet[str]) -> bool:
    """Whether a Host header holds an IP address or one of ``names``, which are in lower case."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match.group(1).strip("[]").lower()
    return name in names or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
