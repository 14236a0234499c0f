"""A fleet that a worker of an older release tries to claim goes behind its tenant's other jobs.

Such a worker takes the first job of a tenant; a fleet that stays there, which it cannot claim (0026), would
hold up the others for as long as only older workers run.
"""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None
oldest_code = "0014"

_UNKNOWN = (
    "NEW.kind IS NOT NULL AND OLD.state = 'queued' AND NEW.state = 'running' "
    "AND NEW.kind_fence IS NOT NEW.fence"
)
_TO_THE_END = "UPDATE jobs SET priority = 10 WHERE id = OLD.id AND priority < 10;"  # 9 is a request's last


def upgrade() -> None:
    _ignore_claim(_TO_THE_END)


def downgrade() -> None:
    _ignore_claim("")


def _ignore_claim(first: str) -> None:
    """Let the database do something before it ignores a claim by code that knows no kinds."""
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TRIGGER jobs_kind_unknown")
        op.execute(
            "CREATE TRIGGER jobs_kind_unknown BEFORE UPDATE OF state ON jobs "
            f"WHEN {_UNKNOWN} BEGIN {first} SELECT RAISE(IGNORE); END"
        )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION ignore_claim() RETURNS trigger LANGUAGE plpgsql "
        f"AS $$ BEGIN {first} RETURN NULL; END $$"
    )
