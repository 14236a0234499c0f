"""Joins the answers of a sweep's children as soon as the last of them has ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from meshwright.service.db import records
from meshwright.service.db.database import DATABASE_AWAY, Database
from meshwright.service.db.records import JobRecord, child_at, child_keys
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.joining import Joined, SolvedPoint, join
from meshwright.service.jobs.states import Claim, Outcome
from meshwright.service.jobs.submission import sweep_key

_log = logging.getLogger(__name__)


class Sweeps:
    """The sweeps of one process; ``worker`` is its name in claims."""

    def __init__(self, database: Database, engine: JobEngine, *, worker: str) -> None:
        self._database = database
        self._engine = engine
        self._worker = worker

    def child_ended(self, parent_id: str) -> None:
        """Note an ended child, and join the sweep if it was the last; a sweep joins the rest."""
        try:
            self._engine.note_child(parent_id)
            self._join_claimed(self._engine.claim_ready(self._worker, parent_id=parent_id))
        except DATABASE_AWAY as fault:
            _log.warning("sweep %s: not joined yet (%s)", parent_id, type(fault).__name__)

    def join_ready(self) -> int:
        """Join every sweep with all children ended; return how many there were."""
        count = 0
        while self._join_claimed(self._engine.claim_ready(self._worker)):
            count += 1
        return count

    def _join_claimed(self, claim: Claim | None) -> bool:
        """Join one claimed sweep; False: there was none."""
        if claim is None:
            return False
        try:
            stored = self._engine.complete(claim, self._outcome(claim))
        except DATABASE_AWAY:
            raise  # its lease runs out, and it is joined again
        except (SQLAlchemyError, ArithmeticError, LookupError, TypeError, ValueError):
            _log.exception("sweep %s: its points cannot be joined", claim.job_id)
            stored = self._engine.fail(
                claim,
                code="internal_error",
                detail="its points could not be joined. For details, see the log",
            )
        _log.info("sweep %s: %s", claim.job_id, "joined" if stored else "joined by another")
        return True

    def _outcome(self, claim: Claim) -> Outcome:
        search = claim.request["search"]
        with self._database.read() as connection:
            parent = records.find_job(connection, claim.tenant, claim.job_id)
            children = child_keys(connection, claim.job_id)
        joined = join(
            self._points(claim, len(children), search["top_k"]),
            objective=search["objective"],
            top_k=search["top_k"],
            cancelled=claim.cancel_requested,
        )
        keys = [key for _, key in children if key is not None]
        whole = len(keys) == len(children) and joined.state in {"succeeded", "infeasible"}
        has_answer = joined.plans or joined.state in {"infeasible", "failed"}
        return Outcome(
            state=joined.state,
            answer=joined.answer if has_answer else None,
            plans=joined.plans,
            problem=joined.problem,
            progress=_progress(parent, joined),
            cache_key=sweep_key(claim.tenant, [one for one, _ in children], keys) if whole else None,
        )

    def _points(self, claim: Claim, count: int, top_k: int) -> Iterator[SolvedPoint]:
        """Yield the children in order, one at a time in memory; the lease is renewed as a worker's is."""
        renewed_at = time.monotonic()
        for position in range(count):
            if time.monotonic() - renewed_at > self._engine.lease_s / 4:
                renewed_at = time.monotonic()
                self._engine.heartbeat(claim)
            with self._database.read() as connection:
                child = child_at(connection, claim.job_id, position)
                if child is None:
                    raise LookupError(f"the sweep has no child {position}")
                plans = records.plans_of(connection, claim.tenant, child.id, after=0, limit=top_k)
            point = child.point or {}
            yield SolvedPoint(
                values=point["values"],
                state=child.state,  # type: ignore[arg-type] # ended: the claim saw to it
                answer=child.answer,
                plans=plans,
                problem=child.problem,
                job_id=child.id,
                reused=point.get("reused_from") is not None,
            )


def _progress(parent: JobRecord | None, joined: Joined) -> Mapping[str, Any]:
    rows = joined.answer["points"]
    steps = [row["step_time_s"] for row in rows if row["step_time_s"] is not None]
    before = (parent.progress if parent else None) or {}
    return {
        "stage": "done",
        "explored": len(rows),
        "total": len(rows),
        "incumbent_step_time_s": min(steps, default=None),
        "bound_step_time_s": joined.answer["bound_step_time_s"],
        "gap": joined.answer["gap"],
        "elapsed_s": before.get("elapsed_s", 0.0),
    }
