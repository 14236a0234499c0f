"""Keys for administrators: make one and see its token once, list them, revoke one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.api.deps import ADMINISTERS as SEES_KEYS
from meshwright.service.api.deps import CallerDep, PageToken, Service, ServiceDep
from meshwright.service.api.routes.keys import create_key, revoke_key
from meshwright.service.api.schemas import NewKeyView
from meshwright.service.auth.keys import Keys
from meshwright.service.web.callers import ADMINISTERS, FormDep
from meshwright.service.web.fields import Form, FormField, faulty, request_of
from meshwright.service.web.rendering import page
from meshwright.service.web.routes.searches import seen_at

LISTED = 50
router = APIRouter(prefix="/keys")
FIELDS = (
    FormField(name="title", at=("title",), label="Name", hint="who or what uses it"),
    FormField(
        name="scope",
        at=("scope",),
        label="Scope",
        kind="choice",
        default="submit",
        choices=(("read", "read"), ("submit", "read and submit"), ("admin", "everything, keys too")),
    ),
    FormField(
        name="days",
        at=("expires_in_days",),
        label="Expires after",
        kind="number",
        hint="days; empty: never",
    ),
)


@router.get("", dependencies=[SEES_KEYS])
def list_keys(
    request: Request, service: ServiceDep, caller: CallerDep, page_token: PageToken = None
) -> Response:
    """Keys, newest first."""
    return _page(request, service, caller.tenant, Form(), page_token=page_token)


@router.post("", dependencies=[ADMINISTERS])
def make_key(request: Request, values: FormDep, service: ServiceDep, caller: CallerDep) -> Response:
    """Make a key; this page is the only one that ever shows its token."""
    try:
        made = create_key(request_of(FIELDS, values), service, caller, Response(), None)
    except InvalidProblemError as fault:
        return _page(request, service, caller.tenant, faulty(FIELDS, values, fault), status=422)
    return _page(request, service, caller.tenant, Form(), made=made)


@router.post("/{key_id}/revoke", dependencies=[ADMINISTERS])
def revoke(
    request: Request,
    key_id: str,
    service: ServiceDep,
    caller: CallerDep,
    *,
    with_links: Annotated[bool, Query()] = False,
) -> Response:
    """Revoke a key for good, and the links that it made where the button says so."""
    revoke_key(key_id, service, caller, with_links=with_links)
    return seen_at(request, "/keys")


def _page(
    request: Request,
    service: Service,
    tenant: str,
    form: Form,
    *,
    status: int = 200,
    made: NewKeyView | None = None,
    page_token: str | None = None,
) -> Response:
    found = Keys(service.database, actor="").page(tenant, page_size=LISTED, page_token=page_token)
    return page(
        request,
        "keys.html",
        status=status,
        form=form,
        fields=FIELDS,
        records=found.items,
        made=made,
        next_page_token=found.next_page_token,
    )
