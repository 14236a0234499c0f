"""Who asks for a page, and whether a form was sent from one of ours.

A browser sends its cookie along with whatever another site makes it post. The cookie is SameSite=Strict,
and every form must also come from this very origin, as the browser itself says (RFC 6454, the Origin
header): so it is on a machine without keys, too, where there is no cookie to withhold.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import SecurityScopes

from profiles.errors import InvalidProblemError
from service.api.deps import admit, session_of
from service.errors import ForbiddenError
from service.json_input import require_plain

MAX_FIELDS = 200
FORM = "application/x-www-form-urlencoded"
Values = dict[str, list[str]]


async def require_own_origin(request: Request) -> None:
    """Refuse a form that another site, or nobody's page, has sent.

    Raises:
        ForbiddenError: it has no Origin header, or another host stands in it.
    """
    origin = urlsplit(request.headers.get("origin", ""))
    if not origin.netloc or origin.netloc.lower() != request.headers.get("host", "").lower():
        raise ForbiddenError("forms are taken from this server's own pages only; programs use the API")


async def _act(request: Request, wanted: SecurityScopes) -> None:
    """Admit whoever is signed in, and only from a page of ours."""
    await require_own_origin(request)
    await admit(request, session_of(request), wanted.scopes)


SUBMITS = Security(_act, scopes=["submit"])
ADMINISTERS = Security(_act, scopes=["admin"])


async def form_of(request: Request) -> Values:
    """The fields of a form, each with its values.

    Raises:
        InvalidProblemError: it is no form, or holds what no request may hold.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != FORM:
        raise InvalidProblemError.of("", "is not a form", allowed=FORM)
    try:
        text = (await request.body()).decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except (UnicodeDecodeError, ValueError):
        raise InvalidProblemError.of("", "is not a form", allowed=f"{MAX_FIELDS} fields of text") from None
    values: Values = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value.replace("\r\n", "\n"))
    require_plain(dict(values))
    return values


FormDep = Annotated[Values, Depends(form_of)]
