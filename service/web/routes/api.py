"""The API as a page: every operation with its parameters, an example request and its answer."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from meshwright.service.api.deps import READS, ServiceDep
from meshwright.service.web.api_page import curl_of, operations_of
from meshwright.service.web.rendering import page

router = APIRouter()


@router.get("/docs", dependencies=[READS])
def show_api(request: Request, service: ServiceDep) -> Response:
    """Every operation of this server."""
    areas = operations_of(request.app.openapi())
    base, has_keys = str(request.base_url).rstrip("/"), service.access.has_keys
    commands = {
        one.key: curl_of(one, base, has_keys=has_keys)
        for operations in areas.values()
        for one in operations
    }
    return page(request, "api.html", areas=areas, commands=commands, base=base)
