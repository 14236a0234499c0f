"""Requests that are safe to repeat: idempotency keys.

The key is bound in the transaction of what the request makes, so that neither is there without the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from meshwright.service.db.clock import now_s
from meshwright.service.db.tables import idempotency_keys
from meshwright.service.errors import IdempotencyConflictError

Made = TypeVar("Made")
TTL_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeatable:
    """The content of a request, by digest, and the key that marks its repetitions."""

    key: str | None = None
    digest: str = ""
    ttl_s: float = TTL_S  # then the key is free again


ONCE = Repeatable()  # a request without a key


def digest_of(*parts: object) -> str:
    """Return SHA-256, in hex, of JSON values whatever the order of their keys and their white space."""
    whole = parts[0] if len(parts) == 1 else parts
    return hashlib.sha256(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def made_before(connection: Connection, tenant: str, request: Repeatable) -> str | None:
    """Return the id of what an earlier request with this key made; None: there was none.

    Raises:
        IdempotencyConflictError: that request asked for something else.
    """
    if request.key is None:
        return None
    keys = idempotency_keys.c
    query = select(keys.body_sha256, func.coalesce(keys.job_id, keys.subject).label("made"))
    found = connection.execute(
        query.where(*_is(tenant, request.key), keys.created_at_s > now_s() - request.ttl_s)
    ).one_or_none()
    if found is None:
        return None
    if found.body_sha256 != request.digest:
        raise IdempotencyConflictError("this idempotency key was used with another body")
    made: str = found.made
    return made


def remember(
    connection: Connection,
    tenant: str,
    request: Repeatable,
    *,
    subject: str | None = None,
    job_id: str | None = None,
) -> None:
    """Bind the key to the id of what was made, a job's or any other; IntegrityError: it is bound."""
    if request.key is None:
        return
    old = idempotency_keys.c.created_at_s <= now_s() - request.ttl_s
    connection.execute(delete(idempotency_keys).where(*_is(tenant, request.key), old))
    values = {"body_sha256": request.digest, "job_id": job_id, "subject": subject}
    connection.execute(
        insert(idempotency_keys).values(tenant=tenant, key=request.key, created_at_s=now_s(), **values)
    )


def _is(tenant: str, key: str) -> tuple[ColumnElement[bool], ...]:
    return idempotency_keys.c.tenant == tenant, idempotency_keys.c.key == key


def settled(attempt: Callable[[], Made]) -> Made:
    """Return the result of ``attempt``, or that of another request that made it at the same time."""
    try:
        return attempt()
    except IntegrityError:
        return attempt()
