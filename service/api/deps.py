"""Dependencies of routes: the service behind the app, the caller's tenant, a strictly read body."""

from __future__ import annotations

import asyncio
import re
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Header, Query, Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from pydantic import BaseModel

from meshwright.profiles.documents import DOCUMENT, PROBLEM, InputLimits, read_json
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.reading import FieldReader
from meshwright.service.api.errors import (
    BodyTooLargeError,
    BodyTooSlowError,
    UnsupportedMediaTypeError,
)
from meshwright.service.api.metrics import Metrics
from meshwright.service.api.turns import Turns
from meshwright.service.api.watch import EventWatch
from meshwright.service.auth.access import Access, Caller
from meshwright.service.auth.people import People
from meshwright.service.db.database import Database
from meshwright.service.db.records import Origin
from meshwright.service.jobs.idempotency import Repeatable, digest_of
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import WakeUpQueue
from meshwright.service.jobs.spending import Spender, Spending
from meshwright.service.settings import Settings
from meshwright.service.stores.definitions import Definitions
from meshwright.service.stores.measurements import Measurements
from meshwright.service.stores.profiles import ProfileStore
from meshwright.service.stores.replans import Replans
from meshwright.service.stores.verifications import Verifications
from meshwright.service.telemetry import add, current_traceparent

Made = TypeVar("Made")
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")  # W3C, level 1
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
MAX_PAGE_SIZE = 200
SESSION_COOKIE = "meshwright_session"
_READING = frozenset({"GET", "HEAD"})
_API = "/v1/"  # pages pass over what links to them carry
SMALL_BYTES = 16 * 2**10  # of a body that waits for no other, and is parsed at once: 0.5 ms
MAX_PROBLEMS = 6  # larger ones at a time, from their first byte to the answer: up to 6 MiB of memory each
PROBLEMS_SHARE = 4  # of them, one tenant's
MAX_DOCUMENTS = 3  # the same of what may hold tables: up to 60 MiB each
DOCUMENTS_SHARE = 2
MAX_COMPUTING = 3  # predictions, re-plans, reports, calibrations at a time: more wait for the processor
COMPUTING_SHARE = 2
MAX_WAIT_FOR_TURN_S = 10.0
MAX_FOLLOWING = 3000  # event streams and long polls of a process: up to 55 KiB and an open file each
FOLLOWING_FILES = 0.75  # of the files that a process may open
MAX_UPLOAD_S = 30.0  # 8 MiB at 2.3 Mbit/s; a body that trickles in holds up others
SLOW_START_S = 5.0  # then a body has to have come at this rate
MIN_BYTES_PER_S = 2**15


def _turns(what: str, size: int, share: int, *, max_wait_s: float | None = None) -> Turns:
    wait_s = MAX_WAIT_FOR_TURN_S if max_wait_s is None else max_wait_s
    return Turns(what, size=size, share=share, max_wait_s=wait_s)


def turns_of_process() -> dict[str, Turns]:
    """Return the turns that tenants take, by their field of ``Service``."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = files != resource.RLIM_INFINITY and FOLLOWING_FILES * files < MAX_FOLLOWING
    following = int(FOLLOWING_FILES * files) if few else MAX_FOLLOWING
    return {
        "problems": _turns("large bodies", MAX_PROBLEMS, PROBLEMS_SHARE),
        "documents": _turns("large bodies", MAX_DOCUMENTS, DOCUMENTS_SHARE),
        "computing": _turns(
            "predictions, re-plans, reports and calibrations", MAX_COMPUTING, COMPUTING_SHARE
        ),
        "following": _turns("requests that follow a job", following, following * 2 // 3, max_wait_s=0.0),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything behind the routes of one API process."""

    settings: Settings
    database: Database
    access: Access
    people: People
    metrics: Metrics
    spending: Spending
    queue: WakeUpQueue
    jobs: Jobs
    profiles: ProfileStore
    definitions: Definitions
    measurements: Measurements
    replans: Replans
    verifications: Verifications
    watch: EventWatch  # of jobs, for long polls and event streams
    problems: Turns
    documents: Turns
    computing: Turns
    following: Turns


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
    description="create one with `meshwright keys create` (a database without keys needs none)",
    auto_error=False,
)


async def authorize(
    request: Request,
    wanted: SecurityScopes,
    given: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)],
) -> None:
    """Find out who is asking, before anything else of the request is looked at; then what is asked.

    Raises:
        UnauthorizedError: keys are demanded, and the caller has none that is usable.
        ForbiddenError: the key's scope does not include this address.
        InvalidProblemError: the query has parameters that this address does not take.
    """
    token = given.credentials if given else None
    if token is None and request.method in _READING:
        token = session_of(request)  # never for writing: a browser sends it along unasked
    await admit(request, token, wanted.scopes)
    if request.scope["path"].startswith(_API):  # request.url takes 30 us
        _require_known(request)


def _require_known(request: Request) -> None:
    given = Counter(name for name, _ in request.query_params.multi_items())
    reader = FieldReader(given, "/query")
    route = request.scope["route"].dependant
    for one in (
        *route.query_params,
        *(inner for part in route.dependencies for inner in part.query_params),
    ):
        shape = one.field_info.annotation
        for name in given if isinstance(shape, type) and issubclass(shape, BaseModel) else (one.alias,):
            reader.value(name)  # a shape names by itself what it does not know
    for name, times in given.items():
        if times > 1:
            reader.fault(name, f"is given {times} times", allowed="once")
    reader.refuse_unknown()
    reader.finish()


def session_of(request: Request) -> str | None:
    """The token of the session that a browser is in."""
    return request.cookies.get(SESSION_COOKIE)


async def admit(request: Request, token: str | None, scopes: Iterable[str]) -> None:
    """Find the caller of a token, and remember it for the rest of the request.

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
    """The tenant with the records that the caller may see."""
    caller: Caller = request.state.caller
    return caller.tenant


def object_of(limits: InputLimits) -> Callable[[Request], AsyncIterator[Mapping[str, object]]]:
    """Return the dependency that reads the JSON object in a body.

    It raises UnsupportedMediaTypeError if the body is not declared as JSON: a web page may post plain text
    anywhere, JSON only where it is allowed to. It raises InvalidProblemError if the body is not a JSON
    object of plain values, or holds too many, and what ``arriving`` raises.
    """

    async def read(request: Request) -> AsyncIterator[Mapping[str, object]]:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise UnsupportedMediaTypeError("send the body as application/json")
        async with arriving(request, limits) as chunks:
            body = b"".join([chunk async for chunk in chunks])
            small = len(body) <= SMALL_BYTES
            yield read_json(body, limits) if small else await run_in_threadpool(read_json, body, limits)

    return read


async def no_fields(request: Request) -> None:
    """Refuse a body that asks for something where nothing can be asked for.

    Raises:
        InvalidProblemError: it holds anything but an empty JSON object.
        BodyTooLargeError, BodyTooSlowError, BusyError: as ``arriving``.
    """
    async with arriving(request, PROBLEM) as chunks:
        body = b"".join([chunk async for chunk in chunks])
    if body.strip():
        reader = FieldReader(read_json(body, PROBLEM), "")
        reader.refuse_unknown()
        reader.finish()


@asynccontextmanager
async def arriving(request: Request, limits: InputLimits) -> AsyncIterator[AsyncIterator[bytes]]:
    """The pieces of a body. A large one waits for its turn, which lasts until the request was worked on.

    Raises:
        BodyTooLargeError: the body is, or says that it is, too long.
        BodyTooSlowError: it came slower than ``MIN_BYTES_PER_S``, or not within ``MAX_UPLOAD_S``.
        BusyError: it did not get its turn within ``MAX_WAIT_FOR_TURN_S``.
    """
    said = request.headers.get("content-length", "")
    announced = int(said[:20]) if said.isdecimal() else limits.max_bytes  # sent in chunks: any length
    _require_room(announced, limits)
    if min(announced, limits.max_bytes) <= SMALL_BYTES:
        yield _pieces(request, limits)
        return
    service = service_of(request)
    turns = service.problems if limits.max_bytes <= PROBLEM.max_bytes else service.documents
    async with turns.turn(_party_of(request)):
        yield _pieces(request, limits)


async def following(request: Request) -> AsyncIterator[None]:
    """Hold one of the turns of those who follow a job, until the last byte is sent.

    Raises:
        BusyError: this tenant, or all together, hold as many as they may.
    """
    async with service_of(request).following.turn(_party_of(request)):
        yield


async def computed(request: Request, work: Callable[[], Made], *, of: Spender | None = None) -> Made:
    """Return the result of work that computes for seconds, in a thread, once it is its turn.

    Look up first what the request names: an unknown id must not wait. A waiting request has no thread.
    The CPU seconds are the caller's, or those of ``of``, where a link has no caller.

    Raises:
        BusyError: it did not get its turn within ``MAX_WAIT_FOR_TURN_S``.
        TooManyRequestsError: the CPU seconds of today are used up.
    """
    service, spender = service_of(request), of or spender_of(request.state.caller)
    async with service.computing.turn(_party_of(request)):
        return await run_in_threadpool(service.spending.metered, spender, work)


def spender_of(caller: Caller) -> Spender:
    """Whose CPU seconds the work of a caller takes."""
    return Spender(tenant=caller.tenant, key_id=caller.key_id, most_s=caller.max_cpu_s_per_day)


def _party_of(request: Request) -> str:
    """Return who shares turns: a tenant, or all those who have a link and no key."""
    caller: Caller | None = getattr(request.state, "caller", None)
    return "" if caller is None else caller.tenant


async def _pieces(request: Request, limits: InputLimits) -> AsyncIterator[bytes]:
    num_bytes = 0
    began_s = asyncio.get_running_loop().time()
    stream = aiter(request.stream())
    while True:
        allowed_s = min(MAX_UPLOAD_S, SLOW_START_S + num_bytes / MIN_BYTES_PER_S)
        try:
            async with asyncio.timeout_at(began_s + allowed_s):
                piece = await anext(stream, None)
        except TimeoutError:
            raise BodyTooSlowError(
                f"{num_bytes} bytes of the body arrived in {allowed_s:.3g} s. "
                f"Send at least {MIN_BYTES_PER_S} bytes a second, all within {MAX_UPLOAD_S:g} s"
            ) from None
        if piece is None:
            return
        num_bytes += len(piece)
        _require_room(num_bytes, limits)
        if piece:
            yield piece


def _require_room(num_bytes: int, limits: InputLimits) -> None:
    if num_bytes > limits.max_bytes:
        raise BodyTooLargeError(f"the body may have at most {limits.max_bytes} bytes here: {limits.advice}")


async def idempotency_key_of(
    idempotency_key: Annotated[str | None, Header(description="makes a repeated request safe")] = None,
) -> str | None:
    """The key that makes a repeated request safe.

    Raises:
        InvalidProblemError: it has characters that no key may have.
    """
    if idempotency_key is not None and not _KEY.fullmatch(idempotency_key):
        raise InvalidProblemError.of(
            "/header/Idempotency-Key", "is not usable", allowed="1 to 255 visible ASCII characters"
        )
    return idempotency_key


def repeatable_of(service: Service, key: str | None, *parts: object) -> Repeatable:
    """A request under its key: ``parts`` are what it asks for."""
    return Repeatable(
        key=key,
        digest=digest_of(*parts) if key is not None else "",
        ttl_s=service.settings.idempotency_ttl_s,
    )


def origin_of(request: Request) -> Origin:
    """Where a request came from, to be kept with what it starts."""
    given = request.headers.get("traceparent", "")
    asked = given if _TRACEPARENT.fullmatch(given) else None
    return Origin(request_id=request.state.request_id, traceparent=current_traceparent() or asked)


NO_FIELDS = Depends(no_fields)
FOLLOWS = Depends(following)
ServiceDep = Annotated[Service, Depends(_given_service)]
JobsDep = Annotated[Jobs, Depends(jobs_of)]
KeyDep = Annotated[str | None, Depends(idempotency_key_of)]
CallerDep = Annotated[Caller, Depends(caller_of)]
TenantDep = Annotated[str, Depends(tenant_of)]
BodyDep = Annotated[Mapping[str, object], Depends(object_of(PROBLEM), scope="function")]
DocumentDep = Annotated[Mapping[str, object], Depends(object_of(DOCUMENT), scope="function")]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="entries of one page")]
PageToken = Annotated[str | None, Query(max_length=256, description="next_page_token of the page before")]
