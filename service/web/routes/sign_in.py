"""Signing in with a key and out again. The browser holds a session, never the key; no script reads it."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from meshwright.service.api.deps import SESSION_COOKIE, Service, ServiceDep, session_of
from meshwright.service.auth.access import LIFE_S, begin_session, end_session, is_session
from meshwright.service.auth.keys import id_of
from meshwright.service.auth.people import ATTEMPT_S, Attempt
from meshwright.service.errors import ForbiddenError, NotFoundError, UnauthorizedError
from meshwright.service.web.callers import SignInDep, require_own_origin
from meshwright.service.web.rendering import page

ATTEMPT_COOKIE = "meshwright_sign_in"
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
    return _form(request, service, _local(back))


@router.get("/sign-in/oidc")
def leave(
    request: Request, service: ServiceDep, back: Annotated[str, Query(alias="next", max_length=256)] = "/"
) -> Response:
    """Send the browser to the sign-in provider; a cookie remembers what it is to come back with."""
    if not service.people.is_on:
        raise NotFoundError("there is nothing at this address")
    attempt = Attempt.new(_local(back))
    response = RedirectResponse(service.people.address(attempt), status_code=303)
    response.set_cookie(
        ATTEMPT_COOKIE,
        service.people.sealed(attempt),
        max_age=ATTEMPT_S,
        path="/sign-in/oidc",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",  # the provider's page leads back here
    )
    return response


@router.get("/sign-in/oidc/callback")
def come_back(
    request: Request,
    service: ServiceDep,
    code: Annotated[str, Query(max_length=4096)] = "",
    state: Annotated[str, Query(max_length=256)] = "",
) -> Response:
    """Begin the session of whoever comes back from the sign-in provider.

    The page that answers leads on: a redirect would come from the provider's site, without the new cookie.
    """
    if not service.people.is_on:
        raise NotFoundError("there is nothing at this address")
    back = "/"
    try:
        attempt = service.people.opened(request.cookies.get(ATTEMPT_COOKIE, ""), state if code else "")
        back = attempt.back
        key_id = service.people.signed_in(attempt, code)
    except (UnauthorizedError, ForbiddenError) as fault:
        return _form(
            request,
            service,
            back,
            status=401 if isinstance(fault, UnauthorizedError) else 403,
            fault=f"{str(fault)[:1].upper()}{str(fault)[1:]}.",
        )
    service.access.forget()  # the tenant or the scope of a person may have changed
    response = page(request, "signed_in.html", back=back)
    response.delete_cookie(ATTEMPT_COOKIE, path="/sign-in/oidc", httponly=True, samesite="lax")
    _begin(request, service, response, key_id)
    return response


def _form(
    request: Request, service: Service, back: str, *, status: int = 200, fault: str = ""
) -> HTMLResponse:
    return page(
        request, "sign_in.html", status=status, back=back, fault=fault, has_provider=service.people.is_on
    )


def _begin(request: Request, service: Service, response: Response, key_id: str) -> None:
    response.set_cookie(
        SESSION_COOKIE,
        begin_session(service.database, key_id),
        max_age=round(LIFE_S),
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


@router.post("/sign-in", dependencies=[FROM_HERE])
def sign_in(request: Request, values: SignInDep, service: ServiceDep) -> Response:
    """Begin a session with a key that is usable."""
    back, token = _local("".join(values.get("next", []))), "".join(values.get("key", [])).strip()
    try:
        caller = service.access.identify(token if id_of(token) else "")
    except UnauthorizedError:
        return _form(request, service, back, status=401, fault="This key is unknown, revoked or expired.")
    response = RedirectResponse(back, status_code=303)
    if caller.key_id is not None:
        _begin(request, service, response, caller.key_id)
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
