"""Lists of fleets have an index."""

from __future__ import annotations

from meshwright.migrations.steps import add_index, drop_index, outside_transactions

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
oldest_code = "0014"

_NAME = "ix_jobs_fleets"


def upgrade() -> None:
    with outside_transactions():
        add_index(_NAME, "jobs", ["tenant", "created_at_s", "id"], where="kind = 'fleet'")


def downgrade() -> None:
    with outside_transactions():
        drop_index(_NAME, "jobs")
