"""Plans as rows: a body, and the figures that lists of plans filter and sort by.

They run in the caller's transaction; the tenant is in every WHERE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Integer,
    Row,
    Select,
    Update,
    insert,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.elements import KeyedColumnElement

from meshwright.service.db.clock import now_s
from meshwright.service.db.plan_figures import PlanFigures, figures_in, names
from meshwright.service.db.records import name_in
from meshwright.service.db.rows import all_of, in_parts
from meshwright.service.db.tables import CLOSEST_RANK, is_newest, jobs, measurements, plans, verifications
from meshwright.solver.configuration import configuration_from_json

MOVED = (jobs.c.id, jobs.c.tenant, jobs.c.state, jobs.c.checkpoint)  # what a transition returns to be kept
MAX_LOOKED_AT = 1_000  # plans for one page: 3 ms
MAX_FOUND_AGAIN = 10_000  # plans of newer jobs since a list began
Position = tuple[float, str, int]  # of a plan in a list: the value sorted by, the job, the rank
_Columns = (
    ReadOnlyColumnCollection[str, Column[Any]] | ReadOnlyColumnCollection[str, KeyedColumnElement[Any]]
)
_FIGURES = tuple(plans.c[name] for name in names())


def type_of_sort(column: str) -> type:
    """Return the type of a column that is sorted by: float or int."""
    return int if isinstance(plans.c[column].type, Integer) else float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFilter:
    """Which plans are asked for, by column; ``sort`` is a column, with ``-`` the largest first."""

    equal: Mapping[str, str | int] = field(default_factory=dict)
    at_most: Mapping[str, float] = field(default_factory=dict)
    at_least: Mapping[str, float] = field(default_factory=dict)
    measured: bool | None = None  # None: whether or not
    sort: str = "-found_at_s"

    @property
    def column(self) -> str:
        """Return the column that is sorted by."""
        return self.sort.removeprefix("-")

    @property
    def descends(self) -> bool:
        """Return whether the largest comes first."""
        return self.sort.startswith("-")

    @property
    def is_selective(self) -> bool:
        """Return whether a list may leave out plans by something that no index serves."""
        return (
            bool(self.equal.keys() - {"job_id"} or self.at_most or self.at_least)
            or self.measured is not None
        )

    def position(self, one: PlanFigures) -> Position:
        """Return the position of a plan in the list."""
        return getattr(one, self.column), one.job_id, one.rank

    def is_after(self, one: Position, other: Position) -> bool:
        """Return whether a position comes after another one."""
        return one < other if self.descends else one > other


def plans_like(
    connection: Connection,
    tenant: str,
    wanted: PlanFilter,
    *,
    limit: int,
    after: Position | None,
    found_by_s: float,
) -> tuple[list[PlanFigures], Position | None]:
    """Return up to ``limit`` plans after a position, and where to go on; None: these were the last.

    A plan found by several jobs is listed once, from the newest job, unless one job is given. Plans
    that lack the figure sorted by are left out, and those found after ``found_by_s`` (UNIX time): a job
    that ends between two pages would take a plan from the second to before the first.

    At most ``MAX_LOOKED_AT`` plans are looked at, as no index serves every filter: a page may hold fewer
    plans than ``limit``, even none, and the list goes on.
    """
    listed = _ordered(_listed(tenant, wanted, after), plans.c, wanted)
    edge: Position | None = None
    if wanted.is_selective or after is not None:
        place = (plans.c[wanted.column], plans.c.job_id, plans.c.rank)
        last = connection.execute(listed.with_only_columns(*place).limit(1).offset(MAX_LOOKED_AT - 1))
        edge = next((tuple(row) for row in last), None)
    found = all_of(connection, PlanFigures, _matching(listed, wanted, found_by_s, edge).limit(limit))
    if after is not None and "job_id" not in wanted.equal:
        since = all_of(connection, PlanFigures, _superseded_since(tenant, wanted, after, found_by_s, limit))
        near = [one for one in since if edge is None or not wanted.is_after(wanted.position(one), edge)]
        found = sorted((*found, *near), key=wanted.position, reverse=wanted.descends)[:limit]
    return found, wanted.position(found[-1]) if len(found) == limit else edge


def _listed(tenant: str, wanted: PlanFilter, after: Position | None) -> Select[Any]:
    """Return the plans that a list looks at, in its order: of one job, or the newest of each id."""
    query = select(*_FIGURES).where(plans.c.tenant == tenant, *_placed(wanted, after))
    job_id = wanted.equal.get("job_id")
    if job_id is None:
        return query.where(is_newest)
    return query.where(plans.c.job_id == job_id, or_(is_newest, plans.c.superseded_at_s > 0))


def _placed(wanted: PlanFilter, after: Position | None) -> Iterable[ColumnElement[bool]]:
    key = plans.c[wanted.column]
    yield key.is_not(None)
    if after is not None:
        place = tuple_(key, plans.c.job_id, plans.c.rank)
        yield place < after if wanted.descends else place > after


def _matching(
    listed: Select[Any], wanted: PlanFilter, found_by_s: float, edge: Position | None
) -> Select[Any]:
    """Return the plans of a list that a filter lets through, up to the last that is looked at."""
    query = listed.where(or_(plans.c.found_at_s.is_(None), plans.c.found_at_s <= found_by_s))
    if edge is not None:
        place = tuple_(plans.c[wanted.column], plans.c.job_id, plans.c.rank)
        query = query.where(place >= edge if wanted.descends else place <= edge)
    return query.where(*_conditions(wanted, plans.c))


def _superseded_since(
    tenant: str, wanted: PlanFilter, after: Position, found_by_s: float, limit: int
) -> Select[Any]:
    """Return plans that were the newest when the list began, of the first that newer jobs found again."""
    since = plans.c.tenant == tenant, plans.c.superseded_at_s > found_by_s
    again = select(*_FIGURES).where(*since).order_by(plans.c.superseded_at_s).limit(MAX_FOUND_AGAIN)
    looked_at = again.subquery("looked_at")
    columns = looked_at.c
    key, place = columns[wanted.column], tuple_(columns[wanted.column], columns.job_id, columns.rank)
    rest = key.is_not(None), place < after if wanted.descends else place > after
    query = select(looked_at).where(*rest, columns.found_at_s <= found_by_s, *_conditions(wanted, columns))
    return _ordered(query, columns, wanted).limit(limit)


def _ordered(query: Select[Any], columns: _Columns, wanted: PlanFilter) -> Select[Any]:
    order = (columns[wanted.column], columns.job_id, columns.rank)
    return query.order_by(*(one.desc() if wanted.descends else one for one in order))


def _conditions(wanted: PlanFilter, columns: _Columns) -> Iterable[ColumnElement[bool]]:
    for name, value in wanted.equal.items():
        yield columns[name] == value
    for name, most in wanted.at_most.items():
        yield columns[name] <= most
    for name, least in wanted.at_least.items():
        yield columns[name] >= least
    if wanted.measured is not None:
        yield columns.num_measurements > 0 if wanted.measured else columns.num_measurements == 0


def insert_plans(
    connection: Connection,
    job_id: str,
    tenant: str,
    found: Sequence[Mapping[str, Any]],
    request: Mapping[str, Any],
) -> None:
    """Add the plans of a job, with what was measured of them before."""
    if not found:
        return
    rows = [
        {
            "job_id": job_id,
            "tenant": tenant,
            "rank": plan["rank"],
            "plan_id": plan["plan_id"],
            "body": dict(plan),
            **figures_of(plan, request),
        }
        for plan in found
    ]
    connection.execute(insert(plans).values(found_at_s=now_s()), rows)
    for note in (note_measured, note_verified):
        note(connection, tenant, [row["plan_id"] for row in rows], job_id=job_id)


def insert_closest(
    connection: Connection,
    job_id: str,
    tenant: str,
    answer: Mapping[str, Any] | None,
    request: Mapping[str, Any],
) -> None:
    """Add the plan that is closest to fitting, where the answer of a job names one; a sweep's is a point's.

    Like a sweep's own plans it is superseded from the start, so that lists leave it out.
    """
    plan = ((answer or {}).get("infeasible") or {}).get("closest")
    if not plan or "points" in (answer or {}):
        return
    row = {"job_id": job_id, "tenant": tenant, "rank": CLOSEST_RANK, "plan_id": plan["plan_id"]}
    row |= {"body": dict(plan), "superseded_at_s": 0.0, **figures_of(plan, request)}
    connection.execute(insert(plans).values(found_at_s=now_s()), [row])


def figures_of(plan: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a plan as its body and the problem of its job state them; None: they do not."""
    config, prediction = plan.get("config") or {}, plan.get("prediction") or {}
    launchers = plan.get("launchers") or ()
    launcher = launchers[0] if request.get("launcher") == "any" and launchers else request.get("launcher")
    return {
        **{name: prediction.get(name) for name in figures_in("prediction")},
        **{name: config.get(name) for name in figures_in("config")},
        # of a placement of roles: of all roles
        "num_gpus": plan.get("num_gpus") or (configuration_from_json(config).num_gpus if config else None),
        "cost": (plan.get("outlook") or {}).get("cost"),
        "model": name_in(request, "model"),
        "cluster": name_in(request, "cluster"),
        "launcher": launcher,
    }


def note_measured(
    connection: Connection, tenant: str, plan_ids: Sequence[str], *, job_id: str | None = None
) -> None:
    """Write to some plans, of one job or of all, their runs' median step time, highest peak and number."""
    for some in in_parts(plan_ids):
        # One counts at a time: a job that finds a plan again changes the newest one, too.
        these = plans.c.tenant == tenant, plans.c.plan_id.in_(some), is_newest
        connection.execute(select(plans.c.rank).where(*these).order_by(plans.c.plan_id).with_for_update())
        query = select(measurements.c.plan_id, measurements.c.body)
        query = query.where(measurements.c.tenant == tenant, measurements.c.plan_id.in_(some))
        bodies: dict[str, list[Mapping[str, Any]]] = {}
        for plan_id, body in connection.execute(query):
            bodies.setdefault(plan_id, []).append(body)
        for plan_id, known in bodies.items():
            connection.execute(_same(tenant, plan_id, job_id).values(**_measured(known)))


def note_verified(
    connection: Connection, tenant: str, plan_ids: Sequence[str], *, job_id: str | None = None
) -> None:
    """Write to some plans, of one job or of all, the verdict of their launcher."""
    for some in in_parts(plan_ids):
        query = select(verifications.c.plan_id, verifications.c.state, verifications.c.body)
        query = query.where(verifications.c.tenant == tenant, verifications.c.plan_id.in_(some))
        for plan_id, state, body in connection.execute(query).all():
            connection.execute(
                _same(tenant, plan_id, job_id).values(verified=(body or {}).get("verdict", state))
            )


def _same(tenant: str, plan_id: str, job_id: str | None) -> Update:
    same = update(plans).where(plans.c.tenant == tenant, plans.c.plan_id == plan_id)
    return same if job_id is None else same.where(plans.c.job_id == job_id)


def _measured(bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps = [body["step_time_s"] for body in bodies if body.get("step_time_s")]
    peaks = [body["peak_memory_bytes"] for body in bodies if body.get("peak_memory_bytes")]
    return {
        "num_measurements": len(bodies),
        "measured_step_time_s": median(steps) if steps else None,
        "measured_peak_memory_bytes": max(peaks, default=None),
        "measured_out_of_memory": any(body.get("out_of_memory") for body in bodies),
    }


def keep_found(connection: Connection, moved: Iterable[Row[tuple[object, ...]]]) -> None:
    """Make the checkpoints of jobs that were just cancelled their answers, in the same transaction."""
    for row in moved:
        if row.state != "cancelled" or "plans" not in (row.checkpoint or ()):  # a fleet's has none
            continue
        answer = dict(row.checkpoint)
        found = answer.pop("plans", ())
        own = update(jobs).where(jobs.c.id == row.id)
        request = connection.execute(
            own.values(answer=answer, checkpoint=None).returning(jobs.c.request)
        ).scalar_one()
        insert_plans(connection, row.id, row.tenant, found, request)
