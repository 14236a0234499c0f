"""Jobs: submit, list, look (with ETag and long-poll), cancel, and fetch the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter

from meshwright.service.api.deps import (
    FOLLOWS,
    NO_FIELDS,
    READS,
    SUBMITS,
    BodyDep,
    CallerDep,
    JobsDep,
    KeyDep,
    PageSize,
    PageToken,
    Service,
    ServiceDep,
    TenantDep,
    computed,
    origin_of,
    repeatable_of,
    service_of,
)
from meshwright.service.api.openapi import EVENTS, JOB_BODY, REPLAN_BODY
from meshwright.service.api.problems import declared
from meshwright.service.api.schemas import (
    AnswerView,
    ChildPage,
    JobDetail,
    JobPage,
    JobQuery,
    JobView,
    ReplanDetail,
    ReplanPage,
    ReplanView,
    child_view,
    job_detail,
    job_view,
    view_of,
)
from meshwright.service.api.tags import names, tagged, unchanged_since
from meshwright.service.api.watch import EventStream, event_id_of
from meshwright.service.auth.access import Caller
from meshwright.service.db.database import compact_json
from meshwright.service.db.records import JobRecord, Origin
from meshwright.service.jobs.answers import stored_plan
from meshwright.service.jobs.states import TERMINAL_STATES
from meshwright.service.jobs.submission import FleetAsked, Submission
from meshwright.service.post_training.request import read_post_training
from meshwright.service.post_training.stored import roles_asked
from meshwright.service.replan.answer import ReplanAnswer, first_files
from meshwright.service.replan.request import Changed, changed_job, read_replan_request
from meshwright.service.requests.jobs import QUEUEING, read_job_request, read_queueing
from meshwright.service.requests.launch_files import with_launch_file
from meshwright.service.requests.parse import parse_problem
from meshwright.service.requests.parts import is_post_training
from meshwright.service.stored import Unreadable
from meshwright.service.stores.deletion import Deletion
from meshwright.service.stores.replans import Stored
from meshwright.solver.problem import Problem

RETRY_AFTER_S = 1
_REPLAN = TypeAdapter(ReplanAnswer)
LOOK_S = 5.0  # a long poll without news looks whether its client is still there

router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=declared(401, 403, 422, 503))


def parser_of(service: Service, tenant: str) -> Callable[[Mapping[str, object]], Problem]:
    """Return a parser of a job's problem that uses a tenant's definitions and calibrations."""

    def parse(raw: Mapping[str, object]) -> Problem:
        return service.profiles.resolved(tenant, parse_problem(service.definitions.filled_in(tenant, raw)))

    return parse


def submission_of(
    service: Service,
    tenant: str,
    body: Mapping[str, object],
    *,
    fresh: bool,
    idempotency_key: str | None,
    origin: Origin,
    caller: Caller,
) -> Submission:
    """The submission of a body.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``body``.
    """
    if is_post_training(body):
        parse = parser_of(service, tenant)
        return submission_of_question(
            body, caller, lambda raw: roles_asked(read_post_training(raw, parse=parse)), fresh=fresh,
            idempotency_key=idempotency_key, origin=origin,
        )  # fmt: skip
    body = with_launch_file(body)
    asked = read_job_request(body, parser_of(service, tenant))
    return Submission(
        problem=asked.problem,
        body=body,
        idempotency_key=idempotency_key,
        fresh=fresh,
        origin=origin,
        priority=asked.priority,
        deadline_s=asked.deadline_s,
        sweep=asked.sweep,
        owner=caller.key_id,
        max_cpu_s_per_day=caller.max_cpu_s_per_day,
        labels=asked.labels,
    )


def submission_of_question(
    body: Mapping[str, object],
    caller: Caller,
    read: Callable[[dict[str, object]], FleetAsked],
    *,
    fresh: bool,
    idempotency_key: str | None,
    origin: Origin,
) -> Submission:
    """Return the submission of a question on several jobs or roles; errors as ``submission_of``.

    ``read``: reads the body without what states how it waits.
    """
    how = read_queueing(body)
    return Submission(
        fleet=read({name: value for name, value in body.items() if name not in QUEUEING}),
        body=body,
        idempotency_key=idempotency_key,
        fresh=fresh,
        origin=origin,
        priority=how.priority,
        deadline_s=how.deadline_s,
        owner=caller.key_id,
        max_cpu_s_per_day=caller.max_cpu_s_per_day,
        labels=how.labels,
    )


@router.post(
    "",
    dependencies=[SUBMITS],
    status_code=202,
    response_model=JobDetail,
    responses=declared(408, 413, 415, 429),
    openapi_extra=JOB_BODY,
    summary="Submit a problem",
)
def submit_job(
    request: Request,
    body: BodyDep,
    *,
    fresh: Annotated[bool, Query(description="search again even if the answer is known")] = False,
    idempotency_key: KeyDep,
) -> Response:
    """Submit a problem, a sweep or ``kind: post_training``; an answered one returns the earlier job.

    Model, batch and launcher may come from a ``launch_file`` next to the cluster, or from a capture.
    """
    service, caller = service_of(request), request.state.caller
    job = service.jobs.submit(
        caller.tenant,
        submission_of(
            service,
            caller.tenant,
            body,
            fresh=fresh,
            idempotency_key=idempotency_key,
            origin=origin_of(request),
            caller=caller,
        ),
    )
    return _detail(
        job, status=202, headers={"Location": f"/v1/jobs/{job.id}", "Retry-After": str(RETRY_AFTER_S)}
    )


@router.get("", dependencies=[READS], response_model=JobPage, summary="List jobs")
def list_jobs(query: Annotated[JobQuery, Query()], jobs: JobsDep, caller: CallerDep) -> Response:
    """Jobs, newest first: all, or those in a state, of a model, of an owner or with labels.

    With several filters, a page may be short or empty: the list ends where there is no next token.
    """
    page = jobs.page(
        caller.tenant,
        query.wanted(caller.key_id),
        page_size=query.page_size,
        page_token=query.page_token,
    )
    view = JobPage(
        jobs=[job_view(JobView, job) for job in page.items], next_page_token=page.next_page_token
    )
    return _json(view.model_dump_json(exclude_none=True))


@router.get(
    "/{job_id}",
    dependencies=[READS],
    response_model=JobDetail,
    responses={304: {"description": "Unchanged since If-None-Match"}, **declared(404)},
    summary="Look at a job",
)
async def read_job(
    request: Request,
    job_id: str,
    service: ServiceDep,
    *,
    wait: Annotated[float, Query(ge=0, le=60, description="seconds to wait for a change")] = 0,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Return one job; ``wait`` delays the answer until it is finished, or differs from If-None-Match."""
    return await looked_at(request, service, job_id, wait=wait, tag=if_none_match, shown=_detail)


async def looked_at(
    request: Request,
    service: Service,
    job_id: str,
    *,
    wait: float,
    tag: str | None,
    shown: Callable[[JobRecord], Response],
) -> Response:
    """Return one job of the caller's tenant as it is ``shown``, after ``wait`` seconds at most.

    Without a ``tag`` the wait is over once the job is finished, else once it differs from the tag.

    Raises:
        NotFoundError: this tenant has no such job.
        BusyError: this tenant follows as many jobs as it may.
    """
    tenant = request.state.caller.tenant
    until = time.monotonic() + min(wait, service.settings.max_wait_s)
    async with service.following.turn(tenant) if wait > 0 else nullcontext():
        while True:
            job, seen = await run_in_threadpool(service.jobs.look, tenant, job_id)
            response = shown(job)
            unchanged = tag is not None and names(tag, response.headers["ETag"])
            news = not unchanged if tag is not None else job.state in TERMINAL_STATES
            left_s = until - time.monotonic()
            over = left_s <= 0 or service.watch.is_stopping() or await request.is_disconnected()
            if news or over or (unchanged and job.state in TERMINAL_STATES):
                break
            await service.watch.events(tenant, job_id, after=seen, timeout_s=min(left_s, LOOK_S))
    return unchanged_since(response.headers["ETag"]) if unchanged else response


@router.get(
    "/{job_id}/events",
    dependencies=[READS, FOLLOWS],
    response_class=StreamingResponse,
    responses={**EVENTS, **declared(404)},
    summary="Follow a job",
)
async def follow_job(
    job_id: str,
    service: ServiceDep,
    tenant: TenantDep,
    last_event_id: Annotated[str | None, Header(description="go on after this event")] = None,
) -> Response:
    """Server-sent events until the job ends: its states, and how far the search has come."""
    after = event_id_of(last_event_id)
    job, newest = await run_in_threadpool(service.jobs.look, tenant, job_id)
    after = after if after <= newest else 0  # of another life of this database: tell everything
    if after == newest and job.state in TERMINAL_STATES:
        return Response(status_code=204)  # an EventSource stops here
    first = await run_in_threadpool(service.jobs.events, tenant, job_id, after=after)
    stream = EventStream(
        watch=service.watch,
        tenant=tenant,
        job_id=job_id,
        heartbeat_s=service.settings.event_heartbeat_s,
    )
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy must not hold it back
    return StreamingResponse(
        stream.frames(first, after=after), media_type="text/event-stream", headers=headers
    )


@router.delete(
    "/{job_id}",
    status_code=204,
    dependencies=[SUBMITS],
    responses=declared(404, 409),
    summary="Delete a job",
)
def delete_job(job_id: str, service: ServiceDep, caller: CallerDep) -> None:
    """Delete a job in any state, with its plans, events and re-plans and, of a sweep, its points.

    Measurements of its plans stay, because calibrations are made from them.
    """
    Deletion(service.database, actor=caller.actor).job(caller.tenant, job_id)


@router.post(
    "/{job_id}:cancel",
    dependencies=[SUBMITS, NO_FIELDS],
    response_model=JobDetail,
    responses=declared(404, 408, 413),
    summary="Cancel a job",
)
def cancel_job(job_id: str, jobs: JobsDep, tenant: TenantDep, idempotency_key: KeyDep) -> Response:
    """Cancel a job and, of a sweep, its points; repeating it, or a finished job, changes nothing."""
    return _detail(jobs.cancel(tenant, job_id, key=idempotency_key))


@router.post(
    "/{job_id}:replan",
    dependencies=[SUBMITS],
    response_model=ReplanAnswer,
    responses=declared(404, 408, 409, 413, 415, 429),
    openapi_extra=REPLAN_BODY,
    summary="Re-plan a running job after its cluster changed",
)
async def replan_job(
    request: Request,
    job_id: str,
    body: BodyDep,
    service: ServiceDep,
    caller: CallerDep,
    *,
    idempotency_key: KeyDep,
) -> Response:
    """Rank the ways to finish a job by their time, with launch and resume files of the first.

    The answer comes at once and is stored at ``Location``; the same idempotency key returns it again.
    """
    tenant = caller.tenant
    repeatable = repeatable_of(service, idempotency_key, "replan", job_id, body)

    def known() -> Stored | Changed:
        asked = read_replan_request(body)
        earlier = service.replans.earlier(tenant, job_id, repeatable)
        if earlier is not None:
            return earlier
        job, plan = service.jobs.plan_of_job(tenant, job_id, asked.plan_id)
        return changed_job(asked, parse_problem(job.request), stored_plan(plan))

    def answered(changed: Changed) -> Stored:
        from meshwright.service.replan.finish import replanned  # noqa: PLC0415 - loads the search

        found = service.profiles.answered(
            service.profiles.relearnt(tenant, changed.problem),
            lambda profile, _: replanned(changed, profile),
        )
        return service.replans.keep(
            tenant,
            job_id,
            body,
            _REPLAN.dump_python(ReplanAnswer.of(found, changed, first_files(found, changed)), mode="json"),
            key_id=caller.key_id,
            repeatable=repeatable,
        )

    first = await run_in_threadpool(known)
    record, answer = (
        first if isinstance(first, tuple) else await computed(request, partial(answered, first))
    )
    return _json(compact_json(answer), headers={"Location": f"/v1/jobs/{job_id}/replans/{record.id}"})


@router.get(
    "/{job_id}/replans",
    dependencies=[READS],
    responses=declared(404),
    summary="List re-plans of a job",
)
def list_replans(
    job_id: str,
    service: ServiceDep,
    tenant: TenantDep,
    page_size: PageSize = 50,
    page_token: PageToken = None,
) -> ReplanPage:
    """Return the last 100 re-plans of a job, newest first, with the key and body of each request."""
    page = service.replans.page(tenant, job_id, page_size=page_size, page_token=page_token)
    return ReplanPage(
        replans=[view_of(ReplanView, one) for one in page.items], next_page_token=page.next_page_token
    )


@router.get(
    "/{job_id}/replans/{replan_id}",
    dependencies=[READS],
    response_model=ReplanDetail,
    responses=declared(404),
    summary="Look at a re-plan",
)
def read_replan(job_id: str, replan_id: str, service: ServiceDep, tenant: TenantDep) -> Response:
    """Return one re-plan with its request and its answer."""
    record, answer = service.replans.read(tenant, job_id, replan_id)
    return _json(compact_json({**view_of(ReplanView, record).model_dump(mode="json"), "answer": answer}))


@router.get(
    "/{job_id}/plans",
    dependencies=[READS],
    response_model=AnswerView,
    responses=declared(404, 409),
    summary="Fetch the answer",
)
def read_answer(
    job_id: str, jobs: JobsDep, tenant: TenantDep, page_size: PageSize = 50, page_token: PageToken = None
) -> Response:
    """The answer of a finished job with one page of its plans, best first."""
    job, page = jobs.plans(tenant, job_id, page_size=page_size, page_token=page_token)
    unreadable = [one for one in page.items if isinstance(one, Unreadable)]
    whole = {
        "job_id": job.id,
        "state": job.state,
        **(job.answer or {}),
        "plans": [one for one in page.items if not isinstance(one, Unreadable)],
        **({"unreadable": unreadable} if unreadable else {}),
        "next_page_token": page.next_page_token,
    }
    return _json(compact_json(whole))


@router.get(
    "/{job_id}/children",
    dependencies=[READS],
    response_model=ChildPage,
    responses=declared(404),
    summary="List the points of a sweep",
)
def list_points(
    job_id: str, jobs: JobsDep, tenant: TenantDep, page_size: PageSize = 50, page_token: PageToken = None
) -> Response:
    """Return the jobs of a sweep in the order of its points; any other job has none."""
    page = jobs.children(tenant, job_id, page_size=page_size, page_token=page_token)
    view = ChildPage(
        children=[child_view(child) for child in page.items], next_page_token=page.next_page_token
    )
    return _json(view.model_dump_json(exclude_none=True))


def _detail(job: JobRecord, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return tagged(job_detail(job).model_dump_json(exclude_none=True), status=status, headers=headers)


def _json(body: str, *, headers: dict[str, str] | None = None) -> Response:
    return Response(body, media_type="application/json", headers=headers)
