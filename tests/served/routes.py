"""Every route that a whole server answers to, API and pages, read off the app itself and no document."""

from collections.abc import Iterator
from dataclasses import dataclass

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from meshwright.service.api.app import create_app
from meshwright.service.settings import Settings
from meshwright.service.web.install import install


@dataclass(frozen=True, kw_only=True, order=True)
class Served:
    """One method of one path; ``scope``: what a caller's key must allow, None for everybody."""

    path: str
    method: str
    scope: str | None
    is_page: bool  # beside the API: no part of its document


def served_routes() -> list[Served]:
    """All of them, by path."""
    app = create_app(Settings(database_url="sqlite:///unused.db"))
    install(app)
    return sorted(_routes_of(app), key=lambda one: (one.path, one.method))


def _routes_of(app: FastAPI) -> Iterator[Served]:
    for route in iter_route_contexts(app.routes):
        own = getattr(route, "dependencies", None) or ()  # FastAPI's own route, the document, has none
        scopes = [scope for found in own for scope in getattr(found, "scopes", None) or ()]
        is_page = bool(own or scopes) and not route.include_in_schema
        for method in (route.methods or set()) - {"HEAD"}:
            yield Served(
                path=route.path or "", method=method, scope=" ".join(scopes) or None, is_page=is_page
            )
