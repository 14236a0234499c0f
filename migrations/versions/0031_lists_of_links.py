"""Lists of a tenant's share links have an index."""

from __future__ import annotations

from meshwright.migrations.steps import add_index, drop_index, outside_transactions

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None
oldest_code = "0014"

_NAME = "ix_share_links_tenant_created_at_s_id"


def upgrade() -> None:
    with outside_transactions():
        add_index(_NAME, "share_links", ["tenant", "created_at_s", "id"])


def downgrade() -> None:
    with outside_transactions():
        drop_index(_NAME, "share_links")
