"""A service as the command line calls it: documents as they are, refusals as the planner's errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import httpx

from meshwright.profiles.documents import shown
from meshwright.profiles.errors import FieldError, InvalidProblemError, PlannerError
from meshwright.service.requests.fields import tip_of
from meshwright_client.client import Client
from meshwright_client.errors import (
    MeshwrightError,
    Problem,
    ProblemError,
    ServiceUnavailableError,
)
from meshwright_client.records import FieldFault, Progress, State
from meshwright_client.transport import body_of

TIMEOUT_S = 40.0  # the longest answer, a report with its what-ifs, takes less
_SERVER_ERRORS = 500
_NO_SERVICE = "--url: the address answers, but not as a Meshwright service ({})"


class ServiceUnreachableError(PlannerError):
    """No service answers, or it cannot answer now."""

    code = "service_unreachable"


class ServiceClient:
    """Hold the connection to one service; use as a context manager.

    Every method raises ``ServiceUnreachableError`` where no service answers, or it cannot answer now, and
    ``InvalidProblemError`` where it refuses. Nothing is tried twice: a person is waiting.
    """

    def __init__(self, url: str) -> None:
        """Take the key from MESHWRIGHT_KEY; every user of the machine could read one on the command line.

        Raises:
            InvalidProblemError: ``url`` is not the address of a service.
        """
        key = os.environ.get("MESHWRIGHT_KEY", "").strip()
        is_key = key.isascii() and key.isprintable() and key
        try:
            self._client = Client(url, key if is_key else None, timeout_s=TIMEOUT_S, retry_s=0.0)
        except ValueError:
            raise InvalidProblemError.of(
                "--url",
                f'"{shown(url)}" is not the address of a service',
                allowed="http://HOST:PORT or https://HOST:PORT",
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_fault: object) -> None:
        self._client.close()

    def submit(self, request: Mapping[str, object], *, key: str | None, fresh: bool) -> dict[str, Any]:
        """Return the job of a request."""
        return self.call(
            "POST",
            "/v1/jobs",
            json=request,
            headers={"Idempotency-Key": key} if key else {},
            params={"fresh": "true"} if fresh else {},
        )

    def ended(self, job_id: str, on_progress: Callable[[State, Progress | None], None]) -> dict[str, Any]:
        """Return a job once it has ended."""
        with _told():
            self._client.wait(job_id, on_progress=on_progress)
        return self.call("GET", f"/v1/jobs/{job_id}")

    def answer(self, job_id: str) -> dict[str, Any]:
        """Return the answer of a finished job, with the first page of its plans."""
        return self.call("GET", f"/v1/jobs/{job_id}/plans", params={"page_size": 200})

    def call(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - the client's own
        """Return the JSON document of an answer."""
        with _told():
            body = body_of(self._client.request(method, path, **arguments))
        if not isinstance(body, dict):
            raise ServiceUnreachableError(_NO_SERVICE.format("the answer is no JSON object"))
        return _Document(body)

    def ask(self, method: str, path: str, **arguments: Any) -> httpx.Response:  # noqa: ANN401 - the same
        """Return the answer to a request."""
        with _told():
            return self._client.request(method, path, **arguments)


class _Document(dict[str, Any]):
    """A JSON object of a service; a missing name is the service's fault, not a bug here."""

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - never returns
        raise ServiceUnreachableError(_NO_SERVICE.format(f"{name} is missing"))


@contextmanager
def _told() -> Iterator[None]:
    """Turn what the client raises into the planner's errors."""
    try:
        yield
    except ServiceUnavailableError as fault:
        raise ServiceUnreachableError(f"--url: {fault}") from None
    except ProblemError as fault:
        if (fault.problem.status or 0) >= _SERVER_ERRORS:
            status = fault.problem.status
            raise ServiceUnreachableError(f"--url: the service cannot answer now ({status})") from None
        raise refusal_of(fault.problem) from None
    except MeshwrightError as fault:
        raise ServiceUnreachableError(f"--url: {fault}") from None
    except httpx.InvalidURL:  # a path with such an id
        message = "the id holds characters that no id has"
        raise InvalidProblemError([FieldError(pointer="", message=message)]) from None


def refusal_of(problem: Problem) -> InvalidProblemError:
    """Return what a service refuses as the planner would."""
    faults = [_field_error(fault) for fault in problem.errors or ()]
    said = problem.detail or problem.title or f"status {problem.status}"
    return InvalidProblemError(faults or [FieldError(pointer="", message=said)])


def _field_error(fault: FieldFault) -> FieldError:
    return FieldError(
        pointer=fault.pointer,
        message=fault.message,
        allowed=fault.allowed,
        nearest=fault.nearest,
        value=fault.value,
        values=fault.values,
        tip=tip_of(fault.tip),
    )
