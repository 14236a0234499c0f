"""Plans: one plan by its id, and its launch files."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from meshwright.launchers.registry import export, launcher_of
from meshwright.launchers.schedulers import SCHEDULERS, Start, scheduled
from meshwright.launchers.target import ExportBundle
from meshwright.service.api.deps import (
    NO_FIELDS,
    READS,
    SUBMITS,
    BodyDep,
    CallerDep,
    JobsDep,
    KeyDep,
    ServiceDep,
    TenantDep,
    computed,
    repeatable_of,
    spender_of,
)
from meshwright.service.api.openapi import MEASUREMENT_BODY
from meshwright.service.api.problems import declared
from meshwright.service.api.schemas import (
    ExportView,
    MeasurementView,
    PlanPage,
    PlanQuery,
    PlanView,
    VerificationView,
    plan_summary,
)
from meshwright.service.db.database import compact_json
from meshwright.service.errors import MissingExtraError, NotFoundError
from meshwright.service.jobs.answers import stored_plan
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.post_training.stored import exported_roles
from meshwright.service.requests.checks import check_launcher, check_risk
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.service.requests.parse import parse_problem
from meshwright.service.verify.environments import MissingEnvironmentError
from meshwright.service.verify.verify import environment_of
from meshwright.solver.answer import Plan, settled_problem
from meshwright.solver.problem import Problem

LauncherQuery = Annotated[str | None, Query(max_length=64, description="default: the problem's")]
SchedulerQuery = Annotated[
    str, Query(max_length=64, description=f"what starts the job: {', '.join(SCHEDULERS)}")
]
ImageQuery = Annotated[
    str | None,
    Query(max_length=500, description="container image with the launcher, for schedulers other than slurm"),
]


def exported(
    plan: Plan, problem: Problem, launcher: str, start: Start, *, accept_risk: bool
) -> ExportBundle:
    """Return the launch files of a plan.

    Raises:
        InvalidProblemError: there is no such launcher or scheduler, the image is wrong, or the plan's risk
            is more than its request accepts and ``accept_risk`` is not set.
        RefusedExportError: launcher or scheduler cannot start this plan.
    """
    check_risk(plan, problem, accepted=accept_risk, at="/query/accept_risk", how="accept_risk=true")
    return scheduled(
        export(plan, problem, launcher), plan, problem, start.scheduler, image=start.image, where="/query/"
    )


AcceptQuery = Annotated[
    bool,
    Query(
        description="whether to write files of the closest plan although it exceeds the accepted "
        "out-of-memory risk"
    ),
]


def _start(scheduler: SchedulerQuery = "slurm", image: ImageQuery = None) -> Start:
    return Start(scheduler=scheduler, image=image or None)


StartDep = Annotated[Start, Depends(_start)]

router = APIRouter(prefix="/v1/plans", tags=["plans"], responses=declared(401, 403, 422, 503))


@router.get("", dependencies=[READS], summary="List plans of all jobs")
def list_plans(query: Annotated[PlanQuery, Query()], jobs: JobsDep, tenant: TenantDep) -> PlanPage:
    """Figures of plans, filtered and sorted; a plan of several jobs is listed once, from the newest.

    A page may be short or empty where a filter leaves few plans: the list ends where there is no next
    token.
    """
    if query.launcher is not None:
        check_launcher(query.launcher, at="/query/launcher")
    page = jobs.plans_like(tenant, query.wanted(), page_size=query.page_size, page_token=query.page_token)
    return PlanPage(plans=[plan_summary(one) for one in page.items], next_page_token=page.next_page_token)


@router.get(
    "/{plan_id}",
    dependencies=[READS],
    response_model=PlanView,
    responses=declared(404),
    summary="Look at a plan",
)
def read_plan(plan_id: str, jobs: JobsDep, tenant: TenantDep) -> Response:
    """One plan, and the newest job that found it; of ``kind: post_training`` with its roles."""
    job, body = jobs.plan(tenant, plan_id, roles=True)
    of_roles = job.kind == POST_TRAINING
    view = {"job_id": job.id, "plan": body if of_roles else stored_plan(body).to_json()}
    return Response(compact_json(view), media_type="application/json")


@router.get(
    "/{plan_id}/export", dependencies=[READS], responses=declared(404), summary="Launch files of a plan"
)
def export_plan(
    plan_id: str,
    jobs: JobsDep,
    tenant: TenantDep,
    *,
    start: StartDep,
    launcher: LauncherQuery = None,
    accept_risk: AcceptQuery = False,
) -> ExportView:
    """The files that start this plan under a launcher and a scheduler."""
    chosen, bundle = exported_plan(jobs, tenant, plan_id, launcher, start, accept_risk=accept_risk)
    return ExportView(plan_id=plan_id, launcher=chosen, files=bundle.files, warnings=bundle.warnings)


@router.get(
    "/{plan_id}/export/{name}",
    dependencies=[READS],
    response_class=PlainTextResponse,
    responses=declared(404),
    summary="One launch file of a plan",
)
def export_file(
    plan_id: str,
    name: str,
    jobs: JobsDep,
    tenant: TenantDep,
    *,
    start: StartDep,
    launcher: LauncherQuery = None,
    accept_risk: AcceptQuery = False,
) -> PlainTextResponse:
    """One of the files that start this plan, by its name, as text."""
    chosen, bundle = exported_plan(jobs, tenant, plan_id, launcher, start, accept_risk=accept_risk)
    text = bundle.files.get(name)
    if text is None:
        raise NotFoundError(f"{chosen} has no such file. It has {', '.join(bundle.files)}")
    return PlainTextResponse(text)


def exported_plan(
    jobs: Jobs, tenant: str, plan_id: str, launcher: str | None, start: Start, *, accept_risk: bool
) -> tuple[str, ExportBundle]:
    """Return the launcher of a stored plan, and its launch files; errors as ``exported``."""
    job, body = jobs.plan(tenant, plan_id, roles=True)
    if job.kind == POST_TRAINING:
        return exported_roles(job.request, body, launcher)
    problem, plan = parse_problem(job.request), stored_plan(body)
    chosen = launcher or problem.launcher
    return chosen, exported(plan, problem, chosen, start, accept_risk=accept_risk)


@router.post(
    "/{plan_id}:verify",
    dependencies=[SUBMITS, NO_FIELDS],
    status_code=202,
    responses=declared(404, 408, 409, 413, 429),
    summary="Verify a plan with its launcher",
)
def verify_plan(
    plan_id: str, service: ServiceDep, caller: CallerDep, idempotency_key: KeyDep
) -> VerificationView:
    """Queue a verification: the launcher's own code builds every distinct rank without a GPU."""
    tenant = caller.tenant
    job, body = service.jobs.plan(tenant, plan_id)
    problem = settled_problem(stored_plan(body), parse_problem(job.request))
    try:
        environment_of(launcher_of(problem, None), elsewhere=service.settings.verify_elsewhere)
    except MissingEnvironmentError as fault:
        raise MissingExtraError(str(fault)) from None
    with service.database.read() as connection:
        service.spending.require(connection, spender_of(caller))
    service.verifications.ask(
        tenant,
        plan_id,
        owner=caller.key_id,
        repeatable=repeatable_of(service, idempotency_key, "verify", plan_id),
    )
    return read_verification(plan_id, service, tenant)


@router.get(
    "/{plan_id}/verification",
    dependencies=[READS],
    responses=declared(404),
    summary="Fetch the verification of a plan",
)
def read_verification(plan_id: str, service: ServiceDep, tenant: TenantDep) -> VerificationView:
    """How far the verification of a plan has come, and what was priced next to what was built."""
    state, found = service.verifications.find(tenant, plan_id)
    return VerificationView(**{**(found or {}), "plan_id": plan_id, "state": state})


@router.post(
    "/{plan_id}/measurements",
    dependencies=[SUBMITS],
    status_code=201,
    responses=declared(404, 408, 413, 415, 429),
    openapi_extra=MEASUREMENT_BODY,
    summary="Report a measured run of a plan",
)
async def add_measurement(
    request: Request,
    plan_id: str,
    body: BodyDep,
    service: ServiceDep,
    tenant: TenantDep,
    *,
    idempotency_key: KeyDep,
) -> MeasurementView:
    """Store a measured run, calibrate on all runs of its cluster and framework, and correct the plan."""
    await run_in_threadpool(service.measurements.require, tenant, plan_id, body, key=idempotency_key)
    learnt = await computed(
        request, lambda: service.measurements.add(tenant, plan_id, body, key=idempotency_key)
    )
    return MeasurementView(
        id=learnt.id,
        plan_id=learnt.plan_id,
        profile=learnt.profile_id,
        profile_version=learnt.profile_version,
        num_runs=learnt.num_runs,
        findings=list(learnt.findings),
        prediction=learnt.prediction,
    )
