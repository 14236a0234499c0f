"""Queries over read-only links to answers; they run in the caller's transaction.

A link is found by its public id for any caller, because the link identifies its tenant and job.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from sqlalchemy import Connection, delete, func, insert, select

from meshwright.service.db.clock import now_s
from meshwright.service.db.rows import all_of, one_of
from meshwright.service.db.tables import share_links

MAX_LINKS = 100  # of one job at once


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRecord:
    """One row of ``share_links`` without its secret's hash."""

    id: str
    tenant: str
    job_id: str
    key_id: str | None  # that made it; None: no keys are demanded
    created_at_s: float
    expires_at_s: float


_RECORD = tuple(share_links.c[one.name] for one in fields(ShareRecord))


def insert_link(connection: Connection, *, life_s: float, **values: object) -> None:
    """Add a link, and forget the expired links of its job."""
    expired = share_links.c.expires_at_s <= now_s()
    connection.execute(delete(share_links).where(share_links.c.job_id == values["job_id"], expired))
    moments = {"created_at_s": now_s(), "expires_at_s": now_s() + life_s}
    connection.execute(insert(share_links).values(**values, **moments))


def count_links(connection: Connection, job_id: str) -> int:
    """Return how many links a job has that have not expired."""
    query = select(func.count()).where(share_links.c.job_id == job_id, share_links.c.expires_at_s > now_s())
    return connection.execute(query).scalar_one()


def links_of(connection: Connection, tenant: str, job_id: str) -> list[ShareRecord]:
    """Return the links of a job that have not expired, newest first."""
    query = select(*_RECORD).where(
        share_links.c.job_id == job_id,
        share_links.c.tenant == tenant,
        share_links.c.expires_at_s > now_s(),
    )
    newest = (share_links.c.created_at_s.desc(), share_links.c.id.desc())
    return all_of(connection, ShareRecord, query.order_by(*newest).limit(MAX_LINKS))


def find_link(connection: Connection, link_id: str) -> tuple[ShareRecord, str] | None:
    """Return a link that has not expired by its public id, and the hash of its secret."""
    own = share_links.c.id == link_id, share_links.c.expires_at_s > now_s()
    found = one_of(connection, ShareRecord, select(*_RECORD).where(*own))
    if found is None:
        return None
    return found, connection.execute(select(share_links.c.secret_sha256).where(*own)).scalar_one()


def delete_link(connection: Connection, tenant: str, job_id: str, link_id: str) -> bool:
    """Revoke a link of a job; False: it has no such link."""
    own = share_links.c.id == link_id, share_links.c.job_id == job_id, share_links.c.tenant == tenant
    return bool(connection.execute(delete(share_links).where(*own)).rowcount)
