"""Callers of pages, and the check that a form comes from one of ours.

A browser sends its cookie with any form that another site makes it post. The cookie is SameSite=Strict, and
every form must also come from this very origin, as the browser reports it (RFC 6454, the Origin header).
This holds on a machine without keys, too, where there is no cookie to withhold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import SecurityScopes

from meshwright.profiles.documents import DOCUMENT, InputLimits, require_plain
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.api.deps import SMALL_BYTES, admit, arriving, session_of
from meshwright.service.errors import ForbiddenError

MAX_FIELDS = 200
FORM = "application/x-www-form-urlencoded"
Values = dict[str, list[str]]


async def require_own_origin(request: Request) -> None:
    """Refuse a form that does not come from one of our pages.

    Raises:
        ForbiddenError: it has no Origin header, or the header names another host.
    """
    origin = urlsplit(request.headers.get("origin", ""))
    if not origin.netloc or origin.netloc.lower() != request.headers.get("host", "").lower():
        raise ForbiddenError("forms work only from this server's pages. Programs use the API")


async def _act(request: Request, wanted: SecurityScopes) -> None:
    """Admit whoever is signed in, and only from a page of ours."""
    await require_own_origin(request)
    await admit(request, session_of(request), wanted.scopes)


SUBMITS = Security(_act, scopes=["submit"])
ADMINISTERS = Security(_act, scopes=["admin"])


def form_of(limits: InputLimits) -> Callable[[Request], AsyncIterator[Values]]:
    """Return the dependency that reads a form: its fields, each with its values.

    It raises InvalidProblemError if the body is not a form, or holds a value that no request may hold, and
    what ``arriving`` raises.
    """

    async def read(request: Request) -> AsyncIterator[Values]:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise InvalidProblemError.of("", "is not a form", allowed=FORM)
        async with arriving(request, limits) as chunks:
            yield _fields_of(b"".join([chunk async for chunk in chunks]))

    return read


def _fields_of(body: bytes) -> Values:
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except (UnicodeDecodeError, ValueError):
        raise InvalidProblemError.of("", "is not a form", allowed=f"{MAX_FIELDS} fields of text") from None
    values: Values = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value.replace("\r\n", "\n"))
    require_plain(dict(values))
    return values


_FORM = replace(DOCUMENT, max_bytes=2**20, max_values=MAX_FIELDS, max_keys=MAX_FIELDS)
# What a question states is limited in the API too (``meshwright.profiles.documents.PROBLEM``).
QUESTION_FORM = replace(_FORM, advice="keep a large model, cluster or profile under a name on its own page")
DOCUMENT_FORM = replace(
    _FORM,
    advice="send a larger document to PUT /v1/models/{name}, PUT /v1/clusters/{name} or POST /v1/profiles",
)
_SIGN_IN = replace(DOCUMENT, max_bytes=SMALL_BYTES, advice="it holds a key and no more")
FormDep = Annotated[Values, Depends(form_of(QUESTION_FORM), scope="function")]
DocumentFormDep = Annotated[Values, Depends(form_of(DOCUMENT_FORM), scope="function")]
SignInDep = Annotated[Values, Depends(form_of(_SIGN_IN), scope="function")]  # of callers who are not known
