"""Queries over idempotency keys; they run in the caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, insert, select

from service.db.clock import now_s
from service.db.tables import idempotency_keys


def find_key(connection: Connection, tenant: str, key: str, *, ttl_s: float) -> tuple[str, str] | None:
    """The digest and the id that an idempotency key stands for, unless it is older than ``ttl_s``."""
    made = func.coalesce(idempotency_keys.c.job_id, idempotency_keys.c.subject).label("made")
    query = select(idempotency_keys.c.body_sha256, made).where(
        idempotency_keys.c.tenant == tenant,
        idempotency_keys.c.key == key,
        idempotency_keys.c.created_at_s > now_s() - ttl_s,
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else (row.body_sha256, row.made)


def bind_key(
    connection: Connection,
    tenant: str,
    key: str,
    *,
    body_sha256: str,
    job_id: str | None = None,
    subject: str | None = None,
    ttl_s: float,
) -> None:
    """Bind an idempotency key to a job or to anything else; IntegrityError when it is bound."""
    old = (
        idempotency_keys.c.tenant == tenant,
        idempotency_keys.c.key == key,
        idempotency_keys.c.created_at_s <= now_s() - ttl_s,
    )
    connection.execute(delete(idempotency_keys).where(*old))
    values = {
        "tenant": tenant,
        "key": key,
        "body_sha256": body_sha256,
        "job_id": job_id,
        "subject": subject,
    }
    connection.execute(insert(idempotency_keys).values(created_at_s=now_s(), **values))
