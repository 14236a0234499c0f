"""Retention: deletes finished jobs with their results, and idempotency keys, after a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, Connection, and_, delete, exists, null, or_, select, tuple_

from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import idempotency_keys, jobs

BATCH = 200  # rows of one transaction: short enough that others do not wait long
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The numbers of rows that one pruning removed."""

    jobs: int
    keys: int

    @property
    def may_be_more(self) -> bool:
        """Return whether a batch was full."""
        return BATCH in {self.jobs, self.keys}


class Retention:
    """Removes a batch at a time; measurements of plans and profiles outlive their jobs."""

    def __init__(self, database: Database, *, keep_jobs_days: float, idempotency_ttl_s: float) -> None:
        self._database = database
        self._keep_jobs_s = keep_jobs_days * DAY_S
        self._idempotency_ttl_s = idempotency_ttl_s

    def prune(self) -> Pruned:
        """Remove finished jobs that are too old, with plans and events, and expired keys."""
        finished = self._database.write_patiently(
            lambda connection: _delete_older(
                connection,
                jobs.c.finished_at_s,
                (jobs.c.id,),
                age_s=self._keep_jobs_s,
                only=_whole(self._keep_jobs_s),
            )
        )
        return Pruned(
            jobs=finished,
            keys=self._database.write_patiently(
                lambda connection: _delete_older(
                    connection,
                    idempotency_keys.c.created_at_s,
                    (idempotency_keys.c.tenant, idempotency_keys.c.key),
                    age_s=self._idempotency_ttl_s,
                )
            ),
        )


def _whole(age_s: float) -> ColumnElement[bool]:
    """Return the condition for jobs that no sweep still needs; a sweep goes after its points."""
    sweep, child = jobs.alias("sweep"), jobs.alias("child")
    kept = select(null()).where(
        sweep.c.id == jobs.c.parent_id,
        or_(sweep.c.finished_at_s.is_(None), sweep.c.finished_at_s >= now_s() - age_s),
    )
    return and_(~exists(kept), ~exists(select(null()).where(child.c.parent_id == jobs.c.id)))


def _delete_older(
    connection: Connection,
    moment: Column[float],
    name: Sequence[Column[str]],
    *,
    age_s: float,
    only: ColumnElement[bool] | None = None,
) -> int:
    """Delete up to a batch of the rows with a ``moment`` more than ``age_s`` ago, oldest first."""
    before = now_s() - age_s
    whole = name[0] if len(name) == 1 else tuple_(*name)
    wanted = [moment < before, *([] if only is None else [only])]
    gone = delete(moment.table).where(
        whole.in_(select(*name).where(*wanted).order_by(moment).limit(BATCH)), moment < before
    )
    return connection.execute(gone).rowcount
