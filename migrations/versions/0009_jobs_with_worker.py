"""Who runs how much is counted from an index of its own, however many sweeps are open."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_HAS_WORKER = sa.text("state = 'running' AND num_children IS NULL")


def upgrade() -> None:
    columns = ["state", "tenant", "num_children"]
    op.create_index(
        "ix_jobs_with_worker", "jobs", columns, sqlite_where=_HAS_WORKER, postgresql_where=_HAS_WORKER
    )


def downgrade() -> None:
    op.drop_index("ix_jobs_with_worker", "jobs")
