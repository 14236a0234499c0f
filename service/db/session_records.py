"""Queries over sessions; they run in the caller's transaction. A session is found by its token's hash."""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from service.db.clock import now_s
from service.db.key_records import KeyRecord, find_key
from service.db.tables import sessions


def insert_session(connection: Connection, token_sha256: str, *, key_id: str, life_s: float) -> None:
    """Add a session of a key, and forget those that have ended."""
    connection.execute(delete(sessions).where(sessions.c.expires_at_s <= now_s()))
    values = {"token_sha256": token_sha256, "key_id": key_id, "expires_at_s": now_s() + life_s}
    connection.execute(insert(sessions).values(values))


def session_key(connection: Connection, token_sha256: str) -> KeyRecord | None:
    """The key that a session which has not ended was begun with."""
    query = select(sessions.c.key_id).where(
        sessions.c.token_sha256 == token_sha256, sessions.c.expires_at_s > now_s()
    )
    key_id = connection.execute(query).scalar_one_or_none()
    found = find_key(connection, key_id) if key_id else None
    return found[0] if found else None


def delete_session(connection: Connection, token_sha256: str) -> None:
    """End a session."""
    connection.execute(delete(sessions).where(sessions.c.token_sha256 == token_sha256))
