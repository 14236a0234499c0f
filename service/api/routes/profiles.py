"""Profiles that clients keep here, for problems to name: calibrations and measured profiles."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from meshwright.service.api.deps import (
    ADMINISTERS,
    READS,
    SUBMITS,
    CallerDep,
    DocumentDep,
    KeyDep,
    PageSize,
    PageToken,
    ServiceDep,
    TenantDep,
    repeatable_of,
)
from meshwright.service.api.openapi import PROFILE_BODY
from meshwright.service.api.problems import declared
from meshwright.service.api.schemas import ProfileDetail, ProfilePage, ProfileView, view_of

router = APIRouter(prefix="/v1/profiles", tags=["profiles"], responses=declared(401, 403, 422, 503))


@router.post(
    "",
    dependencies=[SUBMITS],
    status_code=201,
    responses=declared(408, 413, 415),
    openapi_extra=PROFILE_BODY,
    summary="Save a profile",
)
def create_profile(
    body: DocumentDep, service: ServiceDep, tenant: TenantDep, response: Response, idempotency_key: KeyDep
) -> ProfileView:
    """Save a calibration or a measured profile; the same document again returns the same profile."""
    record = service.profiles.add(tenant, body, repeatable_of(service, idempotency_key, "profiles", body))
    response.headers["Location"] = f"/v1/profiles/{record.id}"
    return view_of(ProfileView, record)


@router.get("", dependencies=[READS], summary="List profiles")
def list_profiles(
    service: ServiceDep, tenant: TenantDep, page_size: PageSize = 50, page_token: PageToken = None
) -> ProfilePage:
    """Profiles, newest first, without their documents."""
    page = service.profiles.page(tenant, page_size=page_size, page_token=page_token)
    return ProfilePage(
        profiles=[view_of(ProfileView, record) for record in page.items],
        next_page_token=page.next_page_token,
    )


@router.get("/{profile_id}", dependencies=[READS], responses=declared(404), summary="Fetch a profile")
def read_profile(profile_id: str, service: ServiceDep, tenant: TenantDep) -> ProfileDetail:
    """One profile with its document, as `meshwright plan --profile` takes it."""
    record, document = service.profiles.read(tenant, profile_id)
    return view_of(ProfileDetail, record, document=dict(document))


@router.delete(
    "/{profile_id}",
    dependencies=[ADMINISTERS],
    status_code=204,
    responses=declared(404),
    summary="Delete a profile",
)
def delete_profile(profile_id: str, service: ServiceDep, caller: CallerDep) -> None:
    """Delete a profile; queued jobs that name it fail for that reason."""
    service.profiles.delete(caller.tenant, profile_id, actor=caller.actor)
