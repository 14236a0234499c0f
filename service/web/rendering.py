"""Pages from templates: the report's, and those of this room; and the headers that every page has."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader

from meshwright.service.api.deps import service_of
from meshwright.service.auth.access import Caller
from meshwright.service.auth.keys import SCOPES
from meshwright.service.report.formatting import sentence_case
from meshwright.service.report.page import HTML, environment
from meshwright.service.report.summary import launcher_words
from meshwright.service.web.assets import SCRIPTS, STYLES, address_of

TEMPLATES = Path(__file__).parent / "templates"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # no-referrer would take the Origin from the pages' own forms
    "Cache-Control": "no-store",  # pages of a tenant must not reach the next user of the browser
}


def page(request: Request, template: str, *, status: int = 200, **context: object) -> HTMLResponse:
    """Return one page; ``context`` is the template's own."""
    return HTMLResponse(
        templates().get_template(template).render({**_frame(request), **context}),
        status_code=status,
        headers=HEADERS,
    )


@cache
def templates() -> Environment:
    """Return the report's environment, with the templates of the pages before its own."""
    made = environment().overlay(loader=FileSystemLoader([TEMPLATES, HTML]))
    made.filters["moment"] = _moment
    made.filters["sentence_case"] = sentence_case
    made.filters["launcher_words"] = launcher_words
    return made


def _frame(request: Request) -> Mapping[str, object]:
    caller: Caller | None = getattr(request.state, "caller", None)
    reach = -1 if caller is None else SCOPES.index(caller.scope)
    return {
        "caller": caller,
        "may_submit": reach >= SCOPES.index("submit"),
        "may_administer": reach >= SCOPES.index("admin"),
        "has_keys": service_of(request).access.has_keys,
        "here": request.url.path,
        "docs_url": service_of(request).settings.docs_url.rstrip("/"),
        "guide": guide_of(request.url.path),
        "styles": [address_of(name) for name in STYLES],
        "scripts": [address_of(name) for name in SCRIPTS],
    }


# The documentation of a page, by the first part of its address; any other page's is the first one.
GUIDES: Mapping[str, str] = {
    "": "requests",
    "own": "howto/launch-command",
    "jobs": "glossary",
    "plans": "glossary",
    "fleets": "howto/fleet",
    "models": "howto/own-model",
    "clusters": "howto/own-cluster",
    "gpus": "howto/own-gpu",
    "profiles": "howto/calibrate",
    "keys": "howto/team",
}


def guide_of(path: str) -> str:
    """Return the page of the documentation that explains a page, relative to ``docs_url``."""
    return f"{GUIDES.get(path.split('/')[1], 'index')}.html"


def _moment(time_s: float | None) -> str:
    return "" if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
