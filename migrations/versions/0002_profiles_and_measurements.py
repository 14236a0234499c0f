"""Profiles that clients store, and what runs of plans really took."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "profiles",
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("gpu", sa.String(64)),
        sa.Column("title", sa.String(200), nullable=False),
        sa.Column("document", sa.JSON, nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_profiles"),
    )
    op.create_index("ix_profiles_id", "profiles", ["id"])
    op.create_index("ix_profiles_tenant_created_at_s_id", "profiles", ["tenant", "created_at_s", "id"])
    op.create_table(
        "measurements",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(64), nullable=False),
        sa.Column("plan_id", sa.String(64), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("body", sa.JSON, nullable=False),
        sa.Column("profile_id", sa.String(32), nullable=False),
        sa.Column("idempotency_key", sa.String(255)),
        sa.Column("created_at_s", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
    )
    op.create_index(
        "ix_measurements_tenant_scope_created_at_s", "measurements", ["tenant", "scope", "created_at_s"]
    )
    op.create_index(
        "ix_measurements_tenant_idempotency_key",
        "measurements",
        ["tenant", "idempotency_key"],
        unique=True,
    )


def downgrade() -> None:
    op.drop_table("measurements")
    op.drop_table("profiles")
