"""Every list has an index, and rows from before 0015 are filled in, while the service runs.

On PostgreSQL each statement commits by itself; what an interrupted run has done is done again, or skipped.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from meshwright.migrations.steps import add_index, drop_index, outside_transactions
from meshwright.migrations.totals import COLUMNS, counted

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
oldest_code = "0014"

_BATCH = 1_000  # plans of one statement
_SORTED = (
    "found_at_s",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "peak_memory_bytes",
    "out_of_memory_probability",
    "num_gpus",
    "cost",
    "measured_step_time_s",
    "measured_peak_memory_bytes",
)
_ADDED = (
    ("ix_jobs_submitted", "jobs", ["tenant", "created_at_s", "id"], "parent_id IS NULL"),
    ("ix_jobs_submitted_by_state", "jobs", ["tenant", "state", "created_at_s", "id"], "parent_id IS NULL"),
    ("ix_jobs_answered", "jobs", ["tenant", "cache_key", "finished_at_s"], "cache_key IS NOT NULL"),
    ("ix_jobs_queued", "jobs", ["created_at_s"], "state = 'queued'"),
    ("ix_plans_newest", "plans", ["tenant", "plan_id"], "superseded_at_s IS NULL"),
    ("ix_plans_superseded", "plans", ["tenant", "superseded_at_s"], "superseded_at_s IS NOT NULL"),
    *(
        (
            f"ix_plans_by_{name}",
            "plans",
            ["tenant", name, "job_id", "rank"],
            f"superseded_at_s IS NULL AND {name} IS NOT NULL",
        )
        for name in _SORTED
    ),
)
# Those that the indexes above replace serve no query of any release better.
_REPLACED = (
    ("ix_jobs_tenant_created_at_s_id", "jobs", ["tenant", "created_at_s", "id"]),
    ("ix_jobs_state_created_at_s", "jobs", ["state", "created_at_s"]),
    ("ix_jobs_tenant_cache_key", "jobs", ["tenant", "cache_key"]),
    ("ix_plans_tenant_found_at_s", "plans", ["tenant", "found_at_s"]),
    ("ix_plans_tenant_step_time_s", "plans", ["tenant", "step_time_s"]),
    ("ix_plans_tenant_measured_step_time_s", "plans", ["tenant", "measured_step_time_s"]),
)
# Plans of one id are in one batch: a later one of them supersedes an earlier one.
_FILL = """UPDATE plans SET superseded_at_s = found.at_s FROM (
    SELECT plans.job_id, plans.rank,
           CASE WHEN jobs.num_children IS NOT NULL THEN 0
                ELSE lead(plans.found_at_s) OVER (
                    PARTITION BY plans.tenant, plans.plan_id, jobs.num_children IS NOT NULL
                    ORDER BY plans.found_at_s, plans.job_id) END AS at_s
    FROM plans JOIN jobs ON jobs.id = plans.job_id {}
) AS found WHERE plans.job_id = found.job_id AND plans.rank = found.rank
AND found.at_s IS NOT NULL AND plans.superseded_at_s IS NULL"""
_SOME = "WHERE plans.tenant = :tenant AND plans.plan_id = ANY(:plan_ids)"
_NEXT = sa.text("""SELECT tenant, plan_id FROM plans WHERE (tenant, plan_id) > (:tenant, :plan_id)
    ORDER BY tenant, plan_id LIMIT :batch""").bindparams(batch=_BATCH)
_SUMS = "sum(jobs), sum(attempts), sum(lost_leases), solve_bucket, sum(solve_s), gap_bucket, sum(gap)"
# One statement reads all jobs, and all that the triggers have counted since 0015, at one moment.
_COUNT = f"""INSERT INTO job_totals ({COLUMNS})
SELECT state, {_SUMS} FROM (
    {{}} FROM jobs
    UNION ALL
    SELECT state, -jobs, -attempts, -lost_leases, solve_bucket, -solve_s, gap_bucket, -gap FROM job_totals
) AS parts GROUP BY state, solve_bucket, gap_bucket HAVING sum(jobs) <> 0"""  # noqa: S608 - constants


def upgrade() -> None:
    with outside_transactions():
        op.execute(_COUNT.format(counted(op.get_context().dialect.name, "jobs", 1)))
        _fill()
        for name, table, columns, where in _ADDED:
            add_index(name, table, columns, where=where)
        for name, table, _ in _REPLACED:
            drop_index(name, table)


def downgrade() -> None:
    with outside_transactions():
        for name, table, columns in _REPLACED:
            add_index(name, table, columns)
        for name, table, _, _ in _ADDED:
            drop_index(name, table)


def _fill() -> None:
    if context.is_offline_mode() or op.get_context().dialect.name == "sqlite":
        op.execute(_FILL.format(""))
        return
    connection, after = op.get_bind(), {"tenant": "", "plan_id": ""}
    while found := connection.execute(_NEXT, after).all():
        for tenant in {row.tenant for row in found}:
            plan_ids = list({row.plan_id for row in found if row.tenant == tenant})
            some = {"tenant": tenant, "plan_ids": plan_ids}  # named, or PostgreSQL reads the whole table
            connection.execute(sa.text(_FILL.format(_SOME)), some)
        after = {"tenant": found[-1].tenant, "plan_id": found[-1].plan_id}
