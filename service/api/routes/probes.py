"""Probes: is the process alive, and can it serve?"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from meshwright.service.api.deps import ADMINISTERS, ServiceDep
from meshwright.service.api.problems import declared
from meshwright.service.api.schemas import ReadyView
from meshwright.service.db import migrations
from meshwright.service.db.database import DATABASE_AWAY

router = APIRouter(tags=["probes"])


@router.get("/livez", summary="Is the process alive?")
async def check_liveness() -> dict[str, str]:
    """Answer as long as the process runs, also while other requests wait for the database."""
    return {"status": "alive"}


@router.get("/readyz", responses={503: {"model": ReadyView}}, summary="Can it serve?")
def check_readiness(service: ServiceDep, response: Response) -> ReadyView:
    """Answer whether database and schema can serve; without its queue, jobs only start more slowly.

    A database that takes no writes, as on a full disk, is not ready. A schema that a newer release has
    made is served as long as that release declares it compatible.
    """
    migration: migrations.Fit | Literal["unknown"] = "unknown"
    with suppress(*DATABASE_AWAY):
        migration = migrations.fit(service.database)
    database: Literal["ok", "unavailable", "read_only"] = "unavailable" if migration == "unknown" else "ok"
    if migration in {"current", "newer"} and not service.database.takes_writes():
        database = "read_only"
    ready = database == "ok" and migration in {"current", "newer"}
    if not ready:
        response.status_code = 503
        response.headers["Retry-After"] = "2"
    return ReadyView(ready=ready, database=database, migration=migration, queue=service.queue.health())


@router.get(
    "/metrics",
    dependencies=[ADMINISTERS],
    response_class=PlainTextResponse,
    responses=declared(401, 403, 503),
    summary="Figures for Prometheus",
)
def read_metrics(service: ServiceDep) -> Response:
    """Requests of this process, and all jobs on record; keys, where demanded, of scope admin."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
