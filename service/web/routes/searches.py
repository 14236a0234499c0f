"""The first page: a question, and the job that it becomes; or a launch file, priced and improved."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse, Response

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.profiles.figures import percent
from meshwright.service.api.deps import (
    READS,
    JobsDep,
    Service,
    ServiceDep,
    TenantDep,
    computed,
    origin_of,
)
from meshwright.service.api.routes.jobs import submission_of
from meshwright.service.api.routes.predictions import own_of_body, prediction_of
from meshwright.service.db.records import JobRecord
from meshwright.service.report.charts.bars import memory_bars, waterfall_bars
from meshwright.service.report.formatting import LONG_NAMES, configuration_words, gib, risk, step_time
from meshwright.service.report.summary import launcher_words
from meshwright.service.requests.parse import problem_to_mapping
from meshwright.service.web import questions
from meshwright.service.web.callers import SUBMITS, FormDep
from meshwright.service.web.choices import suggestions_of
from meshwright.service.web.fields import Form, Values, faulty, request_of
from meshwright.service.web.rendering import page
from meshwright.service.web.views import job_rows

RECENT = 5
router = APIRouter()


@router.get("/", dependencies=[READS])
def first_page(request: Request, service: ServiceDep, jobs: JobsDep, tenant: TenantDep) -> Response:
    """The form, and the newest jobs."""
    return _form_page(
        request,
        service,
        tenant,
        "question.html",
        Form(),
        recent=job_rows(jobs, tenant, jobs.page(tenant, page_size=RECENT, page_token=None).items),
    )


@router.post("/jobs", dependencies=[SUBMITS])
def submit(request: Request, values: FormDep, service: ServiceDep, tenant: TenantDep) -> Response:
    """Submit what was typed; its faults come back next to their fields."""
    try:
        job = _submitted(request, service, tenant, request_of(questions.QUESTION, values), values)
    except InvalidProblemError as fault:
        return _form_page(
            request,
            service,
            tenant,
            "question.html",
            faulty(questions.QUESTION, values, fault),
            status=422,
            recent=(),
        )
    return seen_at(request, f"/jobs/{job.id}")


@router.get("/own", dependencies=[READS])
def own_page(request: Request, service: ServiceDep, tenant: TenantDep) -> Response:
    """The form for a launch file."""
    return _form_page(request, service, tenant, "own.html", Form(), priced=None)


@router.post("/own", dependencies=[SUBMITS])
async def price_own(request: Request, values: FormDep, service: ServiceDep, tenant: TenantDep) -> Response:
    """Price a launch file at once, or search for something better than it."""
    made = partial(_priced_or_searched, request, values, service, tenant)
    return await (run_in_threadpool(made) if "search" in values else computed(request, made))


def _priced_or_searched(request: Request, values: Values, service: Service, tenant: str) -> Response:
    try:
        whole = request_of(questions.OWN, values)
        body = {"launch_file": whole.pop("launch_file", {}), "problem": whole}
        if "search" in values:
            job = _submitted(request, service, tenant, _with_own(service, tenant, body), values)
            return seen_at(request, f"/jobs/{job.id}")
        priced = prediction_of(body, tenant, service)
    except InvalidProblemError as fault:
        placed = InvalidProblemError(dict.fromkeys(_in_form(one, values) for one in fault.errors))
        return _form_page(
            request,
            service,
            tenant,
            "own.html",
            faulty(questions.OWN, values, placed),
            status=422,
            priced=None,
        )
    seen = priced.prediction
    facts = (
        ("Step", step_time(seen)),
        ("Tokens/s/GPU", f"{seen.tokens_per_s_per_gpu:.0f}"),
        ("MFU", percent(seen.mfu)),
        ("Peak memory", f"{gib(seen.peak_memory_bytes)} of {gib(seen.memory_limit_bytes)} GiB"),
        ("OOM risk", risk(seen.out_of_memory_probability)),
        ("Launcher", launcher_words(priced.launcher or "–")),
    )
    return _form_page(
        request,
        service,
        tenant,
        "own.html",
        Form(values=values),
        priced={
            "words": configuration_words(priced.config, LONG_NAMES),
            "facts": facts,
            "priced": priced,
            "memory": memory_bars(seen, None),
            "waterfall": waterfall_bars(priced.why.waterfall_s, seen.step_time_s),
        },
    )


def seen_at(request: Request, path: str) -> Response:
    """Send the browser on, whether a form or the toolkit has asked."""
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Redirect": path})
    return RedirectResponse(path, status_code=303)


def _submitted(
    request: Request, service: Service, tenant: str, body: Mapping[str, object], values: Values
) -> JobRecord:
    """Return the job of a body; a form that is sent twice is one job."""
    once = (values.get("once") or [""])[-1]
    submission = submission_of(
        service,
        tenant,
        body,
        fresh="fresh" in values,
        idempotency_key=f"page-{once[:64]}" if once.isalnum() else None,
        origin=origin_of(request),
        caller=request.state.caller,
    )
    return service.jobs.submit(tenant, submission)


def _with_own(service: Service, tenant: str, body: Mapping[str, object]) -> dict[str, object]:
    """Return the question of a launch file, with its own configuration to be ranked among the plans."""
    own = own_of_body(service, tenant, body)
    options = replace(own.problem.options, baseline=own.configuration)
    return dict(json.loads(json.dumps(problem_to_mapping(replace(own.problem, options=options)))))


_IN_FILE = "/launch_file/text"
_NOT_STATED = "the launch file does not state it: enter it here"


def _in_form(one: FieldError, values: Values) -> FieldError:
    """Return a fault at its place in the form: at the field that asks for what the file lacks."""
    said = f"{one.message} {one.allowed or ''}"
    if one.pointer not in (_IN_FILE, "/model"):
        return replace(one, pointer=one.pointer.removeprefix("/problem"))
    for field in questions.OWN_REST:
        name = field.at[-1] if field.at[0] == "workload" else field.at[0]
        option = name.replace("_", "-")
        lacks = f"--set {name}=" in said or said.startswith(f"--{option}: is not given")
        if (lacks or (name == "model" and "--model" in said)) and not any(values.get(field.name, ())):
            return FieldError(pointer=f"/{'/'.join(field.at)}", message=_NOT_STATED)
    return one


def _form_page(
    request: Request,
    service: Service,
    tenant: str,
    template: str,
    form: Form,
    *,
    status: int = 200,
    **more: object,
) -> Response:
    """Return a page with a form of ``questions``; ``more`` is the template's own."""
    return page(
        request,
        template,
        status=status,
        form=form,
        q=questions,
        once=secrets.token_hex(16),
        **more,
        **suggestions_of(service, tenant),
    )
