"""Requests that are safe to repeat: what an Idempotency-Key stands for.

The key is bound in the transaction of what the request makes, so that neither is there without the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from service.db import idempotency_records as records
from service.errors import IdempotencyConflictError

Made = TypeVar("Made")
TTL_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeatable:
    """What a request asks for, by digest, and the key that marks its repetitions."""

    key: str | None = None
    digest: str = ""
    ttl_s: float = TTL_S  # then the key is free again


ONCE = Repeatable()  # a request without a key


def digest_of(*parts: object) -> str:
    """SHA-256, in hex, of JSON values whatever the order of their keys and their white space."""
    whole = parts[0] if len(parts) == 1 else parts
    return hashlib.sha256(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def made_before(connection: Connection, tenant: str, request: Repeatable) -> str | None:
    """The id of what an earlier request with this key made; None: there was none.

    Raises:
        IdempotencyConflictError: that request asked for something else.
    """
    if request.key is None:
        return None
    found = records.find_key(connection, tenant, request.key, ttl_s=request.ttl_s)
    if found is None:
        return None
    if found[0] != request.digest:
        raise IdempotencyConflictError("this idempotency key was used with another body")
    return found[1]


def remember(
    connection: Connection,
    tenant: str,
    request: Repeatable,
    *,
    subject: str | None = None,
    job_id: str | None = None,
) -> None:
    """Bind the key to the id of what was made, a job's or any other; IntegrityError: it is bound."""
    if request.key is not None:
        records.bind_key(
            connection,
            tenant,
            request.key,
            body_sha256=request.digest,
            job_id=job_id,
            subject=subject,
            ttl_s=request.ttl_s,
        )


def settled(attempt: Callable[[], Made]) -> Made:
    """What ``attempt`` makes, or finds made when another request did it at the same time."""
    try:
        return attempt()
    except IntegrityError:
        return attempt()
