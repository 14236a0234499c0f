"""A plan's figures become columns, so that plans of all jobs can be filtered and sorted.

They repeat what the bodies and the measurements hold: going back loses nothing, coming again fills them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from statistics import median
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "data_parallel_size",
    "micro_batch_size",
    "zero_stage",
)
_SECONDS_AND_SHARES = (
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "out_of_memory_probability",
)
_ADDED: tuple[tuple[str, Any], ...] = (
    ("found_at_s", sa.Double),
    ("model", sa.String(200)),
    ("cluster", sa.String(200)),
    ("launcher", sa.String(64)),
    ("num_gpus", sa.Integer),
    *((name, sa.Integer) for name in _SIZES),
    *((name, sa.Double) for name in _SECONDS_AND_SHARES),
    ("peak_memory_bytes", sa.BigInteger),
    ("cost", sa.Double),
    ("measured_step_time_s", sa.Double),
    ("measured_peak_memory_bytes", sa.BigInteger),
    ("measured_out_of_memory", sa.Boolean),
)
_SORTED = ("found_at_s", "step_time_s", "measured_step_time_s")
_BATCH = 200  # bodies in memory at a time

_jobs = sa.table(
    "jobs",
    *map(sa.column, ("id", "created_at_s", "finished_at_s")),
    sa.column("request", sa.JSON),
)
_plans = sa.table(
    "plans",
    *map(sa.column, ("job_id", "rank", "tenant", "plan_id", "num_measurements")),
    sa.column("body", sa.JSON),
    *(sa.column(name) for name, _ in _ADDED),
)
_measurements = sa.table(
    "measurements", sa.column("tenant"), sa.column("plan_id"), sa.column("body", sa.JSON)
)


def upgrade() -> None:
    for name, kind in _ADDED:
        op.add_column("plans", sa.Column(name, kind))
    op.add_column("plans", sa.Column("num_measurements", sa.Integer, nullable=False, server_default="0"))
    for name in _SORTED:
        op.create_index(f"ix_plans_tenant_{name}", "plans", ["tenant", name])
    op.create_index("ix_measurements_tenant_plan_id", "measurements", ["tenant", "plan_id"])
    _fill(op.get_bind())


def downgrade() -> None:
    op.drop_index("ix_measurements_tenant_plan_id", "measurements")
    for name in _SORTED:
        op.drop_index(f"ix_plans_tenant_{name}", "plans")
    for name in ("num_measurements", *(name for name, _ in reversed(_ADDED))):
        op.drop_column("plans", name)


def _fill(connection: sa.Connection) -> None:
    """The columns of every plan, a batch at a time."""
    after: tuple[str, int] = ("", 0)
    joined = sa.select(
        _plans.c.job_id, _plans.c.rank, _plans.c.body, _jobs.c.request,
        sa.func.coalesce(_jobs.c.finished_at_s, _jobs.c.created_at_s).label("found_at_s"),
    ).join(_jobs, _jobs.c.id == _plans.c.job_id)  # fmt: skip
    place = sa.tuple_(_plans.c.job_id, _plans.c.rank)
    own = sa.update(_plans).where(_plans.c.job_id == sa.bindparam("its_job"))
    own = own.where(_plans.c.rank == sa.bindparam("its_rank"))
    while rows := connection.execute(
        joined.where(place > after).order_by(_plans.c.job_id, _plans.c.rank).limit(_BATCH)
    ).all():
        values = [
            {"its_job": row.job_id, "its_rank": row.rank, "found_at_s": row.found_at_s, **_figures(row)}
            for row in rows
        ]
        connection.execute(own, values)
        after = (rows[-1].job_id, rows[-1].rank)
    _fill_measured(connection)


def _figures(row: Any) -> dict[str, Any]:  # noqa: ANN401 - a row of the query above
    """What a body and the problem of its job state."""
    config, prediction = row.body.get("config") or {}, row.body.get("prediction") or {}
    launchers = row.body.get("launchers") or ()
    launcher = row.request.get("launcher")
    return {
        **{name: config.get(name) for name in _SIZES},
        **{name: prediction.get(name) for name in (*_SECONDS_AND_SHARES, "peak_memory_bytes")},
        "num_gpus": _num_gpus(config) if config else None,
        "cost": (row.body.get("outlook") or {}).get("cost"),
        "model": ((row.request.get("model") or {}).get("name") or "")[:200] or None,
        "cluster": ((row.request.get("cluster") or {}).get("name") or "")[:200] or None,
        "launcher": launchers[0] if launcher == "any" and launchers else launcher,
    }


def _num_gpus(config: Mapping[str, Any]) -> int:
    if config.get("replicas"):
        return sum(_num_gpus(one) for one in config["replicas"])
    if config.get("stage_groups"):
        return sum(int(one["num_gpus"]) for one in config["stage_groups"])
    names = (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "context_parallel_size",
        "data_parallel_size",
    )
    return prod(int(config.get(name, 1)) for name in names)


def _fill_measured(connection: sa.Connection) -> None:
    """What all measurements of a plan say, plan by plan."""
    query = sa.select(_measurements.c.tenant, _measurements.c.plan_id, _measurements.c.body)
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for tenant, plan_id, body in connection.execute(query):
        found.setdefault((tenant, plan_id), []).append(body)
    for (tenant, plan_id), bodies in found.items():
        steps = [one["step_time_s"] for one in bodies if one.get("step_time_s")]
        peaks = [one["peak_memory_bytes"] for one in bodies if one.get("peak_memory_bytes")]
        same = sa.update(_plans).where(_plans.c.tenant == tenant, _plans.c.plan_id == plan_id)
        connection.execute(
            same.values(
                num_measurements=len(bodies),
                measured_step_time_s=median(steps) if steps else None,
                measured_peak_memory_bytes=max(peaks, default=None),
                measured_out_of_memory=any(one.get("out_of_memory") for one in bodies),
            )
        )
