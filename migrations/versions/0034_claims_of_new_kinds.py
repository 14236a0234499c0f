"""The database keeps post-training from workers that know fleets alone, and would end it as failed.

A worker that claims only the kinds that it knows writes its fence into kind_fence as a negative number,
but for a fleet, which workers of the release before know too.
"""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None
oldest_code = "0014"

_TO_THE_END = "UPDATE jobs SET priority = 10 WHERE id = OLD.id AND priority < 10;"  # as in 0027
_OF_FLEETS = "NEW.fence"
_OF_KINDS = "(CASE WHEN NEW.kind = 'fleet' THEN NEW.fence ELSE -NEW.fence END)"


def upgrade() -> None:
    _ignore_claims_without(_OF_KINDS)


def downgrade() -> None:
    _ignore_claims_without(_OF_FLEETS)


def _ignore_claims_without(fence: str) -> None:
    """Ignore the claim of a job with a kind, unless it wrote this fence."""
    unknown = "NEW.kind IS NOT NULL AND OLD.state = 'queued' AND NEW.state = 'running' AND NEW.kind_fence "
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TRIGGER jobs_kind_unknown")
        op.execute(
            "CREATE TRIGGER jobs_kind_unknown BEFORE UPDATE OF state ON jobs "
            f"WHEN {unknown} IS NOT {fence} BEGIN {_TO_THE_END} SELECT RAISE(IGNORE); END"
        )
        return
    op.execute("DROP TRIGGER jobs_kind_unknown ON jobs")
    op.execute(
        "CREATE TRIGGER jobs_kind_unknown BEFORE UPDATE OF state ON jobs "
        f"FOR EACH ROW WHEN ({unknown} IS DISTINCT FROM {fence}) EXECUTE FUNCTION ignore_claim()"
    )
