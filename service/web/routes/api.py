"""The schemas of files, for editors."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from meshwright.service.api.deps import READS
from meshwright.service.api.openapi import SCHEMAS, schema_of
from meshwright.service.errors import NotFoundError

router = APIRouter()


@router.get("/schemas/{name}.json", dependencies=[READS])
def show_schema(name: str, request: Request) -> dict[str, Any]:
    """Return the JSON Schema of a problem or fleet file, for editors."""
    if name not in SCHEMAS:
        raise NotFoundError(f"there is no schema {name}; there are {', '.join(SCHEMAS)}")
    return schema_of(request.app.openapi(), name)
