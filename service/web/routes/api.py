"""The API as a page: every operation with its parameters, an example request and its answer."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from meshwright.service.api.deps import READS, ServiceDep
from meshwright.service.api.openapi import SCHEMAS, schema_of
from meshwright.service.errors import NotFoundError
from meshwright.service.web.api_page import curl_of, operations_of
from meshwright.service.web.rendering import page

router = APIRouter()


@router.get("/schemas/{name}.json", dependencies=[READS])
def show_schema(name: str, request: Request) -> dict[str, Any]:
    """Return the JSON Schema of a problem or fleet file, for editors."""
    if name not in SCHEMAS:
        raise NotFoundError(f"there is no schema {name}; there are {', '.join(SCHEMAS)}")
    return schema_of(request.app.openapi(), name)


@router.get("/docs", dependencies=[READS])
def show_api(request: Request, service: ServiceDep) -> Response:
    """Every operation of this server."""
    areas = operations_of(request.app.openapi())
    base, has_keys = str(request.base_url).rstrip("/"), service.access.has_keys
    return page(
        request,
        "api.html",
        areas=areas,
        commands={
            one.key: curl_of(one, base, has_keys=has_keys)
            for operations in areas.values()
            for one in operations
        },
        base=base,
    )
