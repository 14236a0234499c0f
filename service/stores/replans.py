"""Re-plans on record: what a launcher asked, and what it was answered."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from meshwright.service.db import replan_records as records
from meshwright.service.db.database import Database
from meshwright.service.db.records import find_job
from meshwright.service.db.replan_records import ReplanRecord
from meshwright.service.errors import NotFoundError
from meshwright.service.jobs.idempotency import Repeatable, made_before, remember, settled
from meshwright.service.jobs.pagination import Page, decode_token, page_of

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
            return None if made is None else records.find_replan(connection, tenant, job_id, made)

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
                found = records.find_replan(connection, tenant, job_id, made) if made else None
                if found is not None:
                    return found
                if find_job(connection, tenant, job_id) is None:
                    raise NotFoundError("there is no such job")
                record_id = uuid.uuid4().hex
                records.insert_replan(
                    connection, tenant, record_id,
                    job_id=job_id, key_id=key_id, request=body, answer=answer,
                )  # fmt: skip
                if made is None:
                    remember(connection, tenant, repeatable, subject=record_id)
                found = records.find_replan(connection, tenant, job_id, record_id)
            if found is None:
                raise NotFoundError("the re-plan was deleted while it was stored")
            return found

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
            if find_job(connection, tenant, job_id) is None:
                raise NotFoundError("there is no such job")
            found = records.newest_replans(connection, tenant, job_id, limit=page_size + 1, before=before)
        return page_of(found, page_size, lambda one: (one.created_at_s, one.id))

    def read(self, tenant: str, job_id: str, replan_id: str) -> Stored:
        """Return one re-plan of a job, and what was answered.

        Raises:
            NotFoundError: this tenant has no such job, or the job has no such re-plan.
        """
        with self._database.read() as connection:
            found = records.find_replan(connection, tenant, job_id, replan_id)
        if found is None:
            raise NotFoundError("there is no such re-plan")
        return found
