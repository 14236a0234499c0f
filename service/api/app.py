"""Builds the API of one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

from meshwright.service.api import errors, openapi
from meshwright.service.api.deps import Service, turns_of_process
from meshwright.service.api.edge import Edge, InHand
from meshwright.service.api.metrics import Metrics
from meshwright.service.api.problems import declared
from meshwright.service.api.routes import (
    catalogs,
    fleets,
    jobs,
    keys,
    plans,
    predictions,
    probes,
    profiles,
    reports,
    shares,
    use,
)
from meshwright.service.api.watch import EventWatch
from meshwright.service.auth.access import Access
from meshwright.service.auth.people import People
from meshwright.service.db.database import Database
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs, TenantLimits
from meshwright.service.jobs.queue import queue_for
from meshwright.service.jobs.spending import Spending
from meshwright.service.settings import Settings
from meshwright.service.stores.definitions import Definitions
from meshwright.service.stores.measurements import Measurements
from meshwright.service.stores.profiles import ProfileStore
from meshwright.service.stores.replans import Replans
from meshwright.service.stores.verifications import Verifications
from meshwright.service.telemetry import sends_spans
from meshwright.solver.answer import version_of


def create_app(settings: Settings, *, is_stopping: Callable[[], bool] = lambda: False) -> FastAPI:
    """The API over the database that ``settings`` name; ``is_stopping`` ends long polls early."""
    service, sends = _service(settings, is_stopping), sends_spans()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        service.spending.close()
        service.database.close()

    app = FastAPI(
        title="Meshwright",
        summary="Send a model, a cluster and a batch. Get a ranking of parallel configurations, proved "
        "under our cost model over the searched switches.",
        version=version_of("meshwright"),
        openapi_tags=openapi.TAGS,
        servers=openapi.SERVERS,
        lifespan=lifespan,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # an address is right or wrong
        # By default FastAPI looks for receivers of three kinds on every request: 2 % of a POST.
        telemetry={"tracing": sends, "auto_configure": sends, "metrics": False, "logs": False},
    )
    app.state.service = service
    app.state.in_hand = InHand()
    errors.install(app)
    app.add_middleware(
        Edge,
        any_host=lambda: service.access.has_keys,
        host_names=settings.host_names,
        metrics=service.metrics,
        in_hand=app.state.in_hand,
    )
    app.router.routes += _routes()
    openapi.install(app)
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Every route, made ready once a process: that takes far longer than all else."""
    every = APIRouter(
        responses=declared(421, 500),
        # A client's generator makes a method of each name: submit_job, list_jobs.
        generate_unique_id_function=lambda route: route.name,
    )
    for part in (
        jobs, fleets, plans, reports, shares, predictions, profiles, catalogs, keys, use, probes
    ):  # fmt: skip
        every.include_router(part.router)
    every.include_router(shares.every)
    return tuple(every.routes)


def _service(settings: Settings, is_stopping: Callable[[], bool]) -> Service:
    database = Database(settings.database_url)
    queue = queue_for(settings.queue_url)
    turns = turns_of_process()
    spending = Spending(database, most_s=settings.max_cpu_s_per_day)
    use_cases = Jobs(
        database,
        JobEngine(
            database,
            lease_s=settings.lease_s,
            max_running_jobs=settings.max_running_jobs,
            max_cpu_s_per_day=settings.max_cpu_s_per_day,
        ),
        queue,
        queue_timeout_s=settings.queue_timeout_s,
        limits=TenantLimits(
            max_queued_jobs=settings.max_queued_jobs,
            max_submits_per_minute=settings.max_submits_per_minute,
            refuses_beyond_cpu=settings.beyond_cpu_quota == "refuse",
            idempotency_ttl_s=settings.idempotency_ttl_s,
        ),
        spending=spending,
    )
    return Service(
        settings=settings,
        database=database,
        access=Access(database, closed=settings.oidc_issuer is not None),
        people=People(settings, database),
        metrics=Metrics(database, turns=turns, most_tenants=settings.metrics_tenants),
        **turns,
        spending=spending,
        queue=queue,
        jobs=use_cases,
        profiles=ProfileStore(database),
        definitions=Definitions(database),
        measurements=Measurements(database, use_cases),
        replans=Replans(database),
        verifications=Verifications(
            database, use_cases, queue, lease_s=settings.lease_s, max_attempts=settings.verify_attempts
        ),
        watch=EventWatch(database, is_stopping=is_stopping),
    )
