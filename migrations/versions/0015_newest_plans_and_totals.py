"""The database itself notes which plans a newer job found again, and the sums over all jobs.

Only adds, so that the release before it goes on. What was there before is filled in by 0016.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from meshwright.migrations.totals import COLUMNS, counted

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
oldest_code = "0014"  # the revision of the oldest code that can live with this schema

# A sweep only ranks plans of its points. A plan that an older job found too is listed from the newer one.
_ADDED = """
UPDATE plans SET superseded_at_s = 0 WHERE job_id = NEW.job_id AND rank = NEW.rank
AND EXISTS (SELECT 1 FROM jobs WHERE id = NEW.job_id AND num_children IS NOT NULL);
UPDATE plans SET superseded_at_s = (
    SELECT min(other.found_at_s) FROM plans AS other
    WHERE other.tenant = NEW.tenant AND other.plan_id = NEW.plan_id AND other.superseded_at_s IS NULL
    AND (other.found_at_s, other.job_id) > (NEW.found_at_s, NEW.job_id)
) WHERE job_id = NEW.job_id AND rank = NEW.rank AND superseded_at_s IS NULL;
UPDATE plans SET superseded_at_s = NEW.found_at_s
WHERE tenant = NEW.tenant AND plan_id = NEW.plan_id AND superseded_at_s IS NULL
AND (found_at_s, job_id) < (NEW.found_at_s, NEW.job_id) AND EXISTS (
    SELECT 1 FROM plans AS own
    WHERE own.job_id = NEW.job_id AND own.rank = NEW.rank AND own.superseded_at_s IS NULL
);"""
_REMOVED = """
UPDATE plans SET superseded_at_s = NULL
WHERE tenant = OLD.tenant AND plan_id = OLD.plan_id AND superseded_at_s > 0 AND NOT EXISTS (
    SELECT 1 FROM plans AS other
    WHERE other.tenant = OLD.tenant AND other.plan_id = OLD.plan_id AND other.superseded_at_s IS NULL
) AND (found_at_s, job_id) = (
    SELECT last.found_at_s, last.job_id FROM plans AS last
    WHERE last.tenant = OLD.tenant AND last.plan_id = OLD.plan_id AND last.superseded_at_s > 0
    ORDER BY last.found_at_s DESC, last.job_id DESC LIMIT 1
);"""
_WAS_NEWEST = "OLD.superseded_at_s IS NULL"
# Two jobs that end at once do not see each other's plans: those of a tenant are added, or removed with
# their job, one transaction at a time. A delete waits before it locks a plan: a job that ends updates them.
_ONE_AT_A_TIME = "PERFORM pg_advisory_xact_lock(hashtextextended('plans of ' || {}.tenant, 0));"
_COUNTED = "OLD.state <> NEW.state OR OLD.attempts <> NEW.attempts"


def upgrade() -> None:
    _lock_jobs("SHARE ROW EXCLUSIVE")
    op.create_table("schema_compatibility", sa.Column("oldest_code", sa.String(32), primary_key=True))
    op.add_column("plans", sa.Column("superseded_at_s", sa.Double))
    op.create_table(
        "job_totals",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
        ),
        sa.Column("state", sa.String(16), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("jobs", "attempts", "lost_leases")),
        sa.Column("solve_bucket", sa.Integer),
        sa.Column("solve_s", sa.Double, nullable=False),
        sa.Column("gap_bucket", sa.Integer),
        sa.Column("gap", sa.Double, nullable=False),
    )
    if op.get_context().dialect.name == "sqlite":
        _triggers_of_sqlite()
    else:
        _triggers_of_postgresql()


def downgrade() -> None:
    sqlite = op.get_context().dialect.name == "sqlite"
    _lock_jobs("ACCESS EXCLUSIVE")
    for table, name in _TRIGGERS:
        op.execute(f"DROP TRIGGER {name}" + ("" if sqlite else f" ON {table}"))
    if not sqlite:
        op.execute("DROP TRIGGER plans_awaited ON jobs")
        for name in ("note_added_plan", "note_removed_plan", "note_job_total", "await_plans"):
            op.execute(f"DROP FUNCTION {name}")
    op.drop_table("job_totals")
    op.drop_column("plans", "superseded_at_s")
    op.drop_table("schema_compatibility")


def _lock_jobs(mode: str) -> None:
    """Lock ``jobs`` before ``plans``, as every transaction of the service does."""
    if op.get_context().dialect.name != "sqlite":
        op.execute(f"LOCK TABLE jobs IN {mode} MODE")


_TRIGGERS = (
    ("plans", "plans_added"),
    ("plans", "plans_removed"),
    ("jobs", "job_total_added"),
    ("jobs", "job_total_changed"),
    ("jobs", "job_total_removed"),
)


def _triggers_of_sqlite() -> None:
    op.execute(f"CREATE TRIGGER plans_added AFTER INSERT ON plans BEGIN {_ADDED} END")
    op.execute(
        f"CREATE TRIGGER plans_removed AFTER DELETE ON plans WHEN {_WAS_NEWEST} BEGIN {_REMOVED} END"
    )
    new, old = _total("sqlite", "NEW", 1), _total("sqlite", "OLD", -1)
    op.execute(f"CREATE TRIGGER job_total_added AFTER INSERT ON jobs BEGIN {new}; END")
    op.execute(
        "CREATE TRIGGER job_total_changed AFTER UPDATE OF state, attempts ON jobs "
        f"WHEN {_COUNTED} BEGIN {old}; {new}; END"
    )
    op.execute(f"CREATE TRIGGER job_total_removed AFTER DELETE ON jobs BEGIN {old}; END")


def _triggers_of_postgresql() -> None:
    new, old = _total("postgresql", "NEW", 1), _total("postgresql", "OLD", -1)
    bodies = {
        "note_added_plan": _ONE_AT_A_TIME.format("NEW") + _ADDED,
        "note_removed_plan": _REMOVED,
        "note_job_total": f"IF TG_OP <> 'INSERT' THEN {old}; END IF; "
        f"IF TG_OP <> 'DELETE' THEN {new}; END IF;",
    }
    for name, body in bodies.items():
        op.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {body} RETURN NULL; END $$"
        )
    op.execute(
        "CREATE FUNCTION await_plans() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {_ONE_AT_A_TIME.format('OLD')} RETURN OLD; END $$"
    )
    each = "FOR EACH ROW {} EXECUTE FUNCTION {}()"
    op.execute(f"CREATE TRIGGER plans_added AFTER INSERT ON plans {each.format('', 'note_added_plan')}")
    op.execute(
        "CREATE TRIGGER plans_removed AFTER DELETE ON plans "
        + each.format(f"WHEN ({_WAS_NEWEST})", "note_removed_plan")
    )
    op.execute(f"CREATE TRIGGER plans_awaited BEFORE DELETE ON jobs {each.format('', 'await_plans')}")
    op.execute(f"CREATE TRIGGER job_total_added AFTER INSERT ON jobs {each.format('', 'note_job_total')}")
    op.execute(
        "CREATE TRIGGER job_total_changed AFTER UPDATE OF state, attempts ON jobs "
        + each.format(f"WHEN ({_COUNTED})", "note_job_total")
    )
    op.execute(f"CREATE TRIGGER job_total_removed AFTER DELETE ON jobs {each.format('', 'note_job_total')}")


def _total(dialect: str, row: str, sign: int) -> str:
    return f"INSERT INTO job_totals ({COLUMNS}) {counted(dialect, row, sign)}"
