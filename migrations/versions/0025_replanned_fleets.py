"""A fleet names the fleet that planned it anew."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
oldest_code = "0014"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("replanned_as", sa.String(32)))


def downgrade() -> None:
    op.drop_column("jobs", "replanned_as")
