"""Fleets: the list, and one fleet while it is planned and once it has a schedule."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from meshwright.service.api.deps import READS, JobsDep, PageToken, ServiceDep, TenantDep
from meshwright.service.api.routes.fleets import fleet_of
from meshwright.service.api.schemas import State
from meshwright.service.db.records import JobFilter, JobRecord
from meshwright.service.jobs.states import TERMINAL_STATES
from meshwright.service.report.fleet import fleet_page
from meshwright.service.web import views
from meshwright.service.web.callers import SUBMITS
from meshwright.service.web.rendering import page
from meshwright.service.web.routes.jobs import list_page
from meshwright.service.web.routes.searches import seen_at

router = APIRouter(prefix="/fleets")


@router.get("", dependencies=[READS])
def list_fleets(
    request: Request,
    jobs: JobsDep,
    tenant: TenantDep,
    page_token: PageToken = None,
    state: Annotated[State | None, Query()] = None,
) -> Response:
    """Fleets, newest first."""
    return list_page(
        request, "fleets.html", jobs, tenant, JobFilter(state=state, fleets=True), page_token=page_token
    )


@router.get("/{fleet_id}", dependencies=[READS])
def show_fleet(request: Request, fleet_id: str, service: ServiceDep, tenant: TenantDep) -> Response:
    """One fleet: how its planning goes, its schedule, or why there is none."""
    job = fleet_of(service, tenant, fleet_id)
    answer = job.answer or {}
    return page(
        request,
        "fleet.html",
        job=job,
        title=job.request["name"],
        num_jobs=len(job.request["jobs"]),
        words=views.STATE_WORDS[job.state],
        is_open=job.state not in TERMINAL_STATES,
        fleet=fleet_page(answer) if answer.get("jobs") else None,
        faults=[{**one, "title": _titled(job, one["field"])} for one in answer.get("faults", ())],
    )


def _titled(job: JobRecord, field: str) -> str:
    """Return the name of the job that a field such as ``/jobs/0/problem`` is of, or the field."""
    match field.split("/"):
        case ["", "jobs", number, *_] if number.isdigit() and int(number) < len(job.request["jobs"]):
            return str(job.request["jobs"][int(number)].get("name") or field)
    return field


@router.post("/{fleet_id}/cancel", dependencies=[SUBMITS])
def cancel(request: Request, fleet_id: str, service: ServiceDep, tenant: TenantDep) -> Response:
    """Stop planning a fleet; one that has ended does not change."""
    fleet_of(service, tenant, fleet_id)
    return seen_at(request, f"/fleets/{service.jobs.cancel(tenant, fleet_id).id}")
