"""Verifications know the key that asked for them, because their CPU seconds are that key's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None
oldest_code = "0014"


def upgrade() -> None:
    op.add_column("verifications", sa.Column("owner", sa.String(16)))


def downgrade() -> None:
    op.drop_column("verifications", "owner")
