"""Jobs get the title of their question, so that lists name it without reading the question.

Jobs of earlier releases have none: lists call them by their model and cluster.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None
oldest_code = "0014"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("title", sa.String(200)))


def downgrade() -> None:
    op.drop_column("jobs", "title")
