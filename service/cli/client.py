"""The service as the command line calls it: REST over httpx, problems turned into the planner's errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, PlannerError

TERMINAL_STATES = frozenset({"succeeded", "infeasible", "failed", "cancelled", "expired"})
LONG_POLL_S = 20.0
TIMEOUT_S = 40.0  # longer than a long poll
_JOB_ID = 32  # hex digits; a plan's id has fewer
_CLIENT_ERRORS, _SERVER_ERRORS = 400, 500


class ServiceUnreachableError(PlannerError):
    """No service answers, or it cannot answer now."""

    code = "service_unreachable"


class ServiceClient:
    """One service; use as a context manager."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet.

        Raises:
            InvalidProblemError: ``url`` is not the address of a service.
        """
        self._url = url
        try:
            self._http = httpx.Client(base_url=url, timeout=TIMEOUT_S, headers=_key_header())
        except httpx.InvalidURL:
            raise _no_address(url) from None
        if self._http.base_url.scheme not in {"http", "https"} or not self._http.base_url.host:
            raise _no_address(url)

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self._http.close()

    def submit(self, request: Mapping[str, object], *, key: str | None, fresh: bool) -> dict[str, Any]:
        """The job of a request."""
        return self._call(
            "POST",
            "/v1/jobs",
            json=request,
            headers={"Idempotency-Key": key} if key else {},
            params={"fresh": "true"} if fresh else {},
        )

    def job(self, job_id: str) -> dict[str, Any]:
        """A job."""
        return self._call("GET", f"/v1/jobs/{job_id}")

    def jobs(self, page_size: int, wanted: Mapping[str, str]) -> dict[str, Any]:
        """The newest jobs with all that is given."""
        return self._call("GET", "/v1/jobs", params={"page_size": page_size, **wanted})

    def cancel(self, job_id: str) -> dict[str, Any]:
        """The job after the wish to cancel it."""
        return self._call("POST", f"/v1/jobs/{job_id}:cancel")

    def delete(self, job_id: str) -> None:
        """Delete a job with its results."""
        self._send("DELETE", f"/v1/jobs/{job_id}")

    def share(self, job_id: str, days: float) -> dict[str, Any]:
        """A new link to the answer of a job, with its whole address."""
        made = self._call("POST", f"/v1/jobs/{job_id}/share-links", json={"expires_in_days": days})
        return {**made, "url": f"{self._url.rstrip('/')}{made['path']}"}

    def links(self, job_id: str) -> list[dict[str, Any]]:
        """The active links of a job."""
        found: list[dict[str, Any]] = self._call("GET", f"/v1/jobs/{job_id}/share-links")["links"]
        return found

    def unshare(self, job_id: str, link_id: str) -> None:
        """Revoke a link of a job."""
        self._send("DELETE", f"/v1/jobs/{job_id}/share-links/{link_id}")

    def answer(self, job_id: str) -> dict[str, Any]:
        """The answer of a finished job, with the first page of its plans."""
        return self._call("GET", f"/v1/jobs/{job_id}/plans", params={"page_size": 200})

    def plans(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Figures of plans of all jobs."""
        return self._call("GET", "/v1/plans", params=query)

    def export(self, plan_id: str, launcher: str) -> dict[str, Any]:
        """Launch files and warnings of a plan."""
        return self._call("GET", f"/v1/plans/{plan_id}/export", params={"launcher": launcher})

    def report(self, job_or_plan: str) -> str:
        """The report of a job's ranking, or of one plan, as an HTML page."""
        kind = "jobs" if len(job_or_plan) == _JOB_ID else "plans"
        return self._send("GET", f"/v1/{kind}/{job_or_plan}/report").text

    def timeline(self, plan_id: str) -> dict[str, Any]:
        """The timeline of a plan's step in the Trace Event Format."""
        return self._call("GET", f"/v1/plans/{plan_id}/timeline")

    def until_finished(self, job_id: str) -> Iterator[dict[str, Any]]:
        """The job at every change, the finished one last (long-poll with ETag)."""
        etag = ""
        while True:
            reply = self._send(
                "GET",
                f"/v1/jobs/{job_id}",
                params={"wait": LONG_POLL_S},
                headers={"If-None-Match": etag} if etag else {},
            )
            if reply.status_code == httpx.codes.NOT_MODIFIED:
                continue
            job: dict[str, Any] = reply.json()
            etag = reply.headers.get("ETag", "")
            yield job
            if job["state"] in TERMINAL_STATES:
                return

    def _call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - httpx's own
        body: dict[str, Any] = self._send(method, path, **arguments).json()
        return body

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:  # noqa: ANN401 - the same
        try:
            reply = self._http.request(method, path, **arguments)
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            raise ServiceUnreachableError(
                f"--url: no service answers at {shown(self._url)} ({type(fault).__name__})"
            ) from None
        if reply.status_code >= _SERVER_ERRORS:
            raise ServiceUnreachableError(f"--url: the service cannot answer now ({reply.status_code})")
        if reply.status_code >= _CLIENT_ERRORS:
            raise InvalidProblemError(_faults(reply))
        return reply


def _key_header() -> dict[str, str]:
    """The key of ``MESHWRIGHT_KEY``: a command line would show it to every user of the machine."""
    key = os.environ.get("MESHWRIGHT_KEY", "").strip()
    return {"Authorization": f"Bearer {key}"} if key.isascii() and key.isprintable() and key else {}


def _no_address(url: str) -> InvalidProblemError:
    return InvalidProblemError.of(
        "--url",
        f'"{shown(url)}" is not the address of a service',
        allowed="http://HOST:PORT or https://HOST:PORT",
    )


def _faults(reply: httpx.Response) -> list[FieldError]:
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
        )
        for fault in problem.get("errors") or ()
    ]
    detail = problem.get("detail") or problem.get("title") or f"status {reply.status_code}"
    return faults or [FieldError(pointer="", message=str(detail))]
