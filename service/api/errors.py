"""The one table from errors to HTTP statuses. Input is never echoed, and nothing answers in plain text."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from meshwright.profiles.documents import pointer
from meshwright.profiles.errors import (
    MAX_SHOWN,
    FieldError,
    InvalidProblemError,
    PlannerError,
    RefusedExportError,
)
from meshwright.service.api.problems import CLIENT_LEFT, problem_response
from meshwright.service.db.database import DATABASE_AWAY
from meshwright.service.errors import (
    BadPageTokenError,
    BusyError,
    NotReadyError,
    ServiceError,
    TooManyRequestsError,
    UnauthorizedError,
)
from meshwright.service.requests.schema import field_error

RETRY_AFTER_S = 2
_PAGES = "next_page_token from a page of the same list with the same sort order, or none for the first page"
STATUS_OF: Mapping[str, int] = {
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "body_too_slow": 408,
    "not_ready": 409,
    "missing_extra": 409,
    "conflict": 409,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "misdirected": 421,
    "invalid_problem": 422,
    "unknown_name": 422,
    "unsupported_model": 422,
    "refused_export": 422,
    "idempotency_conflict": 422,
    "bad_page_token": 422,
    "too_many_requests": 429,
    "busy": 503,
}
_log = logging.getLogger(__name__)


class BodyTooLargeError(ServiceError):
    """The body is longer than a request to this address may be."""

    code = "body_too_large"


class BodyTooSlowError(ServiceError):
    """The body did not arrive in time."""

    code = "body_too_slow"


class UnsupportedMediaTypeError(ServiceError):
    """The body is not declared as JSON."""

    code = "unsupported_media_type"


def install(app: FastAPI) -> None:
    """Make every error of ``app`` a problem document."""
    app.add_exception_handler(PlannerError, _planner_error)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(RequestValidationError, _bad_parameters)
    app.add_exception_handler(HTTPException, _http_error)
    for away in DATABASE_AWAY:
        app.add_exception_handler(away, _database_error)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _bug)


def _planner_error(request: Request, error: Exception) -> Response:
    """Bad input names its fields; anything else of the core is a bug."""
    if not isinstance(error, InvalidProblemError | RefusedExportError):
        return _bug(request, error)
    detail = "some fields are invalid" if len(error.errors) > 1 else "a field is invalid"
    if isinstance(error, RefusedExportError):
        detail = "the launcher cannot express this plan"
    return problem_response(
        request, STATUS_OF[error.code], code=error.code, detail=detail, errors=error.errors
    )


def _service_error(request: Request, error: Exception) -> Response:
    code = error.code if isinstance(error, ServiceError) else ""
    if code not in STATUS_OF:
        return _bug(request, error)
    headers: dict[str, str] = {}
    if isinstance(error, BusyError) or (isinstance(error, NotReadyError) and not error.finished):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, TooManyRequestsError):
        headers |= _limit_headers(error)
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = "Bearer"
    faults = [FieldError(pointer="/query/page_token", message=str(error), allowed=_PAGES)]
    return problem_response(
        request, STATUS_OF[code], code=code, detail=str(error), headers=headers,
        errors=faults if isinstance(error, BadPageTokenError) else (),
    )  # fmt: skip


def _limit_headers(error: TooManyRequestsError) -> dict[str, str]:
    """Return when to ask again, and which limit was met (draft-ietf-httpapi-ratelimit-headers-10)."""
    limit, wait_s = error.limit, max(1, math.ceil(error.retry_after_s))
    policy = f'"{limit.name}";q={limit.quota}'
    policy += f';qu="{limit.unit}"' if limit.unit != "requests" else ""
    policy += f";w={limit.window_s}" if limit.window_s is not None else ""
    return {
        "Retry-After": str(wait_s),
        "RateLimit-Policy": policy,
        "RateLimit": f'"{limit.name}";r=0;t={wait_s}',
    }


def _bad_parameters(request: Request, error: Exception) -> Response:
    found = error.errors() if isinstance(error, RequestValidationError) else []
    return problem_response(
        request,
        422,
        code="invalid_parameter",
        detail="a parameter is invalid",
        errors=[_bad_parameter(request, fault) for fault in found],
    )


def _bad_parameter(request: Request, fault: Any) -> FieldError:  # noqa: ANN401 - a record of pydantic's
    """One wrong parameter; of a query that has a shape of its own, with what it may be."""
    where = [str(part) for part in fault["loc"][:2]]
    at = pointer(*(part[:MAX_SHOWN] for part in where))
    dependant = getattr(request.scope.get("route"), "dependant", None)
    shapes = [one.field_info.annotation for one in getattr(dependant, "query_params", ())]
    shapes = [one for one in shapes if isinstance(one, type) and issubclass(one, BaseModel)]
    if where[0] == "query" and where[1:] and shapes:
        inside: Any = {**fault, "loc": tuple(where[1:])}
        return replace(field_error(inside, shapes[0]), pointer=at)
    return FieldError(pointer=at, message=fault["msg"])


def _http_error(request: Request, error: Exception) -> Response:
    status, headers = 500, None
    if isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
    names = {404: "not_found", 405: "method_not_allowed"}
    details = {
        404: "there is nothing at this address. The API is at /v1 (see /openapi.json), "
        "its health at /livez and /readyz, and the pages begin at /",
        405: "this address does not take this method",
    }
    return problem_response(
        request, status, code=names.get(status, "http_error"), detail=details.get(status), headers=headers
    )


def _database_error(request: Request, error: Exception) -> Response:
    """The database is away, locked or full: come back later."""
    # One line: thousands of requests may meet the same outage.
    _log.error("the database failed: %s", str(getattr(error, "orig", error)).partition("\n")[0])
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    code, what = "database_unavailable", "the database does not answer"
    if request.app.state.service.database.is_full(error):
        code, what = (
            "disk_full",
            "the database's disk is full: nothing can be stored until space is freed",
        )
    return problem_response(request, 503, code=code, detail=f"{what}. Nothing was lost", headers=headers)


def _gone(_request: Request, _error: Exception) -> Response:
    """Answer a client that left before its body arrived; only metrics and log see the status."""
    return Response(status_code=CLIENT_LEFT)


def _bug(request: Request, error: Exception) -> Response:
    _log.error("an unexpected error", exc_info=error)
    return problem_response(request, 500, code="internal_error", detail="this is a bug of the service")
