"""Style and scripts of the pages: served with their hash in the address, so that browsers keep them."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response

from meshwright.service.errors import NotFoundError
from meshwright.service.report.page import HTML

STATIC = Path(__file__).parent / "static"
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
# The report's style and script come first: the pages are filled from its templates.
_PATHS = {
    "report.css": HTML / "report.css",
    "pages.css": STATIC / "pages.css",
    "report.js": HTML / "report.js",
    "htmx.js": STATIC / "htmx.js",
    "pages.js": STATIC / "pages.js",
}
STYLES = tuple(name for name in _PATHS if name.endswith(".css"))
SCRIPTS = tuple(name for name in _PATHS if name.endswith(".js"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """One static file, with its headers."""

    body: bytes
    packed: bytes  # gzip
    digest: str
    media_type: str


def asset(name: str) -> Asset | None:
    """Return a file by name; None: there is none."""
    path = _PATHS.get(name)
    return None if path is None else _packed(path)


@cache
def _packed(path: Path) -> Asset:
    """Return one of the files, packed once; names that are asked for and are none are not remembered."""
    body = path.read_bytes()
    return Asset(
        body=body,
        packed=gzip.compress(body, 9, mtime=0),
        digest=hashlib.sha256(body).hexdigest()[:16],
        media_type=_TYPES[path.suffix.removeprefix(".")],
    )


def address_of(name: str) -> str:
    """Return where a file is served; another content has another address."""
    found = asset(name)
    if found is None:
        raise KeyError(name)
    return f"/static/{found.digest}/{name}"


# --------------------------------------------------------------------------------------------------
# Style and scripts, for everybody: the sign-in page needs them too.


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
