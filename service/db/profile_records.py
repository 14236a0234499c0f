"""Queries over stored profiles and measurements; they run in the caller's transaction.

The tenant is in every WHERE but one: a worker reads the profile that an accepted job names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from meshwright.service.db.clock import now_s
from meshwright.service.db.records import is_identifier
from meshwright.service.db.rows import all_of, newest_first, one_of
from meshwright.service.db.tables import measurements, profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRecord:
    """One row of ``profiles`` without its document."""

    id: str
    kind: str
    gpu: str | None
    title: str
    created_at_s: float
    scope: str | None  # cluster and framework of its measurements; None: a client sent it
    version: int | None  # 1, 2, … of its scope


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementRecord:
    """One row of ``measurements``."""

    id: str
    plan_id: str
    scope: str
    request: Mapping[str, Any]
    config: Mapping[str, Any]
    body: Mapping[str, Any]
    profile_id: str
    idempotency_key: str | None
    created_at_s: float


_PROFILE = tuple(profiles.c[name] for name in ProfileRecord.__slots__)
_MEASUREMENT = tuple(measurements.c[name] for name in MeasurementRecord.__slots__)
_LATEST = (
    select(*_PROFILE)
    .where(profiles.c.tenant == bindparam("asker"), profiles.c.scope == bindparam("asked"))
    .order_by(profiles.c.version.desc())
    .limit(1)
)


def find_profile(connection: Connection, tenant: str, profile_id: str) -> ProfileRecord | None:
    """Return one profile of this tenant."""
    if not is_identifier(profile_id):
        return None
    return one_of(
        connection,
        ProfileRecord,
        select(*_PROFILE).where(profiles.c.tenant == tenant, profiles.c.id == profile_id),
    )


def document_of(connection: Connection, profile_id: str) -> Mapping[str, Any] | None:
    """Return the document of a profile; its id names its content, so any tenant gets the same."""
    if not is_identifier(profile_id):
        return None
    return connection.execute(
        select(profiles.c.document).where(profiles.c.id == profile_id).limit(1)
    ).scalar_one_or_none()


def version_of(connection: Connection, profile_id: str) -> int | None:
    """Return which version of its cluster's calibration a profile is; None: it is none of those."""
    query = select(profiles.c.version).where(profiles.c.id == profile_id).limit(1)
    return connection.execute(query).scalar_one_or_none() if is_identifier(profile_id) else None


def newest_profiles(
    connection: Connection, tenant: str, *, limit: int, before: tuple[float, str] | None
) -> list[ProfileRecord]:
    """Return up to ``limit`` profiles, newest first, after the position ``before`` (created_at_s, id)."""
    query = select(*_PROFILE).where(profiles.c.tenant == tenant)
    return all_of(connection, ProfileRecord, newest_first(query, profiles, before=before, limit=limit))


def latest_calibration(
    connection: Connection, tenant: str, scopes: Collection[str]
) -> ProfileRecord | None:
    """Return the calibration that the newest measurement of some scopes led to."""
    found = []
    for scope in scopes:  # the versions of a scope follow each other in time
        newest = one_of(connection, ProfileRecord, _LATEST, {"asker": tenant, "asked": scope})
        found += [] if newest is None else [newest]
    return max(found, key=lambda one: (one.created_at_s, one.version or 0), default=None)


def next_version(connection: Connection, tenant: str, scope: str) -> int:
    """Return the version that the next calibration of a scope gets."""
    last = select(func.max(profiles.c.version)).where(
        profiles.c.tenant == tenant, profiles.c.scope == scope
    )
    return (connection.execute(last).scalar_one() or 0) + 1


def is_full(connection: Connection, tenant: str, most: int) -> bool:
    """Return whether a tenant has ``most`` profiles."""
    last = select(profiles.c.id).where(profiles.c.tenant == tenant).order_by(profiles.c.created_at_s)
    return connection.execute(last.limit(1).offset(most - 1)).first() is not None


def insert_profile(
    connection: Connection, tenant: str, profile_id: str, *, document: Mapping[str, object], **facts: object
) -> None:
    """Add a profile; IntegrityError when it is there."""
    connection.execute(
        insert(profiles).values(
            tenant=tenant, id=profile_id, document=document, created_at_s=now_s(), **facts
        )
    )


def delete_profile(connection: Connection, tenant: str, profile_id: str) -> bool:
    """Delete a profile; False: there is none."""
    if not is_identifier(profile_id):
        return False
    gone = delete(profiles).where(profiles.c.tenant == tenant, profiles.c.id == profile_id)
    return connection.execute(gone).rowcount == 1


def find_measurement(connection: Connection, tenant: str, key: str) -> MeasurementRecord | None:
    """Return the measurement of an idempotency key."""
    return one_of(
        connection,
        MeasurementRecord,
        select(*_MEASUREMENT).where(measurements.c.tenant == tenant, measurements.c.idempotency_key == key),
    )


def newest_measurements(
    connection: Connection, tenant: str, scope: str, *, limit: int, until_s: float = inf
) -> list[MeasurementRecord]:
    """Return up to ``limit`` measurements of a cluster and framework until a time, newest first."""
    query = select(*_MEASUREMENT).where(
        measurements.c.tenant == tenant,
        measurements.c.scope == scope,
        measurements.c.created_at_s <= until_s,
    )
    query = query.order_by(measurements.c.created_at_s.desc(), measurements.c.id.desc()).limit(limit)
    return all_of(connection, MeasurementRecord, query)


def runs_behind(connection: Connection, profile_id: str, *, limit: int) -> list[MeasurementRecord]:
    """Return up to ``limit`` measurements that a calibration learnt from, newest first; or none."""
    query = select(profiles.c.tenant, *_MEASUREMENT).where(
        profiles.c.id == profile_id,
        measurements.c.tenant == profiles.c.tenant,
        measurements.c.scope == profiles.c.scope,
        measurements.c.profile_id == profile_id,
    )
    own = connection.execute(query.limit(1)).one_or_none()
    if own is None:
        return []
    return newest_measurements(connection, own.tenant, own.scope, limit=limit, until_s=own.created_at_s)


def insert_measurement(connection: Connection, tenant: str, measurement_id: str, **values: object) -> None:
    """Add a measurement; IntegrityError when another request bound the same key."""
    connection.execute(
        insert(measurements).values(id=measurement_id, tenant=tenant, created_at_s=now_s(), **values)
    )
