"""Read-only links to answers, for people without a key; each goes with its job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
oldest_code = "0014"


def upgrade() -> None:
    op.create_table(
        "share_links",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column(
            "job_id",
            sa.String(32),
            sa.ForeignKey("jobs.id", ondelete="CASCADE", name="fk_share_links_job_id_jobs"),
            nullable=False,
        ),
        sa.Column("key_id", sa.String(16)),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
        sa.Column("expires_at_s", sa.Double, nullable=False),
    )
    op.create_index(
        "ix_share_links_job_id_created_at_s_id", "share_links", ["job_id", "created_at_s", "id"]
    )


def downgrade() -> None:
    op.drop_table("share_links")
