"""What happened to a job, in order; where its request came from; indexes for quotas and retention.

The database itself writes the events, in the transaction of the change: no code can forget one.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_NOW = {
    "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
    "postgresql": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)",
}
_EVENT = (
    "INSERT INTO job_events (job_id, tenant, at_s, state, cancel_requested, progress) "
    "VALUES (NEW.id, NEW.tenant, {now}, NEW.state, NEW.cancel_requested, NEW.progress);"
)
# Two JSON values of PostgreSQL have no equality; their texts have.
_CHANGED = (
    "OLD.state <> NEW.state OR OLD.cancel_requested <> NEW.cancel_requested "
    "OR CAST(OLD.progress AS TEXT) IS DISTINCT FROM CAST(NEW.progress AS TEXT)"
)
_BEGIN_WITH = (
    "INSERT INTO job_events (job_id, tenant, at_s, state, cancel_requested, progress) "
    "SELECT id, tenant, {now}, state, cancel_requested, progress FROM jobs"
)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("traceparent", sa.String(55)))
    op.add_column("jobs", sa.Column("request_id", sa.String(64)))
    op.create_index("ix_jobs_finished_at_s", "jobs", ["finished_at_s"])
    op.create_index("ix_idempotency_keys_created_at_s", "idempotency_keys", ["created_at_s"])
    op.create_index("ix_idempotency_keys_job_id", "idempotency_keys", ["job_id"])
    op.create_table(
        "job_events",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=True
        ),
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("at_s", sa.Double, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("progress", sa.JSON),
        sa.PrimaryKeyConstraint("id", name="pk_job_events"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_events_job_id", ondelete="CASCADE"),
    )
    op.create_index("ix_job_events_job_id_id", "job_events", ["job_id", "id"])
    dialect = op.get_bind().dialect.name
    op.execute(_BEGIN_WITH.format(now=_NOW[dialect]))
    _create_triggers(dialect)


def downgrade() -> None:
    on_table = " ON jobs" if op.get_bind().dialect.name == "postgresql" else ""
    op.execute(f"DROP TRIGGER jobs_added{on_table}")
    op.execute(f"DROP TRIGGER jobs_changed{on_table}")
    if on_table:
        op.execute("DROP FUNCTION note_job_event")
    op.drop_table("job_events")
    op.drop_index("ix_idempotency_keys_job_id", "idempotency_keys")
    op.drop_index("ix_idempotency_keys_created_at_s", "idempotency_keys")
    op.drop_index("ix_jobs_finished_at_s", "jobs")
    op.drop_column("jobs", "request_id")
    op.drop_column("jobs", "traceparent")


def _create_triggers(dialect: str) -> None:
    """An event for every new job, and for every change that a client can see."""
    event = _EVENT.format(now=_NOW[dialect])
    columns = "state, cancel_requested, progress"
    if dialect == "sqlite":
        changed = _CHANGED.replace("IS DISTINCT FROM", "IS NOT")
        op.execute(f"CREATE TRIGGER jobs_added AFTER INSERT ON jobs BEGIN {event} END")
        op.execute(
            f"CREATE TRIGGER jobs_changed AFTER UPDATE OF {columns} ON jobs "
            f"WHEN {changed} BEGIN {event} END"
        )
        return
    op.execute(
        "CREATE FUNCTION note_job_event() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {event} RETURN NULL; END $$"
    )
    call = "FOR EACH ROW {when} EXECUTE FUNCTION note_job_event()"
    op.execute(f"CREATE TRIGGER jobs_added AFTER INSERT ON jobs {call.format(when='')}")
    op.execute(
        f"CREATE TRIGGER jobs_changed AFTER UPDATE OF {columns} ON jobs "
        f"{call.format(when=f'WHEN ({_CHANGED})')}"
    )
