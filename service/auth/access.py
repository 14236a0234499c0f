"""Who is calling: the tenant and scope of a key or session; where there never was a key, the local user.

A database that has, or ever had, a key demands one of every caller. What was looked up counts for
``REMEMBER_S``: a key that another process revokes, or that expires, is refused at most that much later.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from dataclasses import dataclass

from meshwright.service.auth.keys import DEFAULT_TENANT, SCOPES, SECRET_BYTES, hash_of, id_of
from meshwright.service.db import key_records
from meshwright.service.db.database import Database
from meshwright.service.db.key_records import KeyRecord, delete_session, insert_session, session_key
from meshwright.service.errors import ForbiddenError, UnauthorizedError

# --------------------------------------------------------------------------------------------------
# Sessions: what a browser holds instead of a key. Kept as a hash, ended by signing out or with the key.
#
# The token is 32 random bytes, like a key's secret; plain SHA-256 is enough for the same reason.


LIFE_S = 43_200.0  # half a day: people sign in each morning
_TOKEN = re.compile(r"ms_[A-Za-z0-9_-]{43}")


def is_session(token: str) -> bool:
    """Return whether a token has the shape of a session's."""
    return _TOKEN.fullmatch(token) is not None


def begin_session(database: Database, key_id: str) -> str:
    """Begin a session of a key that is usable; its token, which is not kept."""
    token = f"ms_{secrets.token_urlsafe(SECRET_BYTES)}"
    with database.write() as connection:
        insert_session(connection, hash_of(token), key_id=key_id, life_s=LIFE_S)
    return token


def end_session(database: Database, token: str) -> None:
    """End a session for good."""
    with database.write() as connection:
        delete_session(connection, hash_of(token))


REMEMBER_S = 1.0
MAX_REMEMBERED = 4096
_NO_HASH = hash_of("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One caller; ``key_id`` is None where no keys are demanded."""

    tenant: str
    scope: str
    key_id: str | None
    max_cpu_s_per_day: float | None = None  # None: as the settings state

    @property
    def actor(self) -> str:
        """Return the caller's name in the audit trail."""
        return self.key_id or "local user"

    def require(self, scope: str) -> None:
        """Refuse a caller without the scope ``scope``.

        Raises:
            ForbiddenError: it does not.
        """
        if SCOPES.index(self.scope) < SCOPES.index(scope):
            raise ForbiddenError(f"this needs a key with the scope {scope}")


def _caller_of(key: KeyRecord) -> Caller:
    return Caller(
        tenant=key.tenant, scope=key.scope, key_id=key.id, max_cpu_s_per_day=key.max_cpu_s_per_day
    )


LOCAL_USER = Caller(tenant=DEFAULT_TENANT, scope="admin", key_id=None)


class Access:
    """Knows the keys of one database; safe to share between threads."""

    def __init__(self, database: Database, *, closed: bool = False) -> None:
        self._database = database
        self._known: dict[str, tuple[Caller, float]] = {}
        self._has_keys = closed  # people sign in here, or there is a key; never goes back to False
        self._look_again_at = 0.0

    def remembered(self, token: str | None) -> Caller | None:
        """Return the caller without asking the database; None: ask it."""
        now = time.monotonic()
        if token is None:
            return None if self._has_keys or now >= self._look_again_at else LOCAL_USER
        caller, good_until = self._known.get(hash_of(token), (None, 0.0))
        return caller if now < good_until else None

    def identify(self, token: str | None) -> Caller:
        """Return the caller of a key's or a session's token, or of a request without one.

        Raises:
            UnauthorizedError: keys are demanded, and this is none, or one that is revoked or expired.
        """
        if token is not None and not self._has_keys:
            self._look_again_at = 0.0  # it may be the first one, made a moment ago
        if not self.demands_keys():
            return LOCAL_USER
        if token is None:
            raise UnauthorizedError(
                "send a key: Authorization: Bearer mw_..., which commands take from MESHWRIGHT_KEY"
            )
        caller = self._lookup(token)
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[hash_of(token)] = (caller, time.monotonic() + REMEMBER_S)
        return caller

    @property
    def has_keys(self) -> bool:
        """Return the last result of ``demands_keys``, without a query to the database."""
        return self._has_keys

    def demands_keys(self) -> bool:
        """Return whether this database has, or ever had, a key."""
        now = time.monotonic()
        if not self._has_keys and now >= self._look_again_at:
            with self._database.read() as connection:
                self._has_keys = key_records.any_key(connection)
            self._look_again_at = now + REMEMBER_S
        return self._has_keys

    def forget(self) -> None:
        """Ask the database again: a key was made or revoked here."""
        self._known.clear()
        self._look_again_at = 0.0

    def _lookup(self, token: str) -> Caller:
        """Return the caller of a usable key; hashes are compared in constant time, even for unknown ids."""
        if is_session(token):
            return self._of_session(token)
        key_id = id_of(token)
        with self._database.read() as connection:
            found = key_records.find_key(connection, key_id) if key_id else None
        key, stored = found or (None, _NO_HASH)
        same = hmac.compare_digest(stored, hash_of(token))
        if key is None or not same or not key.usable:
            raise UnauthorizedError("this key is unknown, revoked or expired")
        return _caller_of(key)

    def _of_session(self, token: str) -> Caller:
        """Return the caller of a session: its key must still be usable."""
        with self._database.read() as connection:
            key = session_key(connection, hash_of(token))
        if key is None or not key.usable:
            raise UnauthorizedError("the session has ended: sign in again")
        return _caller_of(key)
