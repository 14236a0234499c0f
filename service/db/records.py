"""Queries over jobs, plans and idempotency keys; they run in the caller's transaction.

The tenant stands in every WHERE: a foreign id is simply not there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, delete, insert, null, select, tuple_

from service.db.clock import now_s
from service.db.tables import idempotency_keys, jobs, plans

DEFAULT_PRIORITY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """One row of ``jobs`` without its bodies; times are seconds since 1970 by the database's clock."""

    id: str
    state: str
    time_limit_s: float
    created_at_s: float
    expires_at_s: float
    started_at_s: float | None
    finished_at_s: float | None
    claimed_at_s: float | None
    attempts: int
    cancel_requested: bool
    progress: Mapping[str, Any] | None
    problem: Mapping[str, Any] | None
    has_answer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord(JobSummary):
    """One row of ``jobs`` with its question and its answer."""

    request: Mapping[str, Any]
    answer: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a question came from: kept with its job, for logs and traces."""

    request_id: str | None = None
    traceparent: str | None = None  # W3C trace context


_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HAS_ANSWER = jobs.c.answer.is_not(null()).label("has_answer")
_SUMMARY = (
    *(jobs.c[field.name] for field in fields(JobSummary) if field.name != "has_answer"),
    _HAS_ANSWER,
)
_NOWHERE = Origin()
_RECORD = (*_SUMMARY, jobs.c.request, jobs.c.answer)


def is_identifier(text: str) -> bool:
    """Whether ``text`` could be the id of a job or plan; PostgreSQL cannot even look for a NUL."""
    return _IDENTIFIER.fullmatch(text) is not None


def insert_job(
    connection: Connection,
    tenant: str,
    job_id: str,
    *,
    request: Mapping[str, object],
    time_limit_s: float,
    queue_timeout_s: float,
    priority: int = DEFAULT_PRIORITY,
    origin: Origin = _NOWHERE,
) -> None:
    """Add a queued job; ``priority`` 0 goes before 9 among the tenant's own."""
    connection.execute(
        insert(jobs).values(
            id=job_id,
            tenant=tenant,
            state="queued",
            request=request,
            time_limit_s=time_limit_s,
            priority=priority,
            created_at_s=now_s(),
            expires_at_s=now_s() + queue_timeout_s,
            request_id=origin.request_id,
            traceparent=origin.traceparent,
        )
    )


def find_job(connection: Connection, tenant: str, job_id: str) -> JobRecord | None:
    """One job of this tenant."""
    if not is_identifier(job_id):
        return None
    query = select(*_RECORD).where(jobs.c.tenant == tenant, jobs.c.id == job_id)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else JobRecord(**row)


def newest_jobs(
    connection: Connection, tenant: str, *, limit: int, before: tuple[float, str] | None
) -> list[JobSummary]:
    """Up to ``limit`` jobs, newest first, after the position ``before`` (created_at_s, id)."""
    query = select(*_SUMMARY).where(jobs.c.tenant == tenant)
    if before is not None:
        query = query.where(tuple_(jobs.c.created_at_s, jobs.c.id) < before)
    query = query.order_by(jobs.c.created_at_s.desc(), jobs.c.id.desc()).limit(limit)
    return [JobSummary(**row) for row in connection.execute(query).mappings()]


def answered_job(connection: Connection, tenant: str, cache_key: str) -> str | None:
    """The id of the newest job that holds the proved or complete answer to the same question."""
    query = (
        select(jobs.c.id)
        .where(
            jobs.c.tenant == tenant,
            jobs.c.cache_key == cache_key,
            jobs.c.state.in_(["succeeded", "infeasible"]),
        )
        .order_by(jobs.c.finished_at_s.desc())
        .limit(1)
    )
    return connection.execute(query).scalar_one_or_none()


def plans_of(connection: Connection, tenant: str, job_id: str, *, after: int, limit: int) -> Sequence[Any]:
    """Up to ``limit`` plan bodies of a job, by rank, after rank ``after``."""
    query = (
        select(plans.c.body)
        .where(plans.c.tenant == tenant, plans.c.job_id == job_id, plans.c.rank > after)
        .order_by(plans.c.rank)
        .limit(limit)
    )
    return connection.execute(query).scalars().all()


def find_plan(connection: Connection, tenant: str, plan_id: str) -> tuple[str, Mapping[str, Any]] | None:
    """The newest plan of that id and the job it belongs to."""
    if not is_identifier(plan_id):
        return None
    query = (
        select(plans.c.job_id, plans.c.body)
        .join(jobs, jobs.c.id == plans.c.job_id)
        .where(plans.c.tenant == tenant, plans.c.plan_id == plan_id)
        .order_by(jobs.c.finished_at_s.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.job_id, row.body)


def queued_beyond(connection: Connection, tenant: str, limit: int) -> bool:
    """Whether at least ``limit`` jobs of a tenant are queued."""
    query = select(jobs.c.id).where(jobs.c.tenant == tenant, jobs.c.state == "queued")
    query = query.offset(limit - 1).limit(1)
    return connection.execute(query).first() is not None


def wait_for_submits(connection: Connection, tenant: str, limit: int, *, window_s: float) -> float | None:
    """Seconds until fewer than ``limit`` jobs were added in the last ``window_s``; None: now."""
    query = (
        select(jobs.c.created_at_s + window_s - now_s())
        .where(jobs.c.tenant == tenant, jobs.c.created_at_s > now_s() - window_s)
        .order_by(jobs.c.created_at_s.desc())
        .offset(limit - 1)
        .limit(1)
    )
    return connection.execute(query).scalar_one_or_none()


def find_key(connection: Connection, tenant: str, key: str, *, ttl_s: float) -> tuple[str, str] | None:
    """The body hash and the job that an idempotency key stands for, unless it is older than ``ttl_s``."""
    query = select(idempotency_keys.c.body_sha256, idempotency_keys.c.job_id).where(
        idempotency_keys.c.tenant == tenant,
        idempotency_keys.c.key == key,
        idempotency_keys.c.created_at_s > now_s() - ttl_s,
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.body_sha256, row.job_id)


def bind_key(
    connection: Connection, tenant: str, key: str, *, body_sha256: str, job_id: str, ttl_s: float
) -> None:
    """Bind an idempotency key to a job; IntegrityError when another request was faster."""
    old = (
        idempotency_keys.c.tenant == tenant,
        idempotency_keys.c.key == key,
        idempotency_keys.c.created_at_s <= now_s() - ttl_s,
    )
    connection.execute(delete(idempotency_keys).where(*old))
    connection.execute(
        insert(idempotency_keys).values(
            tenant=tenant, key=key, body_sha256=body_sha256, job_id=job_id, created_at_s=now_s()
        )
    )
