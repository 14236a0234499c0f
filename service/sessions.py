"""Sessions: what a browser holds instead of a key. Kept as a hash, ended by signing out or with the key.

The token is 32 random bytes, like a key's secret; plain SHA-256 is enough for the same reason.
"""

from __future__ import annotations

import re
import secrets

from service.db.database import Database
from service.db.session_records import delete_session, insert_session
from service.keys import SECRET_BYTES, hash_of

LIFE_S = 43_200.0  # half a day: people sign in each morning
_TOKEN = re.compile(r"ms_[A-Za-z0-9_-]{43}")


def is_session(token: str) -> bool:
    """Whether a token has the shape of a session's."""
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
