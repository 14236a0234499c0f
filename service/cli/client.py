"""The service as the command line calls it: REST over httpx, problems turned into the planner's errors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import httpx

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, PlannerError
from meshwright.service.requests.fields import tip_of

LONG_POLL_S = 20.0
TIMEOUT_S = 40.0  # longer than a long poll
_CLIENT_ERRORS, _SERVER_ERRORS = 400, 500


class ServiceUnreachableError(PlannerError):
    """No service answers, or it cannot answer now."""

    code = "service_unreachable"


class ServiceClient:
    """Hold the connection to one service; use as a context manager."""

    def __init__(self, url: str) -> None:
        """Take the key from MESHWRIGHT_KEY; every user of the machine could read one on the command line.

        Raises:
            InvalidProblemError: ``url`` is not the address of a service.
        """
        key = os.environ.get("MESHWRIGHT_KEY", "").strip()
        is_key = key.isascii() and key.isprintable() and key
        try:
            self._http = httpx.Client(
                base_url=url,
                timeout=TIMEOUT_S,
                headers={"Authorization": f"Bearer {key}"} if is_key else {},
            )
            is_address = self._http.base_url.scheme in {"http", "https"} and self._http.base_url.host
        except httpx.InvalidURL:
            is_address = ""
        if not is_address:
            raise InvalidProblemError.of(
                "--url",
                f'"{shown(url)}" is not the address of a service',
                allowed="http://HOST:PORT or https://HOST:PORT",
            )
        self._url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_fault: object) -> None:
        self._http.close()

    def submit(self, request: Mapping[str, object], *, key: str | None, fresh: bool) -> dict[str, Any]:
        """Return the job of a request."""
        return self.call(
            "POST",
            "/v1/jobs",
            json=request,
            headers={"Idempotency-Key": key} if key else {},
            params={"fresh": "true"} if fresh else {},
        )

    def answer(self, job_id: str) -> dict[str, Any]:
        """Return the answer of a finished job, with the first page of its plans."""
        return self.call("GET", f"/v1/jobs/{job_id}/plans", params={"page_size": 200})

    def call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx's own
        """Return the JSON document of an answer; raise the errors of ``ask``."""
        body: dict[str, Any] = self.ask(method, path, **arguments).json()
        return body

    def ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:  # noqa: ANN401 - the same
        """Return the answer to a request.

        Raises:
            ServiceUnreachableError: no service answers, or it cannot answer now.
            InvalidProblemError: the service refuses.
        """
        try:
            reply = self._http.request(method, path, **arguments)
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            raise ServiceUnreachableError(
                f"--url: no service answers at {shown(self._url)} ({type(fault).__name__})"
            ) from None
        if reply.status_code >= _SERVER_ERRORS:
            raise ServiceUnreachableError(f"--url: the service cannot answer now ({reply.status_code})")
        if reply.status_code >= _CLIENT_ERRORS:
            raise _refusal(reply)
        return reply


def _refusal(reply: httpx.Response) -> InvalidProblemError:
    try:
        problem = reply.json()
    except ValueError:
        problem = {}
    faults = [
        FieldError(
            pointer=fault.get("pointer", ""),
            message=fault.get("message", "is wrong"),
            allowed=fault.get("allowed"),
            nearest=fault.get("nearest"),
            value=fault.get("value"),
            values=tuple(fault["values"]) if fault.get("values") else None,
            tip=tip_of(fault.get("tip")),
        )
        for fault in problem.get("errors") or ()
    ]
    detail = problem.get("detail") or problem.get("title") or f"status {reply.status_code}"
    return InvalidProblemError(faults or [FieldError(pointer="", message=str(detail))])
