"""Queries over CPU seconds of keys and over live workers; they run in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, Table, cast, delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from meshwright.service.db.clock import now_s
from meshwright.service.db.rows import all_of
from meshwright.service.db.tables import api_keys, has_worker, jobs, key_usage, workers

DAY_S = 86_400
LIVE_S = 30.0  # a worker that is silent for longer is not listed
FORGOTTEN_S = 3600.0
KEPT_DAYS = 366  # of CPU seconds: as far back as anybody may ask
NO_KEY = ""  # of jobs that were submitted where no keys are demanded
_OF_JOB = "job_id", "tenant", "claimed_at_s"  # of a worker's record
TODAY = cast(func.floor(now_s() / DAY_S), Integer)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRecord:
    """CPU seconds of one key on one day (UTC); ``day`` counts days since 1970."""

    day: int
    key_id: str
    cpu_s: float
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One live worker; ``job_id`` and ``tenant``: of the job that it has."""

    name: str
    kind: str
    version: str
    started_at_s: float
    seen_at_s: float
    job_id: str | None
    tenant: str | None
    claimed_at_s: float | None


def add_usage(connection: Connection, tenant: str, owner: str | None, *, cpu_s: float, ended: bool) -> None:
    """Add the CPU seconds of a job to its owner's of today, and forget the tenant's days over a year ago.

    Args:
        connection: of the caller's transaction.
        tenant: of the job.
        owner: the id of the key that submitted it, if any.
        cpu_s: CPU seconds to add.
        ended: count it as one job more.
    """
    own = {"tenant": tenant, "day": TODAY, "key_id": owner or NO_KEY}
    added = {"cpu_s": cpu_s, "jobs": int(ended)}
    more = {name: key_usage.c[name] + value for name, value in added.items()}
    _upsert(connection, key_usage, {**own, **added}, more)
    old = key_usage.c.tenant == tenant, key_usage.c.day <= TODAY - KEPT_DAYS
    connection.execute(delete(key_usage).where(*old))


def used_today(connection: Connection, tenant: str, owner: str | None) -> tuple[float, float]:
    """Return the CPU seconds of a key today, and the seconds until tomorrow."""
    own = key_usage.c.tenant == tenant, key_usage.c.key_id == (owner or NO_KEY), key_usage.c.day == TODAY
    used = select(key_usage.c.cpu_s).where(*own).scalar_subquery()
    row = connection.execute(select(func.coalesce(used, 0.0), (TODAY + 1) * DAY_S - now_s())).one()
    return float(row[0]), float(row[1])


def over_quota(connection: Connection, tenant: str, *, most_s: float | None) -> list[str]:
    """Return the keys of a tenant that have used up their CPU seconds of today.

    ``most_s`` is the quota of keys without one of their own; None: they have none.
    """
    quota = func.coalesce(api_keys.c.max_cpu_s_per_day, most_s)
    own = key_usage.c.tenant == tenant, key_usage.c.day == TODAY, key_usage.c.cpu_s >= quota
    keys = key_usage.outerjoin(api_keys, api_keys.c.id == key_usage.c.key_id)
    return list(connection.execute(select(key_usage.c.key_id).select_from(keys).where(*own)).scalars())


def usage_of(
    connection: Connection, tenant: str, *, days: int, limit: int, after: tuple[int, str] | None = None
) -> list[UsageRecord]:
    """Return up to ``limit`` usages of a tenant's keys on the last ``days`` days, after (day, key).

    The newest day comes first, and on a day the last key.
    """
    columns = [key_usage.c[one.name] for one in fields(UsageRecord)]
    place = key_usage.c.day, key_usage.c.key_id
    query = select(*columns).where(*_since(tenant, days)).order_by(*(one.desc() for one in place))
    if after is not None:
        query = query.where(tuple_(*place) < after)
    return all_of(connection, UsageRecord, query.limit(limit))


def total_usage(connection: Connection, tenant: str, *, days: int) -> tuple[float, int]:
    """Return the CPU seconds and ended jobs of a tenant on the last ``days`` days."""
    sums = [func.coalesce(func.sum(key_usage.c[name]), 0) for name in ("cpu_s", "jobs")]
    row = connection.execute(select(*sums).where(*_since(tenant, days))).one()
    return float(row[0]), int(row[1])


def _since(tenant: str, days: int) -> tuple[ColumnElement[bool], ...]:
    return key_usage.c.tenant == tenant, key_usage.c.day > TODAY - days


def note_worker(connection: Connection, name: str, *, kind: str, version: str) -> None:
    """Note that a worker is alive, and forget those that have been silent for an hour."""
    values = {"name": name[:128], "kind": kind, "version": version, "started_at_s": now_s()}
    _upsert(connection, workers, {**values, "seen_at_s": now_s()}, {"seen_at_s": now_s()})
    connection.execute(delete(workers).where(workers.c.seen_at_s < now_s() - FORGOTTEN_S))


def forget_worker(connection: Connection, name: str) -> None:
    """Forget a worker that leaves."""
    connection.execute(delete(workers).where(workers.c.name == name[:128]))


def live_workers(connection: Connection) -> list[WorkerRecord]:
    """Return the workers that are alive, by name, with the job of each."""
    held = select(jobs.c.worker, jobs.c.id, jobs.c.tenant, jobs.c.claimed_at_s).where(has_worker)
    job_of = {worker: dict(zip(_OF_JOB, job, strict=True)) for worker, *job in connection.execute(held)}
    own = [workers.c[name] for name in ("name", "kind", "version", "started_at_s", "seen_at_s")]
    live = select(*own).where(workers.c.seen_at_s > now_s() - LIVE_S).order_by(workers.c.name)
    return [
        WorkerRecord(**row, **job_of.get(row["name"], dict.fromkeys(_OF_JOB)))
        for row in connection.execute(live).mappings()
    ]


def _upsert(
    connection: Connection, table: Table, values: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    added = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(table).values(values)
    connection.execute(added.on_conflict_do_update(index_elements=list(table.primary_key), set_=changes))
