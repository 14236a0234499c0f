"""Jobs: the list, one job while it is searched and once it is answered, and cancelling it."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from meshwright.service.api.deps import (
    READS,
    JobsDep,
    PageToken,
    Service,
    ServiceDep,
    TenantDep,
    computed,
    origin_of,
)
from meshwright.service.api.routes.jobs import submission_of
from meshwright.service.api.routes.reports import WHAT_IF_BUDGET_S, profile_for
from meshwright.service.api.schemas import State
from meshwright.service.db.plan_records import PlanFilter
from meshwright.service.db.records import JobFilter, JobRecord
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs.answers import answer_of
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.states import FLEET, TERMINAL_STATES
from meshwright.service.report.post_training import roles_page
from meshwright.service.requests.fields import POST_TRAINING
from meshwright.service.requests.parse import problem_to_mapping
from meshwright.service.web import views
from meshwright.service.web.callers import SUBMITS
from meshwright.service.web.rendering import page
from meshwright.service.web.routes.searches import seen_at
from meshwright.service.what_if.grid import Method, what_ifs

LISTED = 25  # jobs, and plans, of one page
router = APIRouter(prefix="/jobs")


@router.get("", dependencies=[READS])
def list_jobs(
    request: Request,
    jobs: JobsDep,
    tenant: TenantDep,
    page_token: PageToken = None,
    state: Annotated[State | None, Query()] = None,
) -> Response:
    """Jobs, newest first."""
    return list_page(request, "jobs.html", jobs, tenant, JobFilter(state=state), page_token=page_token)


def list_page(
    request: Request, template: str, jobs: Jobs, tenant: str, wanted: JobFilter, *, page_token: str | None
) -> Response:
    """Return one page of the jobs or fleets that a filter names, newest first."""
    found = jobs.page(tenant, wanted, page_size=LISTED, page_token=page_token)
    rows = views.job_rows(jobs, tenant, found.items)
    return page(
        request,
        template,
        rows=rows,
        state=wanted.state,
        states=views.STATE_WORDS,
        next_page_token=found.next_page_token,
        is_first=page_token is None,
        is_open=any(row.is_open for row in rows),
    )


@router.get("/{job_id}", dependencies=[READS])
def show_job(
    request: Request, job_id: str, service: ServiceDep, tenant: TenantDep, page_token: PageToken = None
) -> Response:
    """One job: how its search goes, or what came of it."""
    jobs = service.jobs
    job = jobs.read(tenant, job_id)
    if job.kind == FLEET:
        return seen_at(request, views.path_of(job))
    if job.kind == POST_TRAINING:
        return _roles(request, service, tenant, job)
    if job.answer is not None:
        return _answered(request, service, tenant, job.id, page_token)
    title, question = views.named(job)
    return page(
        request,
        "job.html",
        job=job,
        title=title,
        question=question,
        words=views.STATE_WORDS[job.state],
        is_open=job.state not in TERMINAL_STATES,
        children=_children(jobs, tenant, job),
    )


@router.post("/{job_id}/cancel", dependencies=[SUBMITS])
def cancel(request: Request, job_id: str, jobs: JobsDep, tenant: TenantDep) -> Response:
    """Cancel a job; one that has ended does not change."""
    return seen_at(request, f"/jobs/{jobs.cancel(tenant, job_id).id}")


@router.get("/{job_id}/what-if", dependencies=[READS])
async def what_if(request: Request, job_id: str, service: ServiceDep, tenant: TenantDep) -> Response:
    """Other hardware and batches, predicted from the plans of an answer."""
    job, plans = await run_in_threadpool(
        partial(service.jobs.plans, page_size=LISTED, page_token=None), tenant, job_id
    )

    def made() -> Response:
        problem = views.problem_of(job)
        answer = answer_of(job.answer, plans.items)
        profile, is_own = profile_for(service, problem, answer.versions)
        method: Method = "predict" if is_own else "none"
        return page(
            request,
            "what_if.html",
            title=views.named(job)[0],
            job=job,
            grid=what_ifs(problem, profile, answer, method=method, budget_s=WHAT_IF_BUDGET_S),
        )

    return await computed(request, made)


@router.post("/{job_id}/remedies/{number}", dependencies=[SUBMITS])
def search_remedy(
    request: Request, job_id: str, number: str, service: ServiceDep, tenant: TenantDep
) -> Response:
    """Search the question again with one of the changes that make it fit.

    Raises:
        NotFoundError: the answer offers no such change, or it is not known how to ask for it.
    """
    from meshwright.solver.explain.remedies import problem_of_remedy  # noqa: PLC0415 - loads the search: 0.1 s

    job = service.jobs.read(tenant, job_id)
    problem, answer = views.problem_of(job), answer_of(job.answer, [])
    remedies = answer.infeasible.remedies if answer.infeasible else ()
    if answer.infeasible is None or number not in map(str, range(len(remedies))):
        raise NotFoundError("the answer offers no such change")
    profile, _ = profile_for(service, problem, answer.versions)
    changed = problem_of_remedy(problem, profile, remedies[int(number)], answer.infeasible.nearest)
    if changed is None:
        raise NotFoundError("you can't search this change from here: enter it on the first page")
    submission = submission_of(
        service,
        tenant,
        problem_to_mapping(changed),
        fresh=False,
        idempotency_key=None,
        origin=origin_of(request),
        caller=request.state.caller,
    )
    return seen_at(request, f"/jobs/{service.jobs.submit(tenant, submission).id}")


def _answered(
    request: Request, service: Service, tenant: str, job_id: str, page_token: str | None
) -> Response:
    """Return one page of the answer, with what launchers and runs made of its plans."""
    jobs = service.jobs
    job, plans = jobs.plans(tenant, job_id, page_size=LISTED, page_token=page_token)
    verdicts = service.verifications.verdicts(tenant, [plan["plan_id"] for plan in plans.items])
    of_job = PlanFilter(equal={"job_id": job_id}, measured=True, sort="rank")
    measured = jobs.plans_like(tenant, of_job, page_size=LISTED, page_token=None).items
    point = views.best_point(job, plans.items)
    return page(
        request,
        "answer.html",
        job=job,
        words=views.STATE_WORDS[job.state],
        document=views.answer_page(
            job,
            plans.items,
            plans.next_page_token,
            of_best=jobs.read(tenant, point["job_id"]) if point.get("job_id") else None,
        ),
        children=_children(jobs, tenant, job),
        measured=[views.measured_words(one) for one in measured],
        verdicts=[
            (plan["rank"], plan["plan_id"], verdicts[plan["plan_id"]])
            for plan in plans.items
            if plan["plan_id"] in verdicts
        ],
    )


def _roles(request: Request, service: Service, tenant: str, job: JobRecord) -> Response:
    """Return one question on post-training: how it goes, its roles, or why there are none."""
    shown = None
    if job.answer is not None and "faults" not in job.answer:
        job, plans = service.jobs.plans(tenant, job.id, page_size=LISTED, page_token=None)
        shown = roles_page({**(job.answer or {}), "plans": list(plans.items)})
    return page(
        request,
        "roles.html",
        job=job,
        title=job.title,
        words=views.STATE_WORDS[job.state],
        is_open=job.state not in TERMINAL_STATES,
        roles=shown,
        faults=(job.answer or {}).get("faults", ()),
    )


def _children(jobs: Jobs, tenant: str, job: JobRecord) -> list[views.JobRow]:
    if job.num_children is None:
        return []
    return views.child_rows(
        jobs.children(tenant, job.id, page_size=job.num_children, page_token=None).items
    )
