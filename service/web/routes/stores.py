"""Models, clusters, GPU types and profiles that questions may name: list, add, delete."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.api.deps import (
    READS,
    CallerDep,
    PageToken,
    Service,
    ServiceDep,
    TenantDep,
)
from meshwright.service.api.routes.catalogs import TITLES, definition_of, heading_of, page_of
from meshwright.service.stores.definitions import CATALOG, KINDS, MAX_NAMES, Kind
from meshwright.service.web.callers import ADMINISTERS, SUBMITS, DocumentFormDep
from meshwright.service.web.choices import suggestions_of
from meshwright.service.web.fields import Form, FormField, Values, faulty, request_of
from meshwright.service.web.rendering import page
from meshwright.service.web.routes.searches import seen_at

router = APIRouter()
LISTED = 50
_NAME = FormField(
    name="name", at=("path", "name"), label="Name", required=True, hint="a to z, 0 to 9 and . _ -"
)
_DOCUMENT = {
    "model": "a Hugging Face config.json, or a shape in the API's own names",
    "cluster": "node groups, as in the API's cluster: {\"groups\": [{\"gpu\": …, \"num_nodes\": …}]}",
    "gpu": 'its data sheet: {"memory_gib": …, "hbm_gb_per_s": …, "peak_tflops": {"bf16": …}}',
    "profile": "what meshwright calibrate, profile or import wrote",
}  # fmt: skip


def _fields(kind: str) -> tuple[FormField, ...]:
    document = FormField(
        name="document",
        at=("document",),
        label="Document",
        kind="json",
        required=True,
        hint=_DOCUMENT[kind],
    )
    return (document,) if kind == "profile" else (_NAME, document)


def _add_pages(kind: Kind) -> None:
    def list_them(request: Request, service: ServiceDep, tenant: TenantDep) -> Response:
        return _list(request, service, tenant, kind, Form())

    def keep(request: Request, values: DocumentFormDep, service: ServiceDep, tenant: TenantDep) -> Response:
        try:
            name = "".join(values.get("name", [])).strip()
            service.definitions.put(tenant, kind, name, _document(_fields(kind), values))
        except InvalidProblemError as fault:
            return _list(
                request, service, tenant, kind, faulty(_fields(kind), values, _inside(fault)), status=422
            )
        return seen_at(request, f"/{kind}s/{name}")

    def show(
        request: Request,
        name: str,
        service: ServiceDep,
        tenant: TenantDep,
        version: Annotated[int | None, Query(ge=1, le=10**9)] = None,
    ) -> Response:
        found = definition_of(service, tenant, kind, name, version)
        newest = found if version is None else definition_of(service, tenant, kind, name, None)
        return page(
            request,
            "definition.html",
            kind=kind,
            heading=heading_of(kind),
            found=found,
            newest=newest.version,
            document=_text(found.document),
            facts=[
                (name.replace("_", " "), str(value))
                for name, value in found.document.items()
                if isinstance(value, int | float | str) and name != "name"
            ],
        )

    def delete(request: Request, name: str, service: ServiceDep, caller: CallerDep) -> Response:
        service.definitions.delete(caller.tenant, kind, name, actor=caller.actor)
        return seen_at(request, f"/{kind}s")

    router.get(f"/{kind}s", dependencies=[READS])(list_them)
    router.post(f"/{kind}s", dependencies=[SUBMITS])(keep)
    router.get(f"/{kind}s/{{name}}", dependencies=[READS])(show)
    router.post(f"/{kind}s/{{name}}/delete", dependencies=[ADMINISTERS])(delete)


for _kind in KINDS:
    _add_pages(_kind)


@router.get("/profiles", dependencies=[READS])
def list_profiles(
    request: Request, service: ServiceDep, tenant: TenantDep, page_token: PageToken = None
) -> Response:
    """Profiles, newest first."""
    return _profiles(request, service, tenant, Form(), page_token=page_token)


@router.post("/profiles", dependencies=[SUBMITS])
def keep_profile(
    request: Request, values: DocumentFormDep, service: ServiceDep, tenant: TenantDep
) -> Response:
    """Keep a profile."""
    fields = _fields("profile")
    try:
        record = service.profiles.add(tenant, _document(fields, values))
    except InvalidProblemError as fault:
        return _profiles(request, service, tenant, faulty(fields, values, _inside(fault)), status=422)
    return seen_at(request, f"/profiles/{record.id}")


@router.get("/profiles/{profile_id}", dependencies=[READS])
def show_profile(request: Request, profile_id: str, service: ServiceDep, tenant: TenantDep) -> Response:
    """One profile."""
    record, document = service.profiles.read(tenant, profile_id)
    return page(request, "profile.html", record=record, document=_text(document))


@router.post("/profiles/{profile_id}/delete", dependencies=[ADMINISTERS])
def delete_profile(request: Request, profile_id: str, service: ServiceDep, caller: CallerDep) -> Response:
    """Delete a profile."""
    service.profiles.delete(caller.tenant, profile_id, actor=caller.actor)
    return seen_at(request, "/profiles")


def _profiles(
    request: Request,
    service: Service,
    tenant: str,
    form: Form,
    *,
    status: int = 200,
    page_token: str | None = None,
) -> Response:
    found = service.profiles.page(tenant, page_size=LISTED, page_token=page_token)
    return page(
        request,
        "profiles.html",
        status=status,
        form=form,
        fields=_fields("profile"),
        records=found.items,
        next_page_token=found.next_page_token,
    )


def _list(
    request: Request, service: Service, tenant: str, kind: Kind, form: Form, *, status: int = 200
) -> Response:
    every = len(CATALOG[kind][0]()) + MAX_NAMES
    items = page_of(service, tenant, kind, every, None).items
    words = dict(suggestions_of(service, tenant)[f"{kind}s"])
    return page(
        request,
        "definitions.html",
        status=status,
        kind=kind,
        noun=TITLES[kind],
        heading=heading_of(kind),
        rows=[
            {
                "name": one["name"],
                "version": one.get("version"),
                "words": f"unreadable: {one['unreadable']}"
                if "unreadable" in one
                else words.get(one["name"], ""),
            }
            for one in items
        ],
        form=form,
        fields=_fields(kind),
    )


def _document(fields: Sequence[FormField], values: Values) -> Mapping[str, object]:
    document = request_of(fields, values).get("document")
    if not isinstance(document, dict):
        raise InvalidProblemError.of("/document", "is required")
    return document


def _inside(fault: InvalidProblemError) -> InvalidProblemError:
    """Return faults of a document as faults of its field, with their place in the words."""
    return InvalidProblemError(
        one
        if one.pointer.startswith(("/document", "/path"))
        else replace(one, pointer="/document", message=f"{one.field}: {one.message}")
        for one in fault.errors
    )


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False)
