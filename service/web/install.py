"""Adds the pages to the API of one process. They are not part of its OpenAPI document."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from http import HTTPStatus
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from meshwright.service.web import assets
from meshwright.service.web.rendering import page
from meshwright.service.web.routes import (
    api,
    fleets,
    jobs,
    keys,
    plans,
    searches,
    shares,
    sign_in,
    stores,
    words,
)

# --------------------------------------------------------------------------------------------------
# Errors of page addresses as pages: the same statuses and sentences as the API's, for people.
#
# The API's own addresses keep their problem documents, whoever asks.


OF_THE_API = ("/v1/", "/livez", "/readyz", "/metrics", "/openapi.json")
_HEADINGS = {
    401: "Sign in",
    403: "Not with this key",
    404: "Nothing here",
    408: "Too slow",
    409: "Not yet",
    413: "Too much",
    421: "Not for this address",
    422: "Something is not right",
    429: "Too many at once",
    500: "A bug of ours",
    503: "Back in a moment",
}
Handler = Callable[[Request, Exception], Response | Awaitable[Response]]


def _as_page(handler: Handler) -> Handler:
    """Return a handler of the API that answers with a page where a browser asks for one."""

    async def handle(request: Request, error: Exception) -> Response:
        answered = handler(request, error)
        response = await answered if inspect.isawaitable(answered) else answered
        return _page_of(request, response) if _wants_page(request) else response

    return handle


def _wants_page(request: Request) -> bool:
    of_the_api = (f"{request.url.path}/").startswith(tuple(f"{name.rstrip('/')}/" for name in OF_THE_API))
    return not of_the_api and "text/html" in request.headers.get("accept", "")


def _page_of(request: Request, response: Response) -> Response:
    """Return the page of a problem document; who must sign in first is sent there."""
    problem: Mapping[str, object] = json.loads(bytes(response.body))
    if response.status_code == HTTPStatus.UNAUTHORIZED:
        back = request.url.path if request.method == "GET" else "/"
        target = f"/sign-in?next={quote(back)}"
        return RedirectResponse(
            target,
            status_code=303,
            headers={"HX-Redirect": target} if "hx-request" in request.headers else None,
        )
    shown = page(
        request,
        "failure.html",
        status=response.status_code,
        heading=_HEADINGS.get(response.status_code, str(problem["title"])),
        problem=problem,
    )
    for name in ("Retry-After", "Allow"):
        if name in response.headers:
            shown.headers[name] = response.headers[name]
    return shown


def install(app: FastAPI) -> None:
    """Serve the pages from ``app``, which serves the API."""
    app.router.routes += _routes()
    for kind, handler in list(app.exception_handlers.items()):
        app.add_exception_handler(kind, _as_page(handler))


@cache
def _routes() -> tuple[BaseRoute, ...]:
    every = APIRouter(include_in_schema=False)
    for part in (assets, sign_in, searches, jobs, fleets, plans, shares, stores, keys, api, words):
        every.include_router(part.router)
    return tuple(every.routes)
