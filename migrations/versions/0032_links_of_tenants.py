"""The links of a tenant have an index, and so have those that a key made."""

from __future__ import annotations

from meshwright.migrations.steps import add_index, drop_index, outside_transactions

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None
oldest_code = "0014"

_INDEXES = {
    "ix_share_links_tenant_created_at_s_id": ["tenant", "created_at_s", "id"],
    "ix_share_links_key_id": ["key_id"],
}


def upgrade() -> None:
    with outside_transactions():
        for name, columns in _INDEXES.items():
            add_index(name, "share_links", columns)


def downgrade() -> None:
    with outside_transactions():
        for name in _INDEXES:
            drop_index(name, "share_links")
