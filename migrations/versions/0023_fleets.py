"""Jobs get a kind: a fleet is a job that plans several on one cluster.

Code from before would end a fleet as failed, as it reads its request as that of a search: 0026 keeps fleets
from it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
oldest_code = "0014"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("kind", sa.String(16)))


def downgrade() -> None:
    op.drop_column("jobs", "kind")
