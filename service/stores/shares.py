"""Read-only links to answers: made once, shown once, stored as a hash, ended by revocation or with time.

A token is ``ml_<id>_<secret>``, as a key's: the id finds the row, the secret is 32 random bytes, for
which plain SHA-256 is enough.
"""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, fields

from sqlalchemy import Connection, delete, func, insert, select

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.auth.keys import DAY_S, SECRET_BYTES, hash_of
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.key_records import note
from meshwright.service.db.records import required_job
from meshwright.service.db.rows import added_to, all_of, newest_first, one_of
from meshwright.service.db.tables import share_links
from meshwright.service.errors import ConflictError, NotFoundError
from meshwright.service.jobs.idempotency import Repeatable, made_before, remember, settled
from meshwright.service.jobs.pagination import Page, decode_token, page_of
from meshwright.service.jobs.states import FLEET
from meshwright.service.requests.fields import POST_TRAINING

DEFAULT_LIFE_DAYS = 3.0  # from a Friday to the Monday after it: shorter, and people make it longer
MAX_LIFE_DAYS = 365.0
MAX_LINKS = 100  # of one job at once
_TOKEN = re.compile(r"ml_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_NO_HASH = hash_of("")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRecord:
    """One row of ``share_links`` without its secret's hash."""

    id: str
    tenant: str
    job_id: str
    key_id: str | None  # that made it; None: no keys are demanded
    created_at_s: float
    expires_at_s: float


_LINK = share_links.c
_RECORD = tuple(_LINK[one.name] for one in fields(ShareRecord))
_WORKS = _LINK.expires_at_s > now_s()


class ShareLinks:
    """The use cases of links to answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, tenant: str, job_id: str, *, days: float, key_id: str | None, repeatable: Repeatable
    ) -> tuple[ShareRecord, str | None]:
        """Make a link, or find the one that this request has made before, without its token.

        Args:
            tenant: of the job.
            job_id: the job with the answer.
            days: the life of the link.
            key_id: of the caller; None: no keys are demanded.
            repeatable: the request under its idempotency key.

        Raises:
            InvalidProblemError: no link lives that long.
            NotFoundError: this tenant has no such job.
            ConflictError: the job has no answer of its own to show, or as many links as it may have.
            IdempotencyConflictError: the idempotency key was used for something else.
        """
        if not 0 < days <= MAX_LIFE_DAYS:
            raise InvalidProblemError.of(
                "/expires_in_days", f"is {days:g}", allowed=f"more than 0, at most {MAX_LIFE_DAYS:g} days"
            )

        def make() -> tuple[ShareRecord, str | None]:
            link_id = secrets.token_hex(6)
            token = f"ml_{link_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
            with self._database.write() as connection:
                job = required_job(connection, tenant, job_id)
                made = made_before(connection, tenant, repeatable)
                earlier = _found(connection, made) if made else None
                if earlier is not None:
                    return earlier[0], None
                if job.kind == FLEET:
                    can_be_shown = bool((job.answer or {}).get("jobs"))
                elif job.kind == POST_TRAINING:
                    can_be_shown = bool((job.answer or {}).get("status") not in {None, "infeasible"})
                else:
                    can_be_shown = job.answer is not None and job.num_children is None
                if not can_be_shown:
                    raise ConflictError(
                        "only a job with an answer, or a fleet with a schedule, can be shared; for a "
                        "sweep, share its points"
                    )
                working = select(func.count()).where(_LINK.job_id == job_id, _WORKS)
                if connection.execute(working).scalar_one() >= MAX_LINKS:
                    raise ConflictError(f"the job has {MAX_LINKS} links: revoke one first")
                connection.execute(delete(share_links).where(_LINK.job_id == job_id, ~_WORKS))
                link = insert(share_links).values(
                    id=link_id, tenant=tenant, job_id=job_id, key_id=key_id,
                    secret_sha256=hash_of(token), created_at_s=now_s(),
                    expires_at_s=now_s() + days * DAY_S,
                )  # fmt: skip
                added = added_to(connection, ShareRecord, link.returning(*_RECORD))
                note(
                    connection, tenant, actor=key_id or "local user", action="share.create",
                    subject=link_id, job=job_id, days=days,
                )  # fmt: skip
                if made is None:
                    remember(connection, tenant, repeatable, subject=link_id)
                return added, token

        return settled(make)

    def of_job(self, tenant: str, job_id: str) -> list[ShareRecord]:
        """Return the links of a job that work, newest first.

        Raises:
            NotFoundError: this tenant has no such job.
        """
        with self._database.read() as connection:
            required_job(connection, tenant, job_id)
            # An expression, as the index of a tenant's links is not to be used here.
            own = select(*_RECORD).where(_LINK.job_id == job_id, _LINK.tenant.concat("") == tenant, _WORKS)
            newest = (_LINK.created_at_s.desc(), _LINK.id.desc())
            return all_of(connection, ShareRecord, own.order_by(*newest).limit(MAX_LINKS))

    def page(
        self, tenant: str, *, page_size: int, page_token: str | None, key_id: str | None = None
    ) -> Page[ShareRecord]:
        """Return the links of a tenant that work, newest first; ``key_id``: only those that a key made.

        Raises:
            BadPageTokenError: the token is not one of ours.
        """
        before = decode_token(page_token, float, str) if page_token else None
        own = select(*_RECORD).where(_LINK.tenant == tenant, _LINK.expires_at_s + 0.0 > now_s())
        if key_id is not None:
            own = own.where(_LINK.key_id.concat("") == key_id)
        query = newest_first(own, share_links, before=before, limit=page_size + 1)
        with self._database.read() as connection:
            found = all_of(connection, ShareRecord, query)
        return page_of(found, page_size, lambda one: (one.created_at_s, one.id))

    def revoke(self, tenant: str, job_id: str, link_id: str, *, actor: str) -> None:
        """End a link for good.

        Raises:
            NotFoundError: the job has no such link.
        """
        own = _LINK.id == link_id[:16], _LINK.job_id == job_id, _LINK.tenant == tenant
        with self._database.write() as connection:
            if not link_id.isalnum() or not connection.execute(delete(share_links).where(*own)).rowcount:
                raise NotFoundError("the job has no such link")
            note(connection, tenant, actor=actor, action="share.revoke", subject=link_id, job=job_id)

    def opened(self, token: str) -> ShareRecord:
        """Return the link of a token; hashes are compared in constant time, even for unknown ids.

        Raises:
            NotFoundError: it is not a link, or one that was revoked or has expired.
        """
        match = _TOKEN.fullmatch(token)
        found = None
        if match is not None:
            with self._database.read() as connection:
                found = _found(connection, match.group(1))
        record, stored = found or (None, _NO_HASH)
        same = hmac.compare_digest(stored, hash_of(token))
        if record is None or not same:
            raise NotFoundError("this link does not work: it was revoked, has expired or is incomplete")
        return record


def _found(connection: Connection, link_id: str) -> tuple[ShareRecord, str] | None:
    """Return a link that works, whoever asks for it, and the hash of its secret."""
    own = _LINK.id == link_id, _WORKS
    found = one_of(connection, ShareRecord, select(*_RECORD).where(*own))
    if found is None:
        return None
    return found, connection.execute(select(_LINK.secret_sha256).where(*own)).scalar_one()
