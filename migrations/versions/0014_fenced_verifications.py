"""Verifications that are claimed under a fence and counted; their keys lie with all others.

A key of a request from before may be used again: what it queued is built once more, no more than that.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("fence", "attempts"):
        op.add_column("verifications", sa.Column(name, sa.Integer, nullable=False, server_default="0"))
    op.drop_column("verifications", "idempotency_key")


def downgrade() -> None:
    op.add_column("verifications", sa.Column("idempotency_key", sa.String(255)))
    for name in ("attempts", "fence"):
        op.drop_column("verifications", name)
