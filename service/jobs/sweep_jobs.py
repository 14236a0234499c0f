"""Sweeps in SQL: a parent that runs, without a worker and a lease, while its children are open.

Children are jobs like any other. When none of them is open the parent is ready: whoever claims it then
(the worker of the last child, the API after a cancel, or the sweep) joins their answers. That claim raises
the fence and takes a lease like every other, so that the join is stored once, whoever dies meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    and_,
    case,
    func,
    literal,
    select,
    update,
)

from meshwright.service.db.clock import now_s
from meshwright.service.db.plan_records import MOVED
from meshwright.service.db.rows import one_of
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.states import TERMINAL_STATES, Claim

OPEN_STATES = ("queued", "running")
STAGE = "sweeping"
is_sweep: ColumnElement[bool] = jobs.c.num_children.is_not(None)
# The changes to an open job that is to be cancelled: now if it is queued, else when its worker stops.
CANCELLED: Mapping[str, Any] = {
    "cancel_requested": True,
    "state": case((jobs.c.state == "queued", "cancelled"), else_=jobs.c.state),
    "finished_at_s": case((jobs.c.state == "queued", now_s())),
}
_CHILD = jobs.alias("child")
_PARENT = jobs.alias("parent")


def claim_ready(
    connection: Connection, worker: str, *, lease_s: float, parent_id: str | None = None
) -> Claim | None:
    """Claim a sweep (that one, if it is named) of which no child is open; None: there is none."""
    wanted = [_PARENT.c.state == "running", _PARENT.c.num_children.is_not(None), ~_has_open(_PARENT.c.id)]
    wanted.append(_PARENT.c.lease_expires_at_s.is_(None))  # else another process is joining it
    if parent_id is not None:
        wanted.append(_PARENT.c.id == parent_id)
    first = select(_PARENT.c.id).where(*wanted).limit(1).with_for_update(skip_locked=True)
    claim = (
        update(jobs)
        .where(jobs.c.id == first.scalar_subquery())
        .values(
            fence=jobs.c.fence + 1,
            attempts=jobs.c.attempts + 1,
            worker=worker[:128],
            claimed_at_s=now_s(),
            lease_expires_at_s=now_s() + lease_s,
        )
        .returning(*(jobs.c[name] for name in _CLAIMED), jobs.c.id.label("job_id"))
    )
    return one_of(connection, Claim, claim)


def cancel_children(connection: Connection, tenant: str, parent_id: str) -> Sequence[Row[tuple[Any, ...]]]:
    """Cancel the queued children of a sweep now, and ask the running ones to stop; the rows of all."""
    opened = and_(jobs.c.parent_id == parent_id, jobs.c.tenant == tenant, jobs.c.state.in_(OPEN_STATES))
    in_order = select(jobs.c.id).where(opened).order_by(jobs.c.id).with_for_update()
    asked = update(jobs).where(jobs.c.id.in_(in_order.scalar_subquery()), opened)
    return connection.execute(asked.values(CANCELLED).returning(*MOVED)).all()


def note_progress(connection: Connection, parent_id: str) -> None:
    """Write how many children of a running sweep have ended, and the shortest step of any of them."""
    own = select(now_s() - jobs.c.created_at_s).where(jobs.c.id == parent_id, *_waits())
    elapsed_s = connection.execute(own.with_for_update()).scalar_one_or_none()  # one writer at a time
    if elapsed_s is None:
        return
    found = select(
        func.coalesce(func.sum(case((_CHILD.c.state.in_(sorted(TERMINAL_STATES)), 1), else_=0)), 0),
        func.count(),
        func.min(_CHILD.c.progress["incumbent_step_time_s"].as_float()),
        func.min(_CHILD.c.started_at_s),
    )
    found = found.where(_CHILD.c.parent_id == parent_id)
    done, total, step_s, started_at_s = connection.execute(found).one()
    progress: dict[str, Any] = {
        "stage": STAGE,
        "explored": done,
        "total": total,
        "incumbent_step_time_s": step_s,
        "bound_step_time_s": None,
        "gap": None,
        "elapsed_s": max(0.0, elapsed_s),
    }
    noted = update(jobs).where(jobs.c.id == parent_id, *_waits())
    connection.execute(
        noted.values(progress=progress, started_at_s=func.coalesce(jobs.c.started_at_s, started_at_s))
    )


_CLAIMED = (
    "tenant",
    "fence",
    "attempts",
    "request",
    "time_limit_s",
    "request_id",
    "traceparent",
    "cancel_requested",
    "owner",
)


def _waits() -> tuple[ColumnElement[bool], ...]:
    return jobs.c.state == "running", is_sweep, jobs.c.lease_expires_at_s.is_(None)


def _has_open(parent_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Return whether a sweep has an open child, looked up sweep by sweep.

    PostgreSQL would read all children of all sweeps for EXISTS.
    """
    is_open = _CHILD.c.parent_id == parent_id, _CHILD.c.state.in_(OPEN_STATES)
    return select(literal(1)).where(*is_open).limit(1).scalar_subquery().is_not(None)
