"""The page of a link to an answer, for people without a key; and the forms that make and revoke links."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.api.deps import ADMINISTERS as SEES_KEYS
from meshwright.service.api.deps import (
    READS,
    CallerDep,
    PageToken,
    Service,
    ServiceDep,
    TenantDep,
    computed,
)
from meshwright.service.api.routes.reports import page_of_fleet, page_of_job
from meshwright.service.api.routes.shares import SHARED, new_link, revoke_share_link
from meshwright.service.api.schemas import NewShareLinkView
from meshwright.service.jobs.spending import Spender
from meshwright.service.jobs.states import FLEET
from meshwright.service.reporting import MOST_LISTED
from meshwright.service.stores.shares import DEFAULT_LIFE_DAYS, MAX_LIFE_DAYS, ShareLinks
from meshwright.service.web.callers import ADMINISTERS, SUBMITS, FormDep
from meshwright.service.web.fields import Form, FormField, faulty, request_of
from meshwright.service.web.rendering import page
from meshwright.service.web.routes.searches import seen_at
from meshwright.service.web.views import named

LISTED = 50
router = APIRouter()
FIELDS = (
    FormField(
        name="days",
        at=("expires_in_days",),
        label="Works for",
        kind="number",
        default=f"{DEFAULT_LIFE_DAYS:g}",
        hint=f"days, at most {MAX_LIFE_DAYS:g}",
    ),
)


@router.get(SHARED + "{token}")
async def show_shared(request: Request, token: str, service: ServiceDep) -> Response:
    """The report that a link shows, and nothing else of its tenant."""
    link = await run_in_threadpool(ShareLinks(service.database).opened, token)
    job = await run_in_threadpool(service.jobs.read, link.tenant, link.job_id)
    if job.kind == FLEET:
        shown = page_of_fleet(job)
    else:
        listed = partial(service.jobs.plans, page_size=MOST_LISTED + 1, page_token=None)
        job, plans = await run_in_threadpool(listed, link.tenant, link.job_id)
        shown = await computed(
            request,
            partial(page_of_job, service, link.tenant, job, plans.items, what_if=False),
            of=Spender(tenant=link.tenant, key_id=link.key_id),
        )
    # Neither caches nor search engines keep it, so that it ends with the link.
    shown.headers.update({"Cache-Control": "no-store", "X-Robots-Tag": "noindex, nofollow"})
    return shown


@router.get("/jobs/{job_id}/share", dependencies=[READS])
def list_links(request: Request, job_id: str, service: ServiceDep, tenant: TenantDep) -> Response:
    """The links of a job."""
    return _page(request, service, tenant, job_id, Form())


@router.post("/jobs/{job_id}/share", dependencies=[SUBMITS])
def make_link(
    request: Request, job_id: str, values: FormDep, service: ServiceDep, caller: CallerDep
) -> Response:
    """Make a link; this page is the only one that ever shows its address."""
    try:
        made = new_link(service, caller, job_id, request_of(FIELDS, values))
    except InvalidProblemError as fault:
        return _page(request, service, caller.tenant, job_id, faulty(FIELDS, values, fault), status=422)
    return _page(request, service, caller.tenant, job_id, Form(), made=made)


@router.post("/jobs/{job_id}/share/{link_id}/revoke", dependencies=[SUBMITS])
def revoke(request: Request, job_id: str, link_id: str, service: ServiceDep, caller: CallerDep) -> Response:
    """Revoke a link for good."""
    revoke_share_link(job_id, link_id, service, caller)
    return seen_at(request, f"/jobs/{job_id}/share")


@router.get("/links", dependencies=[SEES_KEYS])
def list_all_links(
    request: Request, service: ServiceDep, tenant: TenantDep, page_token: PageToken = None
) -> Response:
    """The links of all answers, newest first, for administrators."""
    found = ShareLinks(service.database).page(tenant, page_size=LISTED, page_token=page_token)
    return page(request, "links.html", links=found.items, next_page_token=found.next_page_token)


@router.post("/links/{job_id}/{link_id}/revoke", dependencies=[ADMINISTERS])
def revoke_one_of_all(
    request: Request, job_id: str, link_id: str, service: ServiceDep, caller: CallerDep
) -> Response:
    """Revoke a link for good, and show those that are left."""
    revoke_share_link(job_id, link_id, service, caller)
    return seen_at(request, "/links")


def _page(
    request: Request,
    service: Service,
    tenant: str,
    job_id: str,
    form: Form,
    *,
    status: int = 200,
    made: NewShareLinkView | None = None,
) -> Response:
    job = service.jobs.read(tenant, job_id)
    return page(
        request,
        "share.html",
        status=status,
        job_id=job_id,
        title=job.request["name"] if job.kind == FLEET else named(job)[0],
        form=form,
        fields=FIELDS,
        links=ShareLinks(service.database).of_job(tenant, job_id),
        address=f"{request.url.scheme}://{request.url.netloc}{made.path}" if made and made.path else None,
    )
