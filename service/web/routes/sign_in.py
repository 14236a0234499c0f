"""Signing in with a key and out again. The browser holds a session, never the key; no script reads it."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from meshwright.service.api.deps import SESSION_COOKIE, ServiceDep, session_of
from meshwright.service.auth.access import LIFE_S, begin_session, end_session, is_session
from meshwright.service.auth.keys import id_of
from meshwright.service.errors import UnauthorizedError
from meshwright.service.web.callers import SignInDep, require_own_origin
from meshwright.service.web.rendering import page

router = APIRouter()
FROM_HERE = Depends(require_own_origin)
_LOCAL = re.compile(r"/(?:[A-Za-z0-9_.~%-][A-Za-z0-9_.~%/:-]*)?")


def _local(path: str) -> str:
    """Return a path of this server; the first page for anything else."""
    return path if _LOCAL.fullmatch(path) else "/"


@router.get("/sign-in")
def ask(
    request: Request, service: ServiceDep, back: Annotated[str, Query(alias="next", max_length=256)] = "/"
) -> Response:
    """The form; where no keys are demanded there is nothing to sign in to."""
    if not service.access.demands_keys():
        return RedirectResponse(_local(back), status_code=303)
    return page(request, "sign_in.html", back=_local(back), fault="")


@router.post("/sign-in", dependencies=[FROM_HERE])
def sign_in(request: Request, values: SignInDep, service: ServiceDep) -> Response:
    """Begin a session with a key that is usable."""
    back, token = _local("".join(values.get("next", []))), "".join(values.get("key", [])).strip()
    try:
        caller = service.access.identify(token if id_of(token) else "")
    except UnauthorizedError:
        fault = "This key is not usable: unknown, revoked or expired."
        return page(request, "sign_in.html", status=401, back=back, fault=fault)
    response = RedirectResponse(back, status_code=303)
    if caller.key_id is not None:
        response.set_cookie(
            SESSION_COOKIE,
            begin_session(service.database, caller.key_id),
            max_age=round(LIFE_S),
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
    return response


@router.post("/sign-out", dependencies=[FROM_HERE])
def sign_out(request: Request, service: ServiceDep) -> Response:
    """End the session, here and in the database."""
    token = session_of(request)
    if token is not None and is_session(token):
        end_session(service.database, token)
        service.access.forget()
    response = RedirectResponse("/sign-in", status_code=303)
    response.delete_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="strict")
    return response
