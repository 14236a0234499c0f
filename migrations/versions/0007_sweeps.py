"""Jobs that are many searches: a parent and its children; idempotency keys of whatever a POST makes.

Additive: what an older version reads and writes is still there and means the same.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("parent_id", sa.String(32)))
    op.add_column("jobs", sa.Column("position", sa.Integer))
    op.add_column("jobs", sa.Column("point", sa.JSON))
    op.add_column("jobs", sa.Column("num_children", sa.Integer))
    op.create_index("ix_jobs_parent_id_position", "jobs", ["parent_id", "position"])
    with op.batch_alter_table("idempotency_keys") as keys:
        keys.alter_column("job_id", existing_type=sa.String(32), nullable=True)
        keys.add_column(sa.Column("subject", sa.String(64)))


def downgrade() -> None:
    op.execute("DELETE FROM idempotency_keys WHERE job_id IS NULL")
    with op.batch_alter_table("idempotency_keys") as keys:
        keys.drop_column("subject")
        keys.alter_column("job_id", existing_type=sa.String(32), nullable=False)
    # An older version would search for the parent as if it were a problem; its children stay jobs.
    op.execute("DELETE FROM jobs WHERE num_children IS NOT NULL")
    op.drop_index("ix_jobs_parent_id_position", "jobs")
    for column in ("num_children", "point", "position", "parent_id"):
        op.drop_column("jobs", column)
