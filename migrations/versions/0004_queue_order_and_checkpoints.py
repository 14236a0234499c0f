"""The order of the queue (priorities, fair turns of tenants), checkpoints, and who sweeps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

ORDER = ["state", "tenant", "priority", "created_at_s", "id"]


def upgrade() -> None:
    op.add_column("jobs", sa.Column("priority", sa.Integer, nullable=False, server_default="5"))
    op.add_column("jobs", sa.Column("checkpoint", sa.JSON))
    op.create_index("ix_jobs_" + "_".join(ORDER), "jobs", ORDER)
    op.create_index("ix_jobs_state_expires_at_s", "jobs", ["state", "expires_at_s"])
    op.create_index("ix_jobs_tenant_claimed_at_s", "jobs", ["tenant", "claimed_at_s"])
    op.create_table(
        "leaders",
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("holder", sa.String(128), nullable=False),
        sa.Column("expires_at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("role", name="pk_leaders"),
    )


def downgrade() -> None:
    op.drop_table("leaders")
    op.drop_index("ix_jobs_tenant_claimed_at_s", "jobs")
    op.drop_index("ix_jobs_state_expires_at_s", "jobs")
    op.drop_index("ix_jobs_" + "_".join(ORDER), "jobs")
    op.drop_column("jobs", "checkpoint")
    op.drop_column("jobs", "priority")
