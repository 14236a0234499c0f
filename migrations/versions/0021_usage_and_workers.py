"""CPU seconds of each key and day with a limit, and the workers that are alive."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
oldest_code = "0014"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("cpu_s", sa.Double))
    op.add_column("api_keys", sa.Column("max_cpu_s_per_day", sa.Double))
    op.create_table(
        "key_usage",
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("key_id", sa.String(16), primary_key=True),
        sa.Column("cpu_s", sa.Double, nullable=False),
        sa.Column("jobs", sa.Integer, nullable=False),
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(128), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("started_at_s", sa.Double, nullable=False),
        sa.Column("seen_at_s", sa.Double, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("workers")
    op.drop_table("key_usage")
    op.drop_column("api_keys", "max_cpu_s_per_day")
    op.drop_column("jobs", "cpu_s")
