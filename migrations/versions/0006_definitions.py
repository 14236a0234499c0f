"""Models and clusters that tenants describe, version by version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "definitions",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
        sa.Column("deleted_at_s", sa.Double),
        sa.PrimaryKeyConstraint("tenant", "kind", "name", "version", name="pk_definitions"),
    )


def downgrade() -> None:
    op.drop_table("definitions")
