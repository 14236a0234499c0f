"""Deletion on request: one job, or a tenant with all of its records."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from sqlalchemy import Connection, Table, delete, insert, select, tuple_, update

from meshwright.service.auth.access import REMEMBER_S
from meshwright.service.db import key_records
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.records import is_identifier
from meshwright.service.db.tables import (
    api_keys,
    audit,
    definitions,
    idempotency_keys,
    jobs,
    key_usage,
    measurements,
    profiles,
    verifications,
)
from meshwright.service.errors import ConflictError, NotFoundError

BATCH = 200  # rows of one transaction
_TABLES: tuple[Table, ...] = (  # jobs take their plans, events, labels and re-plans along
    jobs, verifications, idempotency_keys, measurements, profiles, definitions, key_usage,
    audit,
)  # fmt: skip
_CLOSED = "keeps the service closed: the tenant with the last key was deleted"


class Deletion:
    """The use cases of deletion; ``actor`` is who does it: the id of a key, or ``command line``."""

    def __init__(self, database: Database, *, actor: str) -> None:
        self._database = database
        self._actor = actor

    def job(self, tenant: str, job_id: str) -> None:
        """Delete a job in any state, with plans, events and re-plans, and with a sweep or fleet its parts.

        A worker that has it loses its claim and stops. Measurements of its plans stay.

        Raises:
            NotFoundError: this tenant has no such job.
            ConflictError: it is a point of a sweep, or a job of a fleet.
        """
        if not is_identifier(job_id):
            raise NotFoundError("there is no such job")

        def work(connection: Connection) -> None:
            own = jobs.c.tenant == tenant, jobs.c.id == job_id
            found = connection.execute(select(jobs.c.parent_id).where(*own).with_for_update()).one_or_none()
            if found is None:
                raise NotFoundError("there is no such job")
            if found.parent_id is not None:
                whole = f"delete the sweep or the fleet {found.parent_id}"
                raise ConflictError(f"the job is a point of a sweep or a job of a fleet: {whole}")
            connection.execute(delete(jobs).where(jobs.c.tenant == tenant, jobs.c.parent_id == job_id))
            connection.execute(delete(jobs).where(*own))
            key_records.note(connection, tenant, actor=self._actor, action="job.delete", subject=job_id)

        self._database.write_patiently(work)

    def tenant(self, tenant: str) -> Mapping[str, int]:
        """Delete all records of a tenant; return how many rows of each table went.

        The audit trail keeps this act alone. The tenant's keys are revoked first, except that of the
        caller, which goes last: what was interrupted can be done again. A service that demands keys goes on
        demanding them.

        Raises:
            NotFoundError: there is nothing of such a tenant.
        """
        if self._revoked(tenant):
            time.sleep(REMEMBER_S)  # servers remember a key for so long
        gone = {table.name: self._emptied(table, tenant) for table in _TABLES}
        gone = {name: rows for name, rows in gone.items() if rows}

        def finish(connection: Connection) -> int:
            had_keys = key_records.any_key(connection)
            keys = connection.execute(delete(api_keys).where(api_keys.c.tenant == tenant)).rowcount
            if had_keys and not key_records.any_key(connection):
                _add_closing_key(connection)
            if gone or keys:
                key_records.note(
                    connection, tenant, actor=self._actor, action="tenant.delete", subject=tenant, **gone
                )
            return keys

        keys = self._database.write_patiently(finish)
        if not gone and not keys:
            raise NotFoundError("there is no such tenant")
        return {**gone, "api_keys": keys} if keys else gone

    def _revoked(self, tenant: str) -> int:
        """Revoke every key of a tenant but the caller's; return how many were usable."""
        others = api_keys.c.tenant == tenant, api_keys.c.revoked_at_s.is_(None)
        revoke = update(api_keys).where(*others, api_keys.c.id != self._actor)
        return self._database.write_patiently(
            lambda connection: connection.execute(revoke.values(revoked_at_s=now_s())).rowcount
        )

    def _emptied(self, table: Table, tenant: str) -> int:
        """Delete the rows of a tenant, a batch at a time; return how many there were."""
        name = list(table.primary_key)
        whole = name[0] if len(name) == 1 else tuple_(*name)
        some = select(*name).where(table.c.tenant == tenant).limit(BATCH)
        rows = 0
        while True:
            batch = self._database.write_patiently(
                lambda connection: connection.execute(delete(table).where(whole.in_(some))).rowcount
            )
            rows += batch
            if batch < BATCH:
                return rows


def _add_closing_key(connection: Connection) -> None:
    """Add a key that cannot be used: without any key, the service would answer every caller."""
    connection.execute(
        insert(api_keys).values(
            id=secrets.token_hex(6), tenant="deleted", scope="read", title=_CLOSED, secret_sha256="",
            created_at_s=now_s(), revoked_at_s=now_s(),
        )
    )  # fmt: skip
