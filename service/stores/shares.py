"""Read-only links to answers: made once, shown once, stored as a hash, ended by revocation or with time.

A token is ``ml_<id>_<secret>``, as a key's: the id finds the row, the secret is 32 random bytes, for
which plain SHA-256 is enough.
"""

from __future__ import annotations

import hmac
import re
import secrets

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.auth.keys import DAY_S, SECRET_BYTES, hash_of
from meshwright.service.db import share_records as records
from meshwright.service.db.database import Database
from meshwright.service.db.key_records import note
from meshwright.service.db.records import JobRecord, find_job
from meshwright.service.db.share_records import MAX_LINKS, ShareRecord
from meshwright.service.errors import ConflictError, NotFoundError
from meshwright.service.jobs.idempotency import Repeatable, made_before, remember, settled
from meshwright.service.jobs.states import FLEET

DEFAULT_LIFE_DAYS = 7.0
MAX_LIFE_DAYS = 365.0
_TOKEN = re.compile(r"ml_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_NO_HASH = hash_of("")


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
            allowed = f"more than 0, at most {MAX_LIFE_DAYS:g} days"
            raise InvalidProblemError.of("/expires_in_days", f"is {days:g}", allowed=allowed)

        def make() -> tuple[ShareRecord, str | None]:
            link_id = secrets.token_hex(6)
            token = f"ml_{link_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
            with self._database.write() as connection:
                job = find_job(connection, tenant, job_id)
                if job is None:
                    raise NotFoundError("there is no such job")
                made = made_before(connection, tenant, repeatable)
                earlier = records.find_link(connection, made) if made else None
                if earlier is not None:
                    return earlier[0], None
                if not _can_be_shown(job):
                    raise ConflictError(
                        "only a job with an answer, or a fleet with a schedule, can be shared; for a "
                        "sweep, share its points"
                    )
                if records.count_links(connection, job_id) >= MAX_LINKS:
                    raise ConflictError(f"the job has {MAX_LINKS} links: revoke one first")
                records.insert_link(
                    connection, life_s=days * DAY_S, id=link_id, tenant=tenant, job_id=job_id,
                    key_id=key_id, secret_sha256=hash_of(token),
                )  # fmt: skip
                note(
                    connection, tenant, actor=key_id or "local user", action="share.create",
                    subject=link_id, job=job_id, days=days,
                )  # fmt: skip
                if made is None:
                    remember(connection, tenant, repeatable, subject=link_id)
                found = records.find_link(connection, link_id)
            if found is None:
                raise NotFoundError("the link expired while it was stored")
            return found[0], token

        return settled(make)

    def of_job(self, tenant: str, job_id: str) -> list[ShareRecord]:
        """Return the links of a job that work, newest first.

        Raises:
            NotFoundError: this tenant has no such job.
        """
        with self._database.read() as connection:
            if find_job(connection, tenant, job_id) is None:
                raise NotFoundError("there is no such job")
            return records.links_of(connection, tenant, job_id)

    def revoke(self, tenant: str, job_id: str, link_id: str, *, actor: str) -> None:
        """End a link for good.

        Raises:
            NotFoundError: the job has no such link.
        """
        with self._database.write() as connection:
            if not link_id.isalnum() or not records.delete_link(connection, tenant, job_id, link_id[:16]):
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
                found = records.find_link(connection, match.group(1))
        record, stored = found or (None, _NO_HASH)
        same = hmac.compare_digest(stored, hash_of(token))
        if record is None or not same:
            raise NotFoundError("this link does not work: it was revoked, has expired or is incomplete")
        return record


def _can_be_shown(job: JobRecord) -> bool:
    if job.kind == FLEET:
        return bool((job.answer or {}).get("jobs"))
    return job.answer is not None and job.num_children is None
