"""Read-only links to answers: make one, list them, revoke one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from meshwright.profiles.reading import FieldReader
from meshwright.service.api.deps import (
    READS,
    SUBMITS,
    BodyDep,
    CallerDep,
    KeyDep,
    PageSize,
    PageToken,
    Service,
    ServiceDep,
    TenantDep,
    repeatable_of,
)
from meshwright.service.api.openapi import SHARE_BODY
from meshwright.service.api.problems import declared
from meshwright.service.api.schemas import (
    NewShareLinkView,
    ShareLinkList,
    ShareLinkPage,
    ShareLinkView,
    TenantLinkView,
    view_of,
)
from meshwright.service.auth.access import Caller
from meshwright.service.stores.shares import DEFAULT_LIFE_DAYS, MAX_LIFE_DAYS, ShareLinks

SHARED = "/shared/"  # the page of a link, which a token follows
router = APIRouter(
    prefix="/v1/jobs/{job_id}/share-links", tags=["reports"], responses=declared(401, 403, 404, 422, 503)
)


@router.post(
    "",
    dependencies=[SUBMITS],
    status_code=201,
    responses=declared(408, 409, 413, 415),
    openapi_extra=SHARE_BODY,
    summary="Share an answer by a link",
)
def create_share_link(
    job_id: str,
    body: BodyDep,
    service: ServiceDep,
    caller: CallerDep,
    response: Response,
    *,
    idempotency_key: KeyDep,
) -> NewShareLinkView:
    """Make a link that shows this job's report to anyone who has it, without a key, until it expires.

    Its address is shown once; only a hash of it is kept.
    """
    response.headers["Cache-Control"] = "no-store"
    return new_link(service, caller, job_id, body, idempotency_key=idempotency_key)


def new_link(
    service: Service,
    caller: Caller,
    job_id: str,
    body: Mapping[str, object],
    *,
    idempotency_key: str | None = None,
) -> NewShareLinkView:
    """Make a link, with its address.

    Raises:
        InvalidProblemError: a field of the body is wrong.
        PlannerError: as ``ShareLinks.create``.
    """
    reader = FieldReader(body, "")
    days = reader.number("expires_in_days", low=1e-5, high=MAX_LIFE_DAYS, default=DEFAULT_LIFE_DAYS)
    reader.refuse_unknown()
    reader.finish()
    record, token = ShareLinks(service.database).create(
        caller.tenant,
        job_id,
        days=days,
        key_id=caller.key_id,
        repeatable=repeatable_of(service, idempotency_key, "share", job_id, body),
    )
    return view_of(NewShareLinkView, record, path=f"{SHARED}{token}" if token else None)


@router.get("", dependencies=[READS], summary="List the links to an answer")
def list_share_links(job_id: str, service: ServiceDep, tenant: TenantDep) -> ShareLinkList:
    """Return the active links of a job, newest first, without their addresses, which are not stored."""
    return ShareLinkList(
        links=[view_of(ShareLinkView, one) for one in ShareLinks(service.database).of_job(tenant, job_id)]
    )


every = APIRouter(prefix="/v1/share-links", tags=["reports"], responses=declared(401, 403, 422, 503))


@every.get("", dependencies=[READS], summary="List all share links")
def list_all_share_links(
    service: ServiceDep,
    tenant: TenantDep,
    page_size: PageSize = 50,
    page_token: PageToken = None,
    key: Annotated[
        str | None, Query(pattern="^[A-Za-z0-9]{1,16}$", description="id of the key that made them")
    ] = None,
) -> ShareLinkPage:
    """Return the active links of all answers, newest first; revoke one at its job's address."""
    page = ShareLinks(service.database).page(tenant, page_size=page_size, page_token=page_token, key_id=key)
    return ShareLinkPage(
        links=[view_of(TenantLinkView, one) for one in page.items], next_page_token=page.next_page_token
    )


@router.delete("/{link_id}", dependencies=[SUBMITS], status_code=204, summary="Revoke a link")
def revoke_share_link(job_id: str, link_id: str, service: ServiceDep, caller: CallerDep) -> None:
    """Revoke a link for good: its address is a 404 from then on."""
    ShareLinks(service.database).revoke(caller.tenant, job_id, link_id, actor=caller.actor)
