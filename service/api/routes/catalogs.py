"""Names for problems: models, clusters and GPU types, of the catalog and of the caller's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from meshwright.profiles.gpus import gpu_to_mapping
from meshwright.profiles.inline import cluster_to_mapping
from meshwright.profiles.model_shapes import model_to_mapping
from meshwright.service.api.deps import (
    ADMINISTERS,
    MAX_PAGE_SIZE,
    READS,
    SUBMITS,
    CallerDep,
    DocumentDep,
    PageToken,
    Service,
    ServiceDep,
    TenantDep,
)
from meshwright.service.api.openapi import CLUSTER_BODY, GPU_BODY, MODEL_BODY
from meshwright.service.api.problems import declared
from meshwright.service.api.schemas import CatalogView, DefinitionView, moment
from meshwright.service.api.tags import tagged
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs.pagination import decode_token, encode_token
from meshwright.service.stores.definitions import CATALOG, DefinitionRecord, Kind, why_unreadable

router = APIRouter(prefix="/v1", tags=["catalogs"], responses=declared(401, 403, 422, 503))

PageSize = Annotated[int, Query(ge=1, le=MAX_PAGE_SIZE, description="entries of one page")]
Version = Annotated[int | None, Query(ge=1, le=10**9, description="default: the newest")]
IfNoneMatch = Annotated[str | None, Header()]
UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "Unchanged since If-None-Match"}}
SAME: dict[int | str, dict[str, Any]] = {
    200: {"model": DefinitionView, "description": "The newest version has the same content"}
}

_WRITTEN: Mapping[Kind, Callable[[Any], Mapping[str, Any]]] = {
    "model": model_to_mapping, "cluster": cluster_to_mapping, "gpu": gpu_to_mapping,
}  # fmt: skip
TITLES: Mapping[Kind, str] = {"model": "model", "cluster": "cluster", "gpu": "GPU type"}


def page_of(service: Service, tenant: str, kind: Kind, size: int, token: str | None) -> CatalogView:
    """The catalog's and the tenant's entries together, by name."""
    after = decode_token(token, str)[0] if token else ""
    stored = {one.name: one for one in service.definitions.page(tenant, kind, after=after, limit=size + 1)}
    names = sorted({*(name for name in CATALOG[kind][0]() if name > after), *stored})
    more = len(names) > size
    return CatalogView(
        items=[  # of this page alone: each entry of the catalog is a file
            dict(_stored_entry(kind, stored[name]) if name in stored else _entry(kind, name))
            for name in names[:size]
        ],
        next_page_token=encode_token(names[size - 1]) if more else None,
    )


def _stored_entry(kind: Kind, record: DefinitionRecord) -> Mapping[str, Any]:
    why = why_unreadable(kind, record)
    own = {"name": record.name, "origin": "stored", "version": record.version}
    return {**record.document, **own} if why is None else {**own, "unreadable": why}


@cache
def _entry(kind: Kind, name: str) -> Mapping[str, Any]:
    return {**asdict(CATALOG[kind][1](name)), "name": name, "origin": "catalog"}


def _view(kind: Kind, record: DefinitionRecord) -> DefinitionView:
    return DefinitionView(
        kind=kind,
        name=record.name,
        origin="stored",
        version=record.version,
        created_at=moment(record.created_at_s),
        unreadable=why_unreadable(kind, record),
        document=dict(record.document),
    )


def definition_of(
    service: Service, tenant: str, kind: Kind, name: str, version: int | None
) -> DefinitionView:
    """One definition of the catalog or of the tenant's own.

    Raises:
        NotFoundError: there is none.
    """
    if name not in CATALOG[kind][0]():
        return _view(kind, service.definitions.read(tenant, kind, name, version))
    if version is not None:
        raise NotFoundError("the catalog's entries have no versions")
    return DefinitionView(
        kind=kind, name=name, origin="catalog", document=dict(_WRITTEN[kind](CATALOG[kind][1](name)))
    )


def heading_of(kind: Kind) -> str:
    """Return what a kind is called where a sentence begins: ``GPU type``."""
    return TITLES[kind][0].upper() + TITLES[kind][1:]


def _add_reading(kind: Kind) -> None:
    def list_them(
        service: ServiceDep,
        tenant: TenantDep,
        page_size: PageSize = MAX_PAGE_SIZE,
        page_token: PageToken = None,
    ) -> Response:
        page = page_of(service, tenant, kind, page_size, page_token)
        return Response(page.model_dump_json(), media_type="application/json")

    def fetch(
        name: str,
        service: ServiceDep,
        tenant: TenantDep,
        version: Version = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        view = definition_of(service, tenant, kind, name, version)
        return tagged(view.model_dump_json(exclude_none=True), if_none_match)

    router.get(
        f"/{kind}s",
        dependencies=[READS],
        response_model=CatalogView,
        operation_id=f"list_{kind}s",
        summary=f"List {TITLES[kind]}s",
        description=f"Every {TITLES[kind]} that a problem may name: of the catalog, and this tenant's own.",
    )(list_them)
    router.get(
        f"/{kind}s/{{name}}",
        dependencies=[READS],
        response_model=DefinitionView,
        responses={**UNCHANGED, **declared(404)},
        operation_id=f"read_{kind}",
        summary=f"Fetch a {TITLES[kind]}",
        description="Return every figure, as a problem may state it inline.",
    )(fetch)


def _add_writing(kind: Kind, body: dict[str, Any]) -> None:
    def put(
        name: str, body: DocumentDep, service: ServiceDep, tenant: TenantDep, response: Response
    ) -> DefinitionView:
        record, is_new = service.definitions.put(tenant, kind, name, body)
        response.status_code = 201 if is_new else 200
        return _view(kind, record)

    def delete(name: str, service: ServiceDep, caller: CallerDep) -> None:
        service.definitions.delete(caller.tenant, kind, name, actor=caller.actor)

    router.put(
        f"/{kind}s/{{name}}",
        dependencies=[SUBMITS],
        status_code=201,
        responses={**SAME, **declared(408, 413, 415)},
        openapi_extra=body,
        operation_id=f"put_{kind}",
        summary=f"Save a {TITLES[kind]}",
        description="Check it as in a problem and save a new version. Problems name it, or `name@version`.",
    )(put)
    router.delete(
        f"/{kind}s/{{name}}",
        dependencies=[ADMINISTERS],
        status_code=204,
        responses=declared(404),
        operation_id=f"delete_{kind}",
        summary=f"Delete a {TITLES[kind]}",
        description="Delete every version. Jobs keep the figures that they were submitted with.",
    )(delete)


_BODIES: Mapping[Kind, dict[str, Any]] = {
    "model": MODEL_BODY, "cluster": CLUSTER_BODY, "gpu": GPU_BODY,
}  # fmt: skip
for _kind, _body in _BODIES.items():
    _add_reading(_kind)
    _add_writing(_kind, _body)
