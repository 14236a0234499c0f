"""Queries over API keys and the audit trail; they run in the caller's transaction.

A key is found by its public id for any caller, because the key identifies the caller's tenant.
"""

from __future__ import annotations

import secrets as random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, case, delete, insert, literal, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from meshwright.service.db.clock import now_s
from meshwright.service.db.rows import all_of, newest_first
from meshwright.service.db.tables import api_keys, audit, secrets, sessions, share_links

MAX_SESSIONS = 100  # of one key at once


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One row of ``api_keys`` without its secret's hash; ``usable``: neither revoked nor expired."""

    id: str
    tenant: str
    scope: str
    title: str
    created_at_s: float
    expires_at_s: float | None
    revoked_at_s: float | None
    max_cpu_s_per_day: float | None  # None: as the settings state
    usable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One row of ``audit``: who did what to which thing."""

    id: int
    at_s: float
    actor: str
    action: str
    subject: str
    details: Mapping[str, Any]


_USABLE = case(
    (
        and_(
            api_keys.c.revoked_at_s.is_(None),
            or_(api_keys.c.expires_at_s.is_(None), api_keys.c.expires_at_s > now_s()),
        ),
        literal(True),
    ),
    else_=literal(False),
).label("usable")
_KEY = (*(api_keys.c[name] for name in KeyRecord.__slots__ if name != "usable"), _USABLE)
_AUDIT = tuple(audit.c[name] for name in AuditRecord.__slots__)


def any_key(connection: Connection) -> bool:
    """Return whether this database has, or ever had, a key."""
    return connection.execute(select(api_keys.c.id).limit(1)).first() is not None


def find_key(connection: Connection, key_id: str) -> tuple[KeyRecord, str] | None:
    """Return a key by its public id, and the hash of its secret."""
    query = select(*_KEY, api_keys.c.secret_sha256).where(api_keys.c.id == key_id)
    row = connection.execute(query).mappings().one_or_none()
    if row is None:
        return None
    values = dict(row)
    secret_sha256 = values.pop("secret_sha256")
    return KeyRecord(**values), secret_sha256


def newest_keys(
    connection: Connection, tenant: str | None, *, limit: int, before: tuple[float, str] | None = None
) -> list[KeyRecord]:
    """Return up to ``limit`` keys, newest first, of one tenant, or of all (``None``: the operator)."""
    query = select(*_KEY)
    if tenant is not None:
        query = query.where(api_keys.c.tenant == tenant)
    return all_of(connection, KeyRecord, newest_first(query, api_keys, before=before, limit=limit))


def insert_key(connection: Connection, *, expires_in_s: float | None, **values: object) -> None:
    """Add a key."""
    connection.execute(
        insert(api_keys).values(
            created_at_s=now_s(),
            expires_at_s=None if expires_in_s is None else now_s() + expires_in_s,
            **values,
        )
    )


def revoke_key(connection: Connection, tenant: str | None, key_id: str) -> str | None:
    """Revoke a key for good and return its tenant; None if there is no such key (of this tenant)."""
    mine = [api_keys.c.id == key_id, *([] if tenant is None else [api_keys.c.tenant == tenant])]
    first = case((api_keys.c.revoked_at_s.is_(None), now_s()), else_=api_keys.c.revoked_at_s)
    return connection.execute(
        update(api_keys).where(*mine).values(revoked_at_s=first).returning(api_keys.c.tenant)
    ).scalar_one_or_none()


def revoked_since(connection: Connection, since_s: float) -> list[str]:
    """Return the keys that were revoked at or after a moment."""
    query = select(api_keys.c.id).where(api_keys.c.revoked_at_s >= since_s)
    return list(connection.execute(query).scalars())


def links_there(connection: Connection) -> list[str]:
    """Return the ids of all links to answers; a revoked one has no row."""
    return list(connection.execute(select(share_links.c.id)).scalars())


def revoke_before(
    connection: Connection, before_s: float, *, only: Collection[str] | None, kept: Collection[str]
) -> list[tuple[str, str]]:
    """Revoke the usable keys that were made before a moment; return their tenants and ids.

    ``only`` these, if they are given, and none of ``kept``.
    """
    mine = [
        api_keys.c.created_at_s < before_s,
        api_keys.c.revoked_at_s.is_(None),
        api_keys.c.id.not_in(kept),
    ]
    if only is not None:
        mine.append(api_keys.c.id.in_(only))
    ended = update(api_keys).where(*mine).values(revoked_at_s=now_s())
    rows = connection.execute(ended.returning(api_keys.c.tenant, api_keys.c.id)).all()
    return [(row.tenant, row.id) for row in rows]


def end_links_before(connection: Connection, before_s: float, *, kept: Collection[str]) -> int:
    """End the links that were made before a moment, but for those that are kept; return how many."""
    gone = delete(share_links).where(share_links.c.created_at_s < before_s, share_links.c.id.not_in(kept))
    return connection.execute(gone).rowcount


def delete_links(connection: Connection, key_id: str) -> list[str]:
    """End the links to answers that a key made; return their ids."""
    gone = delete(share_links).where(share_links.c.key_id == key_id)
    return list(connection.execute(gone.returning(share_links.c.id)).scalars())


def note(
    connection: Connection, tenant: str, *, actor: str, action: str, subject: str, **details: object
) -> None:
    """Add a row to the audit trail, in the transaction of the change that it records."""
    connection.execute(
        insert(audit).values(
            tenant=tenant, at_s=now_s(), actor=actor, action=action, subject=subject, details=details
        )
    )


def newest_audit(
    connection: Connection, tenant: str, *, limit: int, before: int | None
) -> list[AuditRecord]:
    """Return up to ``limit`` rows of the audit trail, newest first, before the row ``before``."""
    query = select(*_AUDIT).where(audit.c.tenant == tenant)
    if before is not None:
        query = query.where(audit.c.id < before)
    return all_of(connection, AuditRecord, query.order_by(audit.c.id.desc()).limit(limit))


# --------------------------------------------------------------------------------------------------
# Queries over sessions; they run in the caller's transaction. A session is found by its token's hash.


def insert_session(connection: Connection, token_sha256: str, *, key_id: str, life_s: float) -> None:
    """Add a session of a key, and forget those that have ended, and the oldest beyond ``MAX_SESSIONS``."""
    connection.execute(delete(sessions).where(sessions.c.expires_at_s <= now_s()))
    own = sessions.c.key_id == key_id
    newest = select(sessions.c.token_sha256).where(own).order_by(sessions.c.expires_at_s.desc())
    oldest = newest.limit(MAX_SESSIONS).offset(MAX_SESSIONS - 1)
    connection.execute(delete(sessions).where(sessions.c.token_sha256.in_(oldest)))
    values = {"token_sha256": token_sha256, "key_id": key_id, "expires_at_s": now_s() + life_s}
    connection.execute(insert(sessions).values(values))


def session_key(connection: Connection, token_sha256: str) -> KeyRecord | None:
    """Return the key that a session which has not ended was begun with."""
    query = select(sessions.c.key_id).where(
        sessions.c.token_sha256 == token_sha256, sessions.c.expires_at_s > now_s()
    )
    key_id = connection.execute(query).scalar_one_or_none()
    found = find_key(connection, key_id) if key_id else None
    return found[0] if found else None


def delete_session(connection: Connection, token_sha256: str) -> None:
    """End a session."""
    connection.execute(delete(sessions).where(sessions.c.token_sha256 == token_sha256))


def secret_of(connection: Connection, name: str) -> str:
    """Return the secret of that name, which all processes of a service share; made when first asked for."""
    insert_of = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    made = insert_of(secrets).values(name=name, value=random.token_hex(32))
    connection.execute(made.on_conflict_do_nothing())
    return str(connection.execute(select(secrets.c.value).where(secrets.c.name == name)).scalar_one())
