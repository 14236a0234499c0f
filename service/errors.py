"""Errors of the service: what a request asks of records that do not allow it.

ServiceError
├── NotFoundError              no such job or plan for this tenant
├── NotReadyError              the job has no answer (yet)
├── MissingExtraError          what it would take is not installed here
├── ConflictError              the record is part of another one
├── IdempotencyConflictError   the key was used with another body
├── BadPageTokenError          this page token was not issued by this service
├── BusyError                  come back in a moment
├── TooManyRequestsError       this tenant has asked for as much as it may
├── UnauthorizedError          no usable key
├── ForbiddenError             the key's scope does not include this
└── ServerStartError           the server cannot start here
    └── DatabaseBusyError      another server owns the SQLite file

Every class has a stable ``code``; ``meshwright.service.api.errors`` maps codes to HTTP statuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.profiles.errors import FieldError

VARIABLES = "MESHWRIGHT_"  # how variables of the environment begin that are settings


class ServiceError(Exception):
    """The service cannot do what was asked."""

    code = "service_error"


class NotFoundError(ServiceError):
    """This tenant has no such record."""

    code = "not_found"


class NotReadyError(ServiceError):
    """The job has no answer; ``finished``: whether it can still get one."""

    code = "not_ready"

    def __init__(self, message: str, *, finished: bool) -> None:
        self.finished = finished
        super().__init__(message)


class MissingExtraError(ServiceError):
    """A package that this needs is not installed where the service runs."""

    code = "missing_extra"


class ConflictError(ServiceError):
    """The record is part of another one, and cannot be changed alone."""

    code = "conflict"


class IdempotencyConflictError(ServiceError):
    """The same idempotency key came with another body."""

    code = "idempotency_conflict"


class BadPageTokenError(ServiceError):
    """The page token was not issued by this service."""

    code = "bad_page_token"


class BusyError(ServiceError):
    """As many requests of a kind are in work as this server takes at a time, or another service is away."""

    code = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A limit that a request may meet, as RateLimit header fields name it."""

    name: str
    quota: int
    unit: str = "requests"
    window_s: int | None = None


class TooManyRequestsError(ServiceError):
    """This tenant is at its ``limit``; ``retry_after_s``: when to ask again."""

    code = "too_many_requests"

    def __init__(self, message: str, *, retry_after_s: float, limit: RateLimit) -> None:
        self.retry_after_s = retry_after_s
        self.limit = limit
        super().__init__(message)


class UnauthorizedError(ServiceError):
    """Keys are demanded, and the caller has sent none that is usable."""

    code = "unauthorized"


class ForbiddenError(ServiceError):
    """The caller's key does not allow this."""

    code = "forbidden"


class ServerStartError(ServiceError):
    """The server cannot start with these settings."""

    code = "server_start"


class DatabaseBusyError(ServerStartError):
    """Another server owns this SQLite file."""

    code = "database_busy"


def remedy_of(fault: FieldError) -> str:
    """Return the command that sets a variable of the environment right; empty where none is at fault."""
    return fault.tip if fault.pointer.startswith(VARIABLES) else ""
