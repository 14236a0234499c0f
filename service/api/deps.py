"""What routes ask for: the service behind the app, the caller's tenant, a strictly read body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query, Request
from fastapi.concurrency import run_in_threadpool

from service.api.errors import UnsupportedMediaTypeError
from service.db.database import Database
from service.jobs import Jobs
from service.json_input import read_json
from service.queue import WakeUpQueue
from service.settings import Settings

DEFAULT_TENANT = "default"  # without keys everybody on this machine is the same tenant
MAX_PAGE_SIZE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Everything behind the routes of one API process."""

    settings: Settings
    database: Database
    queue: WakeUpQueue
    jobs: Jobs
    is_stopping: Callable[[], bool]  # the server is shutting down: long polls end


def service_of(request: Request) -> Service:
    """The service that ``create_app`` put behind this app."""
    service: Service = request.app.state.service
    return service


def jobs_of(request: Request) -> Jobs:
    """The use cases of jobs."""
    return service_of(request).jobs


def tenant_of() -> str:
    """Who is asking."""
    return DEFAULT_TENANT


async def json_body(request: Request) -> Mapping[str, object]:
    """The JSON object in the body, read strictly.

    Raises:
        UnsupportedMediaTypeError: it is not declared as JSON (a web page may post plain text anywhere).
        InvalidProblemError: it is not a JSON object of plain values.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != "application/json":
        raise UnsupportedMediaTypeError("send the body as application/json")
    return await run_in_threadpool(read_json, await request.body())  # 8 MiB take their time


ServiceDep = Annotated[Service, Depends(service_of)]
JobsDep = Annotated[Jobs, Depends(jobs_of)]
TenantDep = Annotated[str, Depends(tenant_of)]
BodyDep = Annotated[Mapping[str, object], Depends(json_body)]
PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="entries of one page")]
PageToken = Annotated[str | None, Query(max_length=256, description="next_page_token of the page before")]
