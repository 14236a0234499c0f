"""Puts the pages beside the API of one process. They are no part of its OpenAPI document."""

from __future__ import annotations

from fastapi import FastAPI

from service.web import failures
from service.web.routes import jobs, keys, plans, searches, sign_in, static, stores


def install(app: FastAPI) -> None:
    """Serve the pages from ``app``, which serves the API."""
    for part in (static, sign_in, searches, jobs, plans, stores, keys):
        app.include_router(part.router, include_in_schema=False)
    failures.install(app)
