"""Use of the service: CPU seconds of keys, and the workers that are alive."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from meshwright.service.api.deps import (
    MAX_PAGE_SIZE,
    READS,
    PageSize,
    PageToken,
    ServiceDep,
    TenantDep,
)
from meshwright.service.api.problems import declared
from meshwright.service.api.schemas import (
    UsageList,
    UsageTotal,
    UsageView,
    WorkerList,
    WorkerView,
    moment,
    view_of,
)
from meshwright.service.db import usage_records
from meshwright.service.db.usage_records import DAY_S, KEPT_DAYS, NO_KEY
from meshwright.service.jobs.pagination import decode_token, page_of

_UNKEYED = "-"
router = APIRouter(prefix="/v1", tags=["use"], dependencies=[READS], responses=declared(401, 403, 422, 503))


@router.get("/usage", summary="CPU seconds by key and day")
def read_usage(
    service: ServiceDep,
    tenant: TenantDep,
    days: Annotated[int, Query(ge=1, le=KEPT_DAYS, description="days, today included (UTC)")] = 30,
    page_size: PageSize = MAX_PAGE_SIZE,
    page_token: PageToken = None,
) -> UsageList:
    """CPU seconds of searches and of each request that computes, by key and day (UTC)."""
    after = None
    if page_token:
        day, key_id = decode_token(page_token, int, str)
        after = day, NO_KEY if key_id == _UNKEYED else key_id
    with service.database.read() as connection:
        found = usage_records.usage_of(connection, tenant, days=days, limit=page_size + 1, after=after)
        cpu_s, jobs = usage_records.total_usage(connection, tenant, days=days)
    page = page_of(found, page_size, lambda one: (one.day, one.key_id or _UNKEYED))
    return UsageList(
        usage=[
            UsageView(
                day=datetime.fromtimestamp(one.day * DAY_S, UTC).date(),
                key_id=one.key_id or None,
                cpu_s=one.cpu_s,
                jobs=one.jobs,
            )
            for one in page.items
        ],
        total=UsageTotal(cpu_s=cpu_s, jobs=jobs),
        next_page_token=page.next_page_token,
    )


@router.get("/workers", summary="List live workers")
def list_workers(service: ServiceDep, tenant: TenantDep) -> WorkerList:
    """The workers that are alive, and the job of each; jobs of other tenants have no id here."""
    with service.database.read() as connection:
        found = usage_records.live_workers(connection)
    return WorkerList(
        workers=[
            view_of(
                WorkerView,
                one,
                busy=None if one.kind == "verify" else one.job_id is not None,
                job_id=one.job_id if one.tenant == tenant else None,
                busy_since=moment(one.claimed_at_s),
            )
            for one in found
        ]
    )
