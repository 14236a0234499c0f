"""Jobs, their plans, and the keys that make submitting twice safe."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

STATES = ("queued", "running", "succeeded", "infeasible", "failed", "cancelled", "expired")


def upgrade() -> None:
    _create_jobs()
    _create_plans()
    _create_idempotency_keys()


def downgrade() -> None:
    op.drop_table("idempotency_keys")
    op.drop_table("plans")
    op.drop_table("jobs")


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("time_limit_s", sa.Double, nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
        sa.Column("expires_at_s", sa.Double, nullable=False),
        sa.Column("started_at_s", sa.Double),
        sa.Column("finished_at_s", sa.Double),
        sa.Column("fence", sa.Integer, nullable=False, server_default="0"),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("worker", sa.String(128)),
        sa.Column("claimed_at_s", sa.Double),
        sa.Column("lease_expires_at_s", sa.Double),
        sa.Column("hinted_at_s", sa.Double),
        sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("progress", sa.JSON),
        sa.Column("answer", sa.JSON),
        sa.Column("problem", sa.JSON),
        sa.Column("cache_key", sa.String(64)),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.CheckConstraint(f"state IN {STATES}", name="ck_jobs_state"),
    )
    op.create_index("ix_jobs_tenant_created_at_s_id", "jobs", ["tenant", "created_at_s", "id"])
    op.create_index("ix_jobs_state_created_at_s", "jobs", ["state", "created_at_s"])
    op.create_index("ix_jobs_tenant_cache_key", "jobs", ["tenant", "cache_key"])


def _create_plans() -> None:
    op.create_table(
        "plans",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("plan_id", sa.String(64), nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "rank", name="pk_plans"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_plans_job_id", ondelete="CASCADE"),
    )
    op.create_index("ix_plans_tenant_plan_id", "plans", ["tenant", "plan_id"])


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("body_sha256", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_idempotency_keys"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name="fk_idempotency_keys_job_id", ondelete="CASCADE"
        ),
    )
