"""The database keeps fleets from workers of older releases, which would end them as failed.

A worker that knows kinds of jobs writes its fence into ``kind_fence`` in the statement that claims. The
claim of any other worker changes no row of a job with a kind.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None
oldest_code = "0014"

_UNKNOWN = (
    "NEW.kind IS NOT NULL AND OLD.state = 'queued' AND NEW.state = 'running' "
    "AND NEW.kind_fence IS DISTINCT FROM NEW.fence"
)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("kind_fence", sa.Integer))
    if op.get_context().dialect.name == "sqlite":
        unknown = _UNKNOWN.replace("IS DISTINCT FROM", "IS NOT")
        op.execute(
            "CREATE TRIGGER jobs_kind_unknown BEFORE UPDATE OF state ON jobs "
            f"WHEN {unknown} BEGIN SELECT RAISE(IGNORE); END"
        )
        return
    op.execute(
        "CREATE FUNCTION ignore_claim() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER jobs_kind_unknown BEFORE UPDATE OF state ON jobs "
        f"FOR EACH ROW WHEN ({_UNKNOWN}) EXECUTE FUNCTION ignore_claim()"
    )


def downgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TRIGGER jobs_kind_unknown")
    else:
        op.execute("DROP TRIGGER jobs_kind_unknown ON jobs")
        op.execute("DROP FUNCTION ignore_claim")
    op.drop_column("jobs", "kind_fence")
