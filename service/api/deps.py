"""What routes ask for: the service behind the app, the caller's tenant, a strictly read body."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Query, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from profiles.errors import InvalidProblemError
from service.access import Access, Caller
from service.api.errors import UnsupportedMediaTypeError
from service.api.metrics import Metrics
from service.api.watch import Watch
from service.db.database import Database
from service.db.records import Origin
from service.definitions import Definitions
from service.idempotency import Repeatable, digest_of
from service.jobs import Jobs
from service.json_input import read_json
from service.logs import add
from service.measurements import Measurements
from service.profile_store import ProfileStore
from service.queue import WakeUpQueue
from service.settings import Settings
from service.telemetry import current_traceparent

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")  # W3C, level 1
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
MAX_PAGE_SIZE = 200
SESSION_COOKIE = "meshwright_session"
_READING = frozenset({"GET", "HEAD"})
SMALL_BYTES = 16 * 2**10  # of a body that is read at once: 0.5 ms; 8 MiB take their time, on a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything behind the routes of one API process."""

    settings: Settings
    database: Database
    access: Access
    metrics: Metrics
    queue: WakeUpQueue
    jobs: Jobs
    profiles: ProfileStore
    definitions: Definitions
    measurements: Measurements
    watch: Watch  # of jobs, for long polls and event streams


def service_of(request: Request) -> Service:
    """The service that ``create_app`` put behind this app."""
    service: Service = request.app.state.service
    return service


# Dependencies are coroutines though they wait for nothing: FastAPI would give each to a thread.
async def _given_service(request: Request) -> Service:
    return service_of(request)


async def jobs_of(request: Request) -> Jobs:
    """The use cases of jobs."""
    return service_of(request).jobs


_BEARER = HTTPBearer(
    scheme_name="key",
    description="`meshwright keys create` makes one; a database that never had a key demands none",
    auto_error=False,
)


async def authorize(
    request: Request,
    wanted: SecurityScopes,
    given: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
) -> None:
    """Find out who is asking, before anything else of the request is looked at.

    Raises:
        UnauthorizedError: keys are demanded, and the caller has none that is usable.
        ForbiddenError: the key's scope does not include this address.
    """
    token = given.credentials if given else None
    if token is None and request.method in _READING:
        token = session_of(request)  # never for writing: a browser sends it along unasked
    await admit(request, token, wanted.scopes)


def session_of(request: Request) -> str | None:
    """The token of the session that a browser is in."""
    return request.cookies.get(SESSION_COOKIE)


async def admit(request: Request, token: str | None, scopes: Iterable[str]) -> None:
    """Find out whose a token is, and remember it for the rest of the request.

    Raises:
        UnauthorizedError: keys are demanded, and this is none that is usable.
        ForbiddenError: its scope is too narrow.
    """
    access = service_of(request).access
    caller = access.remembered(token)
    if caller is None:
        caller = await run_in_threadpool(access.identify, token)
    for scope in scopes:
        caller.require(scope)
    request.state.caller = caller
    add(tenant=caller.tenant)


# Every address but the probes names one of these; one that forgets to has no caller, and fails.
READS = Security(authorize, scopes=["read"])
SUBMITS = Security(authorize, scopes=["submit"])
ADMINISTERS = Security(authorize, scopes=["admin"])


async def caller_of(request: Request) -> Caller:
    """Who is asking, as ``authorize`` found out."""
    caller: Caller = request.state.caller
    return caller


async def tenant_of(request: Request) -> str:
    """Whose records the caller may see."""
    caller: Caller = request.state.caller
    return caller.tenant


async def json_body(request: Request) -> Mapping[str, object]:
    """The JSON object in the body, read strictly.

    Raises:
        UnsupportedMediaTypeError: it is not declared as JSON (a web page may post plain text anywhere).
        InvalidProblemError: it is not a JSON object of plain values.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != "application/json":
        raise UnsupportedMediaTypeError("send the body as application/json")
    body = await request.body()
    return read_json(body) if len(body) <= SMALL_BYTES else await run_in_threadpool(read_json, body)


async def idempotency_key_of(
    idempotency_key: Annotated[str | None, Header(description="makes a repeated request safe")] = None,
) -> str | None:
    """The key that makes a repeated request safe.

    Raises:
        InvalidProblemError: it has characters that no key may have.
    """
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        allowed = "1 to 255 visible ASCII characters"
        raise InvalidProblemError.of("/header/Idempotency-Key", "is not usable", allowed=allowed)
    return idempotency_key


def repeatable_of(service: Service, key: str | None, *parts: object) -> Repeatable:
    """A request under its key: ``parts`` are what it asks for."""
    return Repeatable(key=key, digest=digest_of(*parts), ttl_s=service.settings.idempotency_ttl_s)


def origin_of(request: Request) -> Origin:
    """Where a request came from, to be kept with what it starts."""
    given = request.headers.get("traceparent", "")
    asked = given if _TRACEPARENT.fullmatch(given) else None
    return Origin(request_id=request.state.request_id, traceparent=current_traceparent() or asked)


async def profiles_of(request: Request) -> ProfileStore:
    """The use cases of stored profiles."""
    return service_of(request).profiles


ServiceDep = Annotated[Service, Depends(_given_service)]
JobsDep = Annotated[Jobs, Depends(jobs_of)]
KeyDep = Annotated[str | None, Depends(idempotency_key_of)]
ProfilesDep = Annotated[ProfileStore, Depends(profiles_of)]
CallerDep = Annotated[Caller, Depends(caller_of)]
TenantDep = Annotated[str, Depends(tenant_of)]
BodyDep = Annotated[Mapping[str, object], Depends(json_body)]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="entries of one page")]
PageToken = Annotated[str | None, Query(max_length=256, description="next_page_token of the page before")]
