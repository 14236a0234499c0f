"""The CPU seconds of a day have an index, which the metrics of a service ask for."""

from __future__ import annotations

from meshwright.migrations.steps import add_index, drop_index, outside_transactions

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None
oldest_code = "0014"

_NAME = "ix_key_usage_day"


def upgrade() -> None:
    with outside_transactions():
        add_index(_NAME, "key_usage", ["day"])


def downgrade() -> None:
    with outside_transactions():
        drop_index(_NAME, "key_usage")
