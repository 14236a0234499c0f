"""Sessions of people who signed in to the pages with a key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("token_sha256", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("expires_at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("token_sha256", name="pk_sessions"),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_sessions_key_id", ondelete="CASCADE"),
    )
    op.create_index("ix_sessions_expires_at_s", "sessions", ["expires_at_s"])


def downgrade() -> None:
    op.drop_table("sessions")
