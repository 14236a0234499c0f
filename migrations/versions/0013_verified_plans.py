"""Plans that launchers were asked to build: the queue of those asked for, what was built, and the verdict.

Going back forgets what was built, which can be asked for again; nothing else hangs on it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "verifications",
        sa.Column("tenant", sa.String(64), primary_key=True),
        sa.Column("plan_id", sa.String(64), primary_key=True),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("asked_at_s", sa.Double, nullable=False),
        sa.Column("claimed_at_s", sa.Double),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("body", sa.JSON),
    )
    op.create_index("ix_verifications_state_asked_at_s", "verifications", ["state", "asked_at_s"])
    op.add_column("plans", sa.Column("verified", sa.String(32)))


def downgrade() -> None:
    op.drop_column("plans", "verified")
    op.drop_index("ix_verifications_state_asked_at_s", "verifications")
    op.drop_table("verifications")
