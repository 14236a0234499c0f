"""API keys: made once, shown once, stored as a hash; and every such act in the audit trail.

A token is ``mw_<id>_<secret>``: the id finds the row, the secret is 32 random bytes. Plain SHA-256 is
enough for it: slow, salted hashes protect secrets that people think up, and 2**256 of these cannot be
tried.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from math import inf

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.service.db import key_records as records
from meshwright.service.db.database import Database
from meshwright.service.db.key_records import AuditRecord, KeyRecord
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs.idempotency import ONCE, Repeatable, made_before, remember, settled
from meshwright.service.jobs.pagination import Page, decode_token, page_of

SCOPES = ("read", "submit", "admin")  # each includes those before it
DEFAULT_TENANT = "default"  # without keys everybody on this machine is the same tenant
SECRET_BYTES = 32
MAX_TITLE = 200
MAX_LIFE_DAYS = 3650.0
DAY_S = 86_400.0
TENANT = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_TITLE = re.compile(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{0,{MAX_TITLE}}}")
_TOKEN = re.compile(r"mw_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """The definition of a key to be made."""

    tenant: str
    scope: str = "submit"
    title: str = ""
    expires_in_days: float | None = None
    max_cpu_s_per_day: float | None = None  # of its searches; None: as the settings state

    def __post_init__(self) -> None:
        """Refuse what no key can be, all faults together.

        Raises:
            InvalidProblemError: with a pointer for every faulty field.
        """
        days, cpu_s = self.expires_in_days, self.max_cpu_s_per_day
        faults = {
            "/tenant": None if TENANT.fullmatch(self.tenant) else "a to z, 0 to 9 and . _ -, 64 at most",
            "/scope": None if self.scope in SCOPES else ", ".join(SCOPES),
            "/title": None if _TITLE.fullmatch(self.title) else f"{MAX_TITLE} characters of plain text",
            "/max_cpu_s_per_day": None if cpu_s is None or 0 < cpu_s < inf else "more than 0 s",
            "/expires_in_days": None if days is None or 0 < days <= MAX_LIFE_DAYS else "0 to 3650 days",
        }
        found = [
            FieldError(pointer=pointer, message="is not usable", allowed=allowed)
            for pointer, allowed in faults.items()
            if allowed
        ]
        if found:
            raise InvalidProblemError(found)


class Keys:
    """The use cases of keys; ``actor`` is who does it: the id of a key, or ``command line``."""

    def __init__(self, database: Database, *, actor: str) -> None:
        self._database = database
        self._actor = actor

    def create(self, new: NewKey) -> tuple[KeyRecord, str]:
        """Make a key; its token is known now and never again."""
        record, token = self.create_once(new, ONCE)
        if token is None:
            raise NotFoundError("the key was deleted while it was stored")
        return record, token

    def create_once(self, new: NewKey, repeatable: Repeatable) -> tuple[KeyRecord, str | None]:
        """Make a key, or find the one that this request has made before, without its token.

        Raises:
            IdempotencyConflictError: the idempotency key was used for something else.
        """
        return settled(lambda: self._create(new, repeatable))

    def _create(self, new: NewKey, repeatable: Repeatable) -> tuple[KeyRecord, str | None]:
        key_id, secret = secrets.token_hex(6), secrets.token_urlsafe(SECRET_BYTES)
        token = f"mw_{key_id}_{secret}"
        life_s = None if new.expires_in_days is None else new.expires_in_days * DAY_S
        with self._database.write() as connection:
            made = made_before(connection, new.tenant, repeatable)
            earlier = records.find_key(connection, made) if made else None
            if earlier is not None:
                return earlier[0], None
            records.insert_key(
                connection,
                id=key_id,
                tenant=new.tenant,
                scope=new.scope,
                title=new.title,
                secret_sha256=hash_of(token),
                expires_in_s=life_s,
                max_cpu_s_per_day=new.max_cpu_s_per_day,
            )
            records.note(
                connection,
                new.tenant,
                actor=self._actor,
                action="key.create",
                subject=key_id,
                scope=new.scope,
                title=new.title,
            )
            remember(connection, new.tenant, repeatable, subject=key_id)
            found = records.find_key(connection, key_id)
        if found is None:
            raise NotFoundError("the key was deleted while it was stored")
        return found[0], token

    def revoke(self, key_id: str, *, tenant: str | None = None, with_links: bool = False) -> int:
        """End a key for good; doing it again changes nothing. ``tenant`` None: of any tenant.

        ``with_links``: end the links to answers that it made too. Return how many these were.

        Raises:
            NotFoundError: there is no such key.
        """
        with self._database.write() as connection:
            owner = records.revoke_key(connection, tenant, key_id[:16]) if key_id.isalnum() else None
            if owner is None:
                raise NotFoundError("there is no such key")
            links = records.delete_links(connection, key_id) if with_links else []
            ended = {"links": len(links)} if with_links else {}
            records.note(connection, owner, actor=self._actor, action="key.revoke", subject=key_id, **ended)
        return len(links)

    def revoke_since(
        self, since_s: float, *, seen_in: Database | None = None, keep: Collection[str] = ()
    ) -> tuple[int, int]:
        """End keys and links that a restored backup may have brought back; return how many of each.

        Args:
            since_s: when the backup was made.
            seen_in: the database before the restore, which knows what was revoked since; None: all keys
                and links of the backup end.
            keep: keys that stay.
        """
        only = links = None
        if seen_in is not None:
            with seen_in.read() as connection:
                only, links = records.revoked_since(connection, since_s), records.links_there(connection)
        with self._database.write() as connection:
            ended = records.revoke_before(connection, since_s, only=only, kept=list(keep))
            for tenant, key_id in ended:
                records.note(
                    connection, tenant, actor=self._actor, action="key.revoke", subject=key_id,
                    since_s=since_s,
                )  # fmt: skip
            num_links = records.end_links_before(connection, since_s, kept=links or [])
        return len(ended), num_links

    def page(self, tenant: str | None, *, page_size: int, page_token: str | None = None) -> Page[KeyRecord]:
        """Keys, newest first.

        Raises:
            BadPageTokenError: the token is not one of ours.
        """
        before = decode_token(page_token, float, str) if page_token else None
        with self._database.read() as connection:
            found = records.newest_keys(connection, tenant, limit=page_size + 1, before=before)
        return page_of(found, page_size, lambda one: (one.created_at_s, one.id))

    def trail(self, tenant: str, *, page_size: int, page_token: str | None = None) -> Page[AuditRecord]:
        """Return the actions of administrators, newest first.

        Raises:
            BadPageTokenError: the token is not one of ours.
        """
        before = decode_token(page_token, int)[0] if page_token else None
        with self._database.read() as connection:
            found = records.newest_audit(connection, tenant, limit=page_size + 1, before=before)
        return page_of(found, page_size, lambda one: (one.id,))


def hash_of(token: str) -> str:
    """Return the stored hash of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def id_of(token: str) -> str | None:
    """Return the public id in a token; None: the token is not one of ours."""
    match = _TOKEN.fullmatch(token)
    return match.group(1) if match else None
