"""Re-plans stay on record, with the answer that a launcher got; each goes with its job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None
oldest_code = "0014"


def upgrade() -> None:
    op.create_table(
        "replans",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column(
            "job_id",
            sa.String(32),
            sa.ForeignKey("jobs.id", ondelete="CASCADE", name="fk_replans_job_id_jobs"),
            nullable=False,
        ),
        sa.Column("key_id", sa.String(16)),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("answer", sa.JSON, nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
    )
    op.create_index("ix_replans_job_id_created_at_s_id", "replans", ["job_id", "created_at_s", "id"])


def downgrade() -> None:
    op.drop_table("replans")
