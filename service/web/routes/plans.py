"""One plan in full, two side by side, and the launch files of a plan for any launcher."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from meshwright.launchers.registry import export, launcher_names
from meshwright.launchers.schedulers import SCHEDULERS, Start
from meshwright.profiles.errors import FieldError, InvalidProblemError, RefusedExportError
from meshwright.service.api.deps import READS, JobsDep, ServiceDep, TenantDep
from meshwright.service.api.routes.plans import AcceptQuery, StartDep, exported, exported_plan
from meshwright.service.api.routes.reports import profile_for
from meshwright.service.errors import NotFoundError
from meshwright.service.files import zipped
from meshwright.service.jobs.answers import answer_of, stored_plan
from meshwright.service.report.formatting import configuration_words, mesh_words
from meshwright.service.report.sides import comparison_of
from meshwright.service.reporting import ReportOptions, only, report_of
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.service.web.rendering import HEADERS, page
from meshwright.service.web.routes.searches import seen_at
from meshwright.service.web.views import named, problem_of
from meshwright.solver.answer import Plan, accepts_risk
from meshwright.solver.problem import Problem

router = APIRouter()
Id = Annotated[str, Query(max_length=64)]
Launcher = Annotated[str | None, Query(max_length=64)]


@router.get("/plans/{plan_id}", dependencies=[READS])
def show_plan(
    request: Request, plan_id: str, service: ServiceDep, jobs: JobsDep, tenant: TenantDep
) -> Response:
    """One plan in full."""
    job, body = jobs.plan(tenant, plan_id, roles=True)
    if job.kind == POST_TRAINING:
        return seen_at(request, f"/jobs/{job.id}")
    problem = problem_of(job)
    whole = answer_of(job.answer, [body])
    answer = only(whole, whole.plans[0])
    profile, _ = profile_for(service, problem, answer.versions)
    document = report_of(answer, problem, profile, ReportOptions(what_if="none"))
    best = jobs.plans(tenant, job.id, page_size=1, page_token=None)[1].items
    best_id = best[0]["plan_id"] if best else plan_id  # the closest is alone
    return page(
        request,
        "plan.html",
        job=job,
        document=document,
        name=_name_of(whole.plans[0]),
        plan=document.plans[0],
        best_id=best_id,
    )


@router.get("/compare", dependencies=[READS])
def compare(request: Request, jobs: JobsDep, tenant: TenantDep, first: Id, second: Id) -> Response:
    """Two plans side by side, of one job or of two.

    Raises:
        InvalidProblemError: both are the same plan.
    """
    job, one = jobs.plan(tenant, first)
    if first == second:
        raise InvalidProblemError.of("/query/second", "is the same plan as first: choose another one")
    _, other = jobs.plan(tenant, second)
    return page(
        request,
        "compare.html",
        job=job,
        title=named(job)[0],
        comparison=comparison_of(replace(answer_of(job.answer, [one, other]), baseline=None), first),
        first=first,
        second=second,
    )


@router.get("/plans/{plan_id}/export", dependencies=[READS])
def show_files(
    request: Request,
    plan_id: str,
    jobs: JobsDep,
    tenant: TenantDep,
    *,
    start: StartDep,
    launcher: Launcher = None,
    accept_risk: AcceptQuery = False,
) -> Response:
    """The launch files of a plan; why there are none, where launcher or scheduler cannot start it."""
    job, body = jobs.plan(tenant, plan_id)
    plan, problem = stored_plan(body), problem_of(job)
    usual = problem.launcher if problem.launcher in launcher_names() else launcher_names()[0]
    chosen = launcher or usual
    if start.scheduler == "slurm":  # the form's image was another scheduler's
        start = replace(start, image=None)
    bundle, refused = None, tuple[FieldError, ...]()
    try:
        bundle = exported(plan, problem, chosen, start, accept_risk=accept_risk)
    except (RefusedExportError, InvalidProblemError) as fault:
        refused = fault.errors
    return page(
        request,
        "export.html",
        job=job,
        title=named(job)[0],
        plan_id=plan_id,
        name=_name_of(plan),
        words=configuration_words(plan.config),
        launcher=chosen,
        launchers=launcher_names(),
        start=start,
        schedulers=tuple(SCHEDULERS),
        query=_query(start, accept_risk=accept_risk),
        accept_risk=accept_risk,
        risky=not accept_risk and not accepts_risk(problem, plan.prediction),
        bundle=bundle,
        refused=refused,
        able=() if bundle else tuple(name for name in launcher_names() if _writes(name, plan, problem)),
    )


@router.get("/plans/{plan_id}/files/{launcher}.zip", dependencies=[READS])
def download_all(
    plan_id: str,
    launcher: str,
    jobs: JobsDep,
    tenant: TenantDep,
    *,
    start: StartDep,
    accept_risk: AcceptQuery = False,
) -> Response:
    """All launch files in one zip."""
    _, bundle = exported_plan(jobs, tenant, plan_id, launcher, start, accept_risk=accept_risk)
    return Response(
        zipped(bundle.files),
        media_type="application/zip",
        headers={**HEADERS, "Content-Disposition": f'attachment; filename="{launcher}-{plan_id[:8]}.zip"'},
    )


@router.get("/plans/{plan_id}/files/{launcher}/{name:path}", dependencies=[READS])
def download(
    plan_id: str,
    launcher: str,
    name: str,
    jobs: JobsDep,
    tenant: TenantDep,
    *,
    start: StartDep,
    accept_risk: AcceptQuery = False,
) -> Response:
    """One launch file, to be saved."""
    bundle = exported_plan(jobs, tenant, plan_id, launcher, start, accept_risk=accept_risk)[1]
    text = bundle.files.get(name)
    if text is None:
        raise NotFoundError("there is no such file")
    saved = "".join(char for char in name.rpartition("/")[2] if char.isalnum() or char in "._-")
    return Response(
        text,
        media_type="text/plain; charset=utf-8",
        headers={**HEADERS, "Content-Disposition": f'attachment; filename="{saved}"'},
    )


def _name_of(plan: Plan) -> str:
    """Return ``Plan 2: tensor 4 · data 8``."""
    return f"{f'Plan {plan.rank}' if plan.rank else 'Closest plan'}: {mesh_words(plan.config)}"


def _writes(launcher: str, plan: Plan, problem: Problem) -> bool:
    try:
        export(plan, problem, launcher)
    except (RefusedExportError, InvalidProblemError):
        return False
    return True


def _query(start: Start, *, accept_risk: bool) -> str:
    """Return the query that asks for the same start; empty for Slurm and an accepted risk."""
    asked = {"accept_risk": "true" if accept_risk else None}
    if start.scheduler != "slurm":
        asked |= {"scheduler": start.scheduler, "image": start.image}
    query = urlencode({name: value for name, value in asked.items() if value})
    return f"?{query}" if query else ""
