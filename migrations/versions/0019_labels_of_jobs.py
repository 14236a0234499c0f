"""Jobs get labels, the key of their owner, and the name of their model in a column of its own.

The database writes the name where code does not: the release before this one adds jobs without it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None
oldest_code = "0014"


def upgrade() -> None:
    dialect = op.get_context().dialect.name
    op.add_column("jobs", sa.Column("owner", sa.String(16)))
    op.add_column("jobs", sa.Column("model", sa.String(200)))
    op.add_column("jobs", sa.Column("labels", sa.JSON))
    op.create_table(
        "job_labels",
        sa.Column(
            "job_id",
            sa.String(32),
            sa.ForeignKey("jobs.id", ondelete="CASCADE", name="fk_job_labels_job_id_jobs"),
            primary_key=True,
        ),
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("value", sa.String(63), nullable=False),
        sa.Column("tenant", sa.String(64), nullable=False),
        sa.Column("created_at_s", sa.Double, nullable=False),
    )
    columns = ["tenant", "name", "value", "created_at_s", "job_id"]
    op.create_index(f"ix_job_labels_{'_'.join(columns)}", "job_labels", columns)
    if dialect == "sqlite":
        op.execute(
            "CREATE TRIGGER job_model_added AFTER INSERT ON jobs WHEN NEW.model IS NULL BEGIN UPDATE jobs "
            "SET model = substr(json_extract(request, '$.model.name'), 1, 200) WHERE id = NEW.id; END"
        )
        return
    op.execute(
        "CREATE FUNCTION note_job_model() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.model := left(NEW.request #>> '{model,name}', 200); RETURN NEW; END $$"
    )
    op.execute(
        "CREATE TRIGGER job_model_added BEFORE INSERT ON jobs FOR EACH ROW "
        "WHEN (NEW.model IS NULL) EXECUTE FUNCTION note_job_model()"
    )


def downgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TRIGGER job_model_added")
    else:
        op.execute("DROP TRIGGER job_model_added ON jobs")
        op.execute("DROP FUNCTION note_job_model")
    op.drop_table("job_labels")
    for name in ("labels", "model", "owner"):
        op.drop_column("jobs", name)
