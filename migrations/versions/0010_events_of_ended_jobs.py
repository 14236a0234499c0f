"""Of a job that has ended, most events that only told how far its search was are forgotten.

What is kept: every change of the state, every request to cancel, the last progress, which comes with the
end, and 30 to 60 of the others, evenly spaced, which draw the course of the search. A client that comes
back is told the same story: Last-Event-ID names a moment, not a row that must be there. The database itself
does it, in the transaction of the end, as it writes the events.
"""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TERMINAL = "('succeeded', 'infeasible', 'failed', 'cancelled', 'expired')"
# An event says no more than how far the search was if the one before it tells the same otherwise. Of these
# each ceil(n / 60)-th of n events stays.
_FORGET = """DELETE FROM job_events WHERE id IN (
    SELECT id FROM (
        SELECT id, state, cancel_requested,
               lag(state) OVER told AS state_before, lag(cancel_requested) OVER told AS asked_before,
               row_number() OVER told AS place, count(*) OVER (PARTITION BY job_id) AS number
        FROM job_events WHERE job_id {of} WINDOW told AS (PARTITION BY job_id ORDER BY id)
    ) AS events
    WHERE state = state_before AND cancel_requested = asked_before
    AND place % ((number + 59) / 60) <> 0);"""
_OF_ENDED = f"IN (SELECT id FROM jobs WHERE state IN {_TERMINAL})"  # noqa: S608 - constants
# When the last event is there, not before: on SQLite it would get the number of a forgotten row, which a
# client that follows has seen already.
_WHEN = f"NEW.state IN {_TERMINAL}"


def upgrade() -> None:
    op.execute(_FORGET.format(of=_OF_ENDED).rstrip(";"))
    forget = _FORGET.format(of="= NEW.job_id")
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER job_told AFTER INSERT ON job_events WHEN {_WHEN} BEGIN {forget} END")
        return
    op.execute(
        "CREATE FUNCTION forget_job_progress() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {forget} RETURN NULL; END $$"
    )
    op.execute(
        f"CREATE TRIGGER job_told AFTER INSERT ON job_events FOR EACH ROW WHEN ({_WHEN}) "
        "EXECUTE FUNCTION forget_job_progress()"
    )


def downgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER job_told")
        return
    op.execute("DROP TRIGGER job_told ON job_events")
    op.execute("DROP FUNCTION forget_job_progress")
