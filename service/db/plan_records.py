"""Plans as rows: a body, and the figures that lists of plans filter and sort by.

They run in the caller's transaction; the tenant is in every WHERE.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    exists,
    insert,
    null,
    or_,
    select,
    tuple_,
    update,
)

from meshwright.service.db.clock import now_s
from meshwright.service.db.rows import all_of, in_parts
from meshwright.service.db.tables import jobs, measurements, plans, verifications
from meshwright.solver.configuration import configuration_from_json

MOVED = (jobs.c.id, jobs.c.tenant, jobs.c.state, jobs.c.checkpoint)  # what a transition returns to be kept
MAX_NAME = 200  # characters of a model's or cluster's name; longer ones are cut
SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "data_parallel_size",
    "micro_batch_size",
    "zero_stage",
)
_PREDICTED = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "peak_memory_bytes",
    "out_of_memory_probability",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """One row of ``plans`` without its body; the columns of an older version's row are None."""

    job_id: str
    rank: int
    plan_id: str
    found_at_s: float | None
    model: str | None
    cluster: str | None
    launcher: str | None
    num_gpus: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    context_parallel_size: int | None
    expert_parallel_size: int | None
    data_parallel_size: int | None
    micro_batch_size: int | None
    zero_stage: int | None
    step_time_s: float | None
    step_time_low_s: float | None
    step_time_high_s: float | None
    tokens_per_s_per_gpu: float | None
    mfu: float | None
    peak_memory_bytes: int | None
    out_of_memory_probability: float | None
    cost: float | None
    num_measurements: int
    measured_step_time_s: float | None
    measured_peak_memory_bytes: int | None
    measured_out_of_memory: bool | None
    verified: str | None


_FIGURES = tuple(plans.c[one.name] for one in fields(PlanFigures))


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


def plans_like(
    connection: Connection,
    tenant: str,
    wanted: PlanFilter,
    *,
    limit: int,
    after: tuple[float, str, int] | None,
    found_by_s: float,
) -> list[PlanFigures]:
    """Return up to ``limit`` plans after the position ``after`` (value sorted by, job, rank).

    A plan found by several jobs is listed once, from the newest job, unless one job is given. Plans
    that lack the figure sorted by are left out, and those found after ``found_by_s`` (UNIX time): a job
    that ends between two pages would take a plan from the second to before the first.
    """
    key = plans.c[wanted.column]
    place = tuple_(key, plans.c.job_id, plans.c.rank)
    query = select(*_FIGURES).join(jobs, jobs.c.id == plans.c.job_id)
    query = query.where(plans.c.tenant == tenant, jobs.c.num_children.is_(None), key.is_not(None))
    query = query.where(or_(plans.c.found_at_s.is_(None), plans.c.found_at_s <= found_by_s))
    query = query.where(*_conditions(wanted))
    if "job_id" not in wanted.equal:
        query = query.where(_is_newest(found_by_s))
    if after is not None:
        query = query.where(place < after if wanted.descends else place > after)
    columns = (key, plans.c.job_id, plans.c.rank)
    query = query.order_by(*(one.desc() if wanted.descends else one for one in columns)).limit(limit)
    return all_of(connection, PlanFigures, query)


def _conditions(wanted: PlanFilter) -> Iterable[ColumnElement[bool]]:
    for name, value in wanted.equal.items():
        yield plans.c[name] == value
    for name, most in wanted.at_most.items():
        yield plans.c[name] <= most
    for name, least in wanted.at_least.items():
        yield plans.c[name] >= least
    if wanted.measured is not None:
        yield plans.c.num_measurements > 0 if wanted.measured else plans.c.num_measurements == 0


def _is_newest(found_by_s: float) -> ColumnElement[bool]:
    """Return the condition that no later job until then has the same plan; sweeps do not count."""
    newer, its_job = plans.alias("newer"), jobs.alias("its_job")
    same = select(null()).join(its_job, its_job.c.id == newer.c.job_id).select_from(newer)
    later = tuple_(newer.c.found_at_s, newer.c.job_id) > tuple_(plans.c.found_at_s, plans.c.job_id)
    return ~exists(
        same.where(
            newer.c.tenant == plans.c.tenant,
            newer.c.plan_id == plans.c.plan_id,
            its_job.c.num_children.is_(None),
            newer.c.found_at_s <= found_by_s,
            later,
        )
    )


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
    note_measured(connection, tenant, [row["plan_id"] for row in rows])
    note_verified(connection, tenant, [row["plan_id"] for row in rows])


def figures_of(plan: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a plan as its body and the problem of its job state them; None: they do not."""
    config, prediction = plan.get("config") or {}, plan.get("prediction") or {}
    launchers = plan.get("launchers") or ()
    launcher = launchers[0] if request.get("launcher") == "any" and launchers else request.get("launcher")
    return {
        **{name: prediction.get(name) for name in _PREDICTED},
        **{name: config.get(name) for name in SIZES},
        "num_gpus": configuration_from_json(config).num_gpus if config else None,
        "cost": (plan.get("outlook") or {}).get("cost"),
        "model": _name_in(request, "model"),
        "cluster": _name_in(request, "cluster"),
        "launcher": launcher,
    }


def _name_in(request: Mapping[str, Any], part: str) -> str | None:
    name = (request.get(part) or {}).get("name")
    return str(name)[:MAX_NAME] if name else None


def note_measured(connection: Connection, tenant: str, plan_ids: Sequence[str]) -> None:
    """Write to some plans the results of all their runs: median step time, highest peak, how many."""
    for some in in_parts(plan_ids):
        these = plans.c.tenant == tenant, plans.c.plan_id.in_(some)
        connection.execute(select(plans.c.rank).where(*these).with_for_update())  # one counts at a time
        query = select(measurements.c.plan_id, measurements.c.body)
        query = query.where(measurements.c.tenant == tenant, measurements.c.plan_id.in_(some))
        bodies: dict[str, list[Mapping[str, Any]]] = {}
        for plan_id, body in connection.execute(query):
            bodies.setdefault(plan_id, []).append(body)
        for plan_id, known in bodies.items():
            same = update(plans).where(plans.c.tenant == tenant, plans.c.plan_id == plan_id)
            connection.execute(same.values(**_measured(known)))


def note_verified(connection: Connection, tenant: str, plan_ids: Sequence[str]) -> None:
    """Write to some plans the verdict of their launcher."""
    for some in in_parts(plan_ids):
        query = select(verifications.c.plan_id, verifications.c.state, verifications.c.body)
        query = query.where(verifications.c.tenant == tenant, verifications.c.plan_id.in_(some))
        for plan_id, state, body in connection.execute(query).all():
            same = update(plans).where(plans.c.tenant == tenant, plans.c.plan_id == plan_id)
            connection.execute(same.values(verified=(body or {}).get("verdict", state)))


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
        if row.state != "cancelled" or row.checkpoint is None:
            continue
        answer = dict(row.checkpoint)
        found = answer.pop("plans", ())
        own = update(jobs).where(jobs.c.id == row.id)
        request = connection.execute(
            own.values(answer=answer, checkpoint=None).returning(jobs.c.request)
        ).scalar_one()
        insert_plans(connection, row.id, row.tenant, found, request)
