"""Fleets: several jobs on one cluster, planned together as one job of the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse

from meshwright.launchers.target import ExportBundle
from meshwright.service.api.deps import (
    NO_FIELDS,
    READS,
    SUBMITS,
    BodyDep,
    CallerDep,
    JobsDep,
    KeyDep,
    Service,
    ServiceDep,
    TenantDep,
    computed,
    origin_of,
)
from meshwright.service.api.openapi import FLEET_BODY, FLEET_STATE_BODY
from meshwright.service.api.problems import declared
from meshwright.service.api.routes.jobs import RETRY_AFTER_S, looked_at, parser_of, submission_of_question
from meshwright.service.api.routes.reports import page_of_fleet
from meshwright.service.api.schemas import (
    FleetDetail,
    FleetFilesView,
    FleetPage,
    ListQuery,
    fleet_detail,
    fleet_view,
)
from meshwright.service.api.tags import tagged
from meshwright.service.auth.access import Caller
from meshwright.service.db.records import UNREADABLE_HEADING, JobRecord, Origin
from meshwright.service.errors import NotFoundError
from meshwright.service.files import zipped
from meshwright.service.fleets.files import fleet_files
from meshwright.service.fleets.question import FleetQuestion, read_question, versions_of_fleet
from meshwright.service.fleets.stored import question_again, scheduled_again
from meshwright.service.jobs.states import FLEET
from meshwright.service.jobs.submission import FleetAsked, Submission
from meshwright.service.stores.deletion import Deletion

router = APIRouter(prefix="/v1/fleets", tags=["fleets"], responses=declared(401, 403, 422, 503))


def submission_of_fleet(
    service: Service,
    caller: Caller,
    body: Mapping[str, object],
    *,
    fresh: bool,
    idempotency_key: str | None,
    origin: Origin,
) -> Submission:
    """Return the submission of a fleet.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``body``.
    """

    def read(raw: dict[str, object]) -> FleetAsked:
        if "cluster" in raw:
            stated = service.definitions.filled_in(caller.tenant, {"cluster": raw["cluster"]})
            raw["cluster"] = stated["cluster"]
        return asked(read_question(raw, parser_of(service, caller.tenant)))

    return submission_of_question(
        body, caller, read, fresh=fresh, idempotency_key=idempotency_key, origin=origin
    )


def asked(question: FleetQuestion) -> FleetAsked:
    """Return a fleet in the form that is stored."""
    return FleetAsked(
        request=question.request,
        versions=versions_of_fleet(question.fleet),
        time_limit_s=question.time_limit_s,
    )


@router.post(
    "",
    dependencies=[SUBMITS],
    status_code=202,
    response_model=FleetDetail,
    responses=declared(408, 413, 415, 429),
    openapi_extra=FLEET_BODY,
    summary="Submit a fleet",
)
def submit_fleet(
    request: Request,
    body: BodyDep,
    service: ServiceDep,
    caller: CallerDep,
    *,
    fresh: Annotated[bool, Query(description="plan again even if the answer is known")] = False,
    idempotency_key: KeyDep,
) -> Response:
    """Submit jobs that share one cluster; a fleet that was answered before returns the earlier one."""
    submission = submission_of_fleet(
        service, caller, body, fresh=fresh, idempotency_key=idempotency_key, origin=origin_of(request)
    )
    return _accepted(service.jobs.submit(caller.tenant, submission))


@router.get("", dependencies=[READS], response_model=FleetPage, summary="List fleets")
def list_fleets(query: Annotated[ListQuery, Query()], jobs: JobsDep, caller: CallerDep) -> Response:
    """Fleets, newest first: all, or those in a state, of an owner or with labels.

    With several filters, a page may be short or empty: the list ends where there is no next token.
    """
    page = jobs.page(
        caller.tenant,
        query.wanted(caller.key_id, fleets=True),
        page_size=query.page_size,
        page_token=query.page_token,
    )
    headings = jobs.headings(caller.tenant, [one.id for one in page.items])
    view = FleetPage(
        fleets=[fleet_view(one, headings.get(one.id, UNREADABLE_HEADING)) for one in page.items],
        next_page_token=page.next_page_token,
    )
    return Response(view.model_dump_json(exclude_none=True), media_type="application/json")


@router.get(
    "/{fleet_id}",
    dependencies=[READS],
    response_model=FleetDetail,
    responses={304: {"description": "Unchanged since If-None-Match"}, **declared(404)},
    summary="Look at a fleet",
)
async def read_fleet(
    request: Request,
    fleet_id: str,
    service: ServiceDep,
    tenant: TenantDep,
    *,
    wait: Annotated[float, Query(ge=0, le=60, description="seconds to wait for a change")] = 0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """One fleet; ``wait`` works as for a job."""
    await run_in_threadpool(fleet_of, service, tenant, fleet_id)
    return await looked_at(request, service, fleet_id, wait=wait, tag=if_none_match, shown=_detail)


@router.get(
    "/{fleet_id}/report",
    dependencies=[READS],
    response_class=HTMLResponse,
    responses=declared(404, 409),
    summary="Report of a fleet",
)
def report_fleet(fleet_id: str, service: ServiceDep, tenant: TenantDep) -> Response:
    """The schedule of an answered fleet as one self-contained page: proof, Gantt chart, table and rules."""
    return page_of_fleet(fleet_of(service, tenant, fleet_id))


@router.get(
    "/{fleet_id}/export",
    dependencies=[READS],
    responses=declared(404, 409, 429),
    summary="Launch files and start list of a fleet",
)
async def export_fleet(
    request: Request, fleet_id: str, service: ServiceDep, tenant: TenantDep
) -> FleetFilesView:
    """The launch files of each plan, in a folder by job, and ``start.sh``, which queues them with Slurm."""
    made = await _files(request, fleet_id, service, tenant)
    return FleetFilesView(fleet_id=fleet_id, files=made.files, warnings=made.warnings)


@router.get(
    "/{fleet_id}/export.zip",
    dependencies=[READS],
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}}, **declared(404, 409, 429)},
    summary="Launch files and start list of a fleet, as an archive",
)
async def export_fleet_archive(
    request: Request, fleet_id: str, service: ServiceDep, tenant: TenantDep
) -> Response:
    """The files of ``export`` as a zip archive; scripts are executable."""
    made = await _files(request, fleet_id, service, tenant)
    return Response(
        zipped(made.files),
        media_type="application/zip",
        headers={"Content-Disposition": f'attachment; filename="fleet-{fleet_id}.zip"'},
    )


@router.post(
    "/{fleet_id}:cancel",
    dependencies=[SUBMITS, NO_FIELDS],
    response_model=FleetDetail,
    responses=declared(404, 408, 413),
    summary="Cancel a fleet",
)
def cancel_fleet(
    fleet_id: str, service: ServiceDep, tenant: TenantDep, idempotency_key: KeyDep
) -> Response:
    """Stop planning a fleet; repeating it, or a finished fleet, changes nothing."""
    fleet_of(service, tenant, fleet_id)
    return _detail(service.jobs.cancel(tenant, fleet_id, key=idempotency_key))


@router.post(
    "/{fleet_id}:replan",
    dependencies=[SUBMITS],
    status_code=202,
    response_model=FleetDetail,
    responses=declared(404, 408, 409, 413, 415, 429),
    openapi_extra=FLEET_STATE_BODY,
    summary="Plan a running fleet again",
)
def replan_fleet(
    request: Request,
    fleet_id: str,
    body: BodyDep,
    service: ServiceDep,
    caller: CallerDep,
    *,
    idempotency_key: KeyDep,
) -> Response:
    """Plan again as a new fleet, linked from this one, after nodes were lost or jobs changed.

    Jobs run as planned where the body does not mention them; running jobs keep their nodes.
    """
    tenant = caller.tenant
    fleet = fleet_of(service, tenant, fleet_id)
    service.jobs.parts(tenant, fleet)  # it has a schedule
    question = question_again(fleet.request, fleet.answer or {}, body, parser_of(service, tenant))
    submission = Submission(
        fleet=replace(asked(question), replans=fleet_id),
        body={**body, "replans": fleet_id},
        idempotency_key=idempotency_key,
        origin=origin_of(request),
        owner=caller.key_id,
        max_cpu_s_per_day=caller.max_cpu_s_per_day,
        labels=fleet.labels or {},
    )
    return _accepted(service.jobs.submit(tenant, submission))


@router.delete(
    "/{fleet_id}",
    status_code=204,
    dependencies=[SUBMITS],
    responses=declared(404),
    summary="Delete a fleet",
)
def delete_fleet(fleet_id: str, service: ServiceDep, caller: CallerDep) -> None:
    """Delete a fleet in any state, with the plans of its jobs and its events."""
    fleet_of(service, caller.tenant, fleet_id)
    Deletion(service.database, actor=caller.actor).job(caller.tenant, fleet_id)


def fleet_of(service: Service, tenant: str, fleet_id: str) -> JobRecord:
    """Return one fleet.

    Raises:
        NotFoundError: this tenant has no such fleet.
    """
    try:
        job = service.jobs.read(tenant, fleet_id)
    except NotFoundError:
        job = None
    if job is None or job.kind != FLEET:
        raise NotFoundError("there is no such fleet")
    return job


async def _files(request: Request, fleet_id: str, service: Service, tenant: str) -> ExportBundle:
    """Return the files of an answered fleet.

    Raises:
        NotFoundError: this tenant has no such fleet.
        NotReadyError: it has no schedule, or not yet.
    """
    job = await run_in_threadpool(fleet_of, service, tenant, fleet_id)
    parts = await run_in_threadpool(service.jobs.parts, tenant, job)
    return await computed(
        request, lambda: fleet_files(scheduled_again(job.request, job.answer or {}, parts))
    )


def _accepted(job: JobRecord) -> Response:
    return _detail(
        job, status=202, headers={"Location": f"/v1/fleets/{job.id}", "Retry-After": str(RETRY_AFTER_S)}
    )


def _detail(job: JobRecord, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return tagged(fleet_detail(job).model_dump_json(exclude_none=True), status=status, headers=headers)
