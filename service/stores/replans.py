"""Re-plans on record: what a launcher asked, and what it was answered."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.records import is_identifier, required_job
from meshwright.service.db.rows import added_to, all_of, newest_first, one_of
from meshwright.service.db.tables import replans
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs.idempotency import Repeatable, made_before, remember, settled
from meshwright.service.jobs.pagination import Page, decode_token, page_of

MAX_REPLANS = 100  # of one job on record; a new one takes the place of the oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplanRecord:
    """One row of ``replans`` without its answer."""

    id: str
    job_id: str
    key_id: str | None  # of the caller; None: no keys are demanded
    request: Mapping[str, Any]
    created_at_s: float


_RECORD = tuple(replans.c[one.name] for one in fields(ReplanRecord))
Stored = tuple[ReplanRecord, Mapping[str, Any]]


class Replans:
    """The use cases of re-plans on record."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def earlier(self, tenant: str, job_id: str, request: Repeatable) -> Stored | None:
        """Return what the same request was answered before; None: it was not, or that is forgotten.

        Raises:
            IdempotencyConflictError: the key was used for something else.
        """
        with self._database.read() as connection:
            made = made_before(connection, tenant, request)
            return None if made is None else _found(connection, tenant, job_id, made)

    def keep(
        self,
        tenant: str,
        job_id: str,
        body: Mapping[str, object],
        answer: Mapping[str, object],
        *,
        key_id: str | None,
        repeatable: Repeatable,
    ) -> Stored:
        """Keep an answer, or return that of another request with this key, which was faster.

        Raises:
            NotFoundError: the job was deleted meanwhile.
            IdempotencyConflictError: the key was used for something else.
        """

        def store() -> Stored:
            with self._database.write() as connection:
                made = made_before(connection, tenant, repeatable)
                found = _found(connection, tenant, job_id, made) if made else None
                if found is not None:
                    return found
                required_job(connection, tenant, job_id)
                row = insert(replans).values(
                    id=uuid.uuid4().hex, tenant=tenant, job_id=job_id, key_id=key_id, request=dict(body),
                    answer=dict(answer), created_at_s=now_s(),
                )  # fmt: skip
                record = added_to(connection, ReplanRecord, row.returning(*_RECORD))
                newest = (replans.c.created_at_s.desc(), replans.c.id.desc())
                own = select(replans.c.id).where(replans.c.job_id == job_id).order_by(*newest)
                connection.execute(
                    delete(replans).where(replans.c.id.in_(own.limit(MAX_REPLANS).offset(MAX_REPLANS)))
                )
                if made is None:
                    remember(connection, tenant, repeatable, subject=record.id)
                return record, answer

        return settled(store)

    def page(
        self, tenant: str, job_id: str, *, page_size: int, page_token: str | None
    ) -> Page[ReplanRecord]:
        """Return re-plans of a job, newest first.

        Raises:
            NotFoundError: this tenant has no such job.
            BadPageTokenError: the token is not one of ours.
        """
        before = decode_token(page_token, float, str) if page_token else None
        with self._database.read() as connection:
            required_job(connection, tenant, job_id)
            own = select(*_RECORD).where(replans.c.job_id == job_id, replans.c.tenant == tenant)
            found = all_of(
                connection, ReplanRecord, newest_first(own, replans, before=before, limit=page_size + 1)
            )
        return page_of(found, page_size, lambda one: (one.created_at_s, one.id))

    def read(self, tenant: str, job_id: str, replan_id: str) -> Stored:
        """Return one re-plan of a job, and what was answered.

        Raises:
            NotFoundError: this tenant has no such job, or the job has no such re-plan.
        """
        with self._database.read() as connection:
            found = _found(connection, tenant, job_id, replan_id)
        if found is None:
            raise NotFoundError("there is no such re-plan")
        return found


def _found(connection: Connection, tenant: str, job_id: str, replan_id: str) -> Stored | None:
    if not is_identifier(replan_id):
        return None
    own = replans.c.id == replan_id, replans.c.job_id == job_id, replans.c.tenant == tenant
    found = one_of(connection, ReplanRecord, select(*_RECORD).where(*own))
    if found is None:
        return None
    return found, connection.execute(select(replans.c.answer).where(*own)).scalar_one()
