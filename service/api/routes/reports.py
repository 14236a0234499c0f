"""Reports of answers as pages, and timelines of plans for Perfetto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse

from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.api.deps import READS, Service, ServiceDep, TenantDep, computed
from meshwright.service.api.problems import declared
from meshwright.service.db.records import JobRecord
from meshwright.service.errors import NotFoundError, NotReadyError
from meshwright.service.jobs.answers import answer_of, stored_plan
from meshwright.service.jobs.states import TERMINAL_STATES
from meshwright.service.report.fleet import fleet_page
from meshwright.service.report.formatting import configuration_words
from meshwright.service.report.page import content_security_policy, render_page
from meshwright.service.report.post_training import roles_page
from meshwright.service.report.trace import trace_of
from meshwright.service.reporting import (
    MOST_LISTED,
    ReportOptions,
    drawn_timelines,
    only,
    report_of,
    settled_for,
)
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import Answer
from meshwright.solver.problem import Problem

WHAT_IF_BUDGET_S = 2.0  # CPU seconds: this process predicts; searches are the workers'

router = APIRouter(prefix="/v1", tags=["reports"], responses=declared(401, 403, 422, 503))
WhatIf = Annotated[bool, Query(description="also predict other hardware and batches")]


@router.get(
    "/jobs/{job_id}/report",
    dependencies=[READS],
    response_class=HTMLResponse,
    responses=declared(404, 409, 429),
    summary="Report of a ranking",
)
async def report_job(
    request: Request, job_id: str, service: ServiceDep, tenant: TenantDep, *, what_if: WhatIf = True
) -> Response:
    """The ranking of a finished job as one self-contained page."""
    job, page = await run_in_threadpool(
        partial(service.jobs.plans, page_size=MOST_LISTED + 1, page_token=None), tenant, job_id
    )
    if job.num_children is not None:
        raise NotFoundError("a sweep has no report: open the report of one of its points")
    return await computed(request, partial(page_of_job, service, tenant, job, page.items, what_if=what_if))


@router.get(
    "/plans/{plan_id}/report",
    dependencies=[READS],
    response_class=HTMLResponse,
    responses=declared(404, 429),
    summary="Report of a plan",
)
async def report_plan(
    request: Request, plan_id: str, service: ServiceDep, tenant: TenantDep, *, what_if: WhatIf = True
) -> Response:
    """One plan as a self-contained page."""
    job, body = await run_in_threadpool(service.jobs.plan, tenant, plan_id)

    def made() -> Response:
        whole = answer_of(job.answer, [body])
        return _page(
            service, tenant, only(whole, whole.plans[0]), parse_problem(job.request), what_if=what_if
        )

    return await computed(request, made)


@router.get(
    "/plans/{plan_id}/timeline",
    dependencies=[READS],
    response_class=JSONResponse,
    responses=declared(404, 429),
    summary="Timeline of a plan's step",
)
async def trace_plan(
    request: Request, plan_id: str, service: ServiceDep, tenant: TenantDep
) -> dict[str, Any]:
    """Every pass of every pipeline rank in the Trace Event Format (Perfetto, chrome://tracing)."""
    job, body = await run_in_threadpool(service.jobs.plan, tenant, plan_id)

    def made() -> dict[str, Any]:
        problem, plan = parse_problem(job.request), stored_plan(body)
        profile, _ = profile_for(service, problem, (job.answer or {}).get("versions", {}))
        found, note = drawn_timelines(plan, *settled_for(plan, problem, profile))
        if not found:
            raise NotFoundError("the plan has no timeline: no order of passes is known for its schedule")
        return trace_of(found, title=f"#{plan.rank} {configuration_words(plan.config)}", note=note)

    return await computed(request, made)


def page_of_job(
    service: Service, tenant: str, job: JobRecord, plans: Sequence[Mapping[str, Any]], *, what_if: bool
) -> Response:
    """The report of a job with these plans."""
    if job.kind == POST_TRAINING:
        return _page_of_roles(job, plans)
    return _page(service, tenant, answer_of(job.answer, plans), parse_problem(job.request), what_if=what_if)


def _page_of_roles(job: JobRecord, plans: Sequence[Mapping[str, Any]]) -> Response:
    if not plans:
        raise NotFoundError("the roles can't be placed: GET /v1/jobs/{id}/plans says why")
    return _html(render_page(roles_page({**(job.answer or {}), "plans": list(plans)})))


def _page(service: Service, tenant: str, answer: Answer, problem: Problem, *, what_if: bool) -> Response:
    profile, is_own = profile_for(service, problem, answer.versions)
    asked = ReportOptions(
        what_if="predict" if what_if and is_own else "none",
        what_if_budget_s=WHAT_IF_BUDGET_S,
        verdicts=service.verifications.verdicts(tenant, [plan.plan_id for plan in answer.plans]),
    )
    return _html(render_page(report_of(answer, problem, profile, asked)))


def page_of_fleet(fleet: JobRecord) -> Response:
    """Return the report of a fleet that has a schedule.

    Raises:
        NotReadyError: it has none, or not yet.
    """
    answer = fleet.answer or {}
    if not answer.get("jobs"):
        raise NotReadyError(
            f"the fleet is {fleet.state} and has no schedule", finished=fleet.state in TERMINAL_STATES
        )
    return _html(render_page(fleet_page(answer)))


def _html(text: str) -> Response:
    return HTMLResponse(
        text,
        headers={
            "Content-Security-Policy": f"{content_security_policy()}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-cache",
        },
    )


def profile_for(service: Service, problem: Problem, versions: Mapping[str, str]) -> tuple[Profile, bool]:
    """The profile of an answer of these versions; the catalog's, and False, where its own is gone."""
    try:
        return service.profiles.profile_of(problem, version=versions.get("profile")), True
    except InvalidProblemError:
        return default_profile(problem.cluster, problem.priced_as), False
