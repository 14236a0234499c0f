"""Sessions are found by their key: a key has only so many, and takes them along when it goes."""

from __future__ import annotations

from meshwright.migrations.steps import add_index, drop_index, outside_transactions

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
oldest_code = "0014"


def upgrade() -> None:
    with outside_transactions():
        add_index("ix_sessions_key_id_expires_at_s", "sessions", ["key_id", "expires_at_s"])


def downgrade() -> None:
    with outside_transactions():
        drop_index("ix_sessions_key_id_expires_at_s", "sessions")
