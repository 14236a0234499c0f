"""Keys of the caller's own tenant, and the trail of what its administrators did."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from meshwright.profiles.reading import FieldReader
from meshwright.service.api.deps import (
    ADMINISTERS,
    BodyDep,
    CallerDep,
    KeyDep,
    PageSize,
    PageToken,
    ServiceDep,
    TenantDep,
    repeatable_of,
)
from meshwright.service.api.openapi import KEY_BODY
from meshwright.service.api.problems import declared
from meshwright.service.api.schemas import AuditPage, AuditView, KeyPage, KeyView, NewKeyView, view_of
from meshwright.service.auth.keys import MAX_LIFE_DAYS, SCOPES, Keys, NewKey
from meshwright.service.errors import ForbiddenError, NotFoundError
from meshwright.service.stores.deletion import Deletion

router = APIRouter(
    prefix="/v1", tags=["keys"], dependencies=[ADMINISTERS], responses=declared(401, 403, 422, 503)
)


@router.post(
    "/keys",
    status_code=201,
    responses=declared(408, 413, 415),
    openapi_extra=KEY_BODY,
    summary="Make a key",
)
def create_key(
    body: BodyDep, service: ServiceDep, caller: CallerDep, response: Response, idempotency_key: KeyDep
) -> NewKeyView:
    """Make a key of this tenant; its token is shown once, and not again if the request is repeated."""
    if caller.key_id is None:
        raise ForbiddenError("the first key is made on the server: meshwright keys create")
    reader = FieldReader(body, "")
    expires = reader.has("expires_in_days")
    days = reader.number("expires_in_days", low=1e-5, high=MAX_LIFE_DAYS) if expires else None
    scope, title = reader.choice("scope", SCOPES, default="submit"), reader.text("title", default="")
    cpu_s = (
        reader.number("max_cpu_s_per_day", low=0.001, high=1e9) if reader.has("max_cpu_s_per_day") else None
    )
    reader.refuse_unknown()
    reader.finish()
    record, token = Keys(service.database, actor=caller.key_id).create_once(
        NewKey(
            tenant=caller.tenant, scope=scope, title=title, expires_in_days=days, max_cpu_s_per_day=cpu_s
        ),
        repeatable_of(service, idempotency_key, "keys", body),
    )
    response.headers["Cache-Control"] = "no-store"
    return view_of(NewKeyView, record, token=token)


@router.get("/keys", summary="List keys")
def list_keys(
    service: ServiceDep, tenant: TenantDep, page_size: PageSize = 50, page_token: PageToken = None
) -> KeyPage:
    """Keys of this tenant, newest first; their secrets are not kept."""
    page = Keys(service.database, actor="").page(tenant, page_size=page_size, page_token=page_token)
    return KeyPage(
        keys=[view_of(KeyView, record) for record in page.items], next_page_token=page.next_page_token
    )


@router.delete("/keys/{key_id}", status_code=204, responses=declared(404), summary="Revoke a key")
def revoke_key(
    key_id: str,
    service: ServiceDep,
    caller: CallerDep,
    *,
    with_links: Annotated[
        bool, Query(description="also end the share links that it made, which work on otherwise")
    ] = False,
) -> None:
    """Revoke a key for good; repeating it changes nothing."""
    Keys(service.database, actor=caller.actor).revoke(key_id, tenant=caller.tenant, with_links=with_links)
    service.access.forget()


@router.delete(
    "/tenants/{tenant_name}", status_code=204, responses=declared(404), summary="Delete a tenant"
)
def delete_tenant(tenant_name: str, service: ServiceDep, caller: CallerDep) -> None:
    """Delete all records of your own tenant: jobs, plans, measurements, profiles, definitions, keys.

    Your own key goes last: if the connection breaks, send the request again, until the key is refused.
    """
    if tenant_name != caller.tenant:
        raise NotFoundError("there is no such tenant")
    Deletion(service.database, actor=caller.actor).tenant(tenant_name)
    service.access.forget()


@router.get("/audit", summary="Audit trail of administrators")
def read_audit(
    service: ServiceDep, tenant: TenantDep, page_size: PageSize = 50, page_token: PageToken = None
) -> AuditPage:
    """The audit trail of this tenant, newest first."""
    page = Keys(service.database, actor="").trail(tenant, page_size=page_size, page_token=page_token)
    return AuditPage(
        acts=[view_of(AuditView, act) for act in page.items], next_page_token=page.next_page_token
    )
