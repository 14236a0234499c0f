"""Style and scripts, for everybody: the sign-in page needs them too."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.errors import NotFoundError
from service.web.assets import asset

FOR_A_YEAR = "public, max-age=31536000, immutable"
router = APIRouter(prefix="/static")


@router.get("/{digest}/{name}")
async def send(request: Request, digest: str, name: str) -> Response:
    """One file; under the address of its content it never changes."""
    found = asset(name)
    if found is None:
        raise NotFoundError("there is no such file")
    tag = f'"{found.digest}"'
    headers = {
        "ETag": tag,
        "Cache-Control": FOR_A_YEAR if digest == found.digest else "no-cache",
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
    }
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        return Response(found.packed, media_type=found.media_type, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)
