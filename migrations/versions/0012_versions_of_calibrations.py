"""Calibrations that measurements of one cluster made are the versions of one profile."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_profiles = sa.table("profiles", *map(sa.column, ("tenant", "id", "created_at_s", "scope", "version")))
_measurements = sa.table("measurements", *map(sa.column, ("tenant", "scope", "profile_id")))


def upgrade() -> None:
    op.add_column("profiles", sa.Column("scope", sa.String(64)))
    op.add_column("profiles", sa.Column("version", sa.Integer))
    _number(op.get_bind())
    op.create_index(
        "ix_profiles_tenant_scope_version", "profiles", ["tenant", "scope", "version"], unique=True
    )


def downgrade() -> None:
    op.drop_index("ix_profiles_tenant_scope_version", "profiles")
    op.drop_column("profiles", "version")
    op.drop_column("profiles", "scope")


def _number(connection: sa.Connection) -> None:
    """Number what measurements have made so far, oldest first."""
    same = (_measurements.c.tenant == _profiles.c.tenant) & (_measurements.c.profile_id == _profiles.c.id)
    made = (
        sa.select(_profiles.c.tenant, _profiles.c.id, sa.func.min(_measurements.c.scope).label("scope"))
        .join(_measurements, same)
        .group_by(_profiles.c.tenant, _profiles.c.id, _profiles.c.created_at_s)
        .order_by(_profiles.c.created_at_s, _profiles.c.id)
    )
    count: dict[tuple[str, str], int] = {}
    for row in connection.execute(made).all():
        place = (row.tenant, row.scope)
        count[place] = count.get(place, 0) + 1
        own = sa.update(_profiles).where(_profiles.c.tenant == row.tenant, _profiles.c.id == row.id)
        connection.execute(own.values(scope=row.scope, version=count[place]))
