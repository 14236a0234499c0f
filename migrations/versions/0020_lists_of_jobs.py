"""Lists of jobs by model and by owner have indexes; older jobs get the name of their model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context, op

from meshwright.migrations.steps import add_index, drop_index, outside_transactions

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None
oldest_code = "0014"

_BATCH = 1_000  # jobs of one statement
_ADDED = tuple(
    (f"ix_jobs_submitted_by_{name}", ["tenant", name, "created_at_s", "id"]) for name in ("model", "owner")
)
_MODEL = {
    "sqlite": "substr(json_extract(request, '$.model.name'), 1, 200)",
    "postgresql": "left(request #>> '{model,name}', 200)",
}
_NEXT = sa.text("SELECT id FROM jobs WHERE id > :after ORDER BY id LIMIT :batch").bindparams(batch=_BATCH)


def upgrade() -> None:
    with outside_transactions():
        _fill()
        for name, columns in _ADDED:
            add_index(name, "jobs", columns, where="parent_id IS NULL")


def downgrade() -> None:
    with outside_transactions():
        for name, _ in _ADDED:
            drop_index(name, "jobs")


def _fill() -> None:
    dialect = op.get_context().dialect.name
    fill = f"UPDATE jobs SET model = {_MODEL[dialect]} WHERE model IS NULL"  # noqa: S608 - constants
    if context.is_offline_mode() or dialect == "sqlite":
        op.execute(fill)
        return
    connection, after = op.get_bind(), ""
    while found := connection.execute(_NEXT, {"after": after}).scalars().all():
        connection.execute(sa.text(f"{fill} AND id = ANY(:ids)"), {"ids": list(found)})
        after = found[-1]
