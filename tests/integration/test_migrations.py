"""Migrations on both databases: there and back, and equal to the tables of the code."""

import subprocess
import sys

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import insert, select, text

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.db.event_records import events_after
from meshwright.service.db.records import find_job
from meshwright.service.db.tables import metadata, verifications
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from tests.reliability.figures import measured
from tests.served.job_records import SUCCESS, TENANT, add_job, claimed, job_in, num_plans
from tests.served.sweep_jobs import a_sweep, children_in


def test_upgrade_downgrade_upgrade(database: Database) -> None:
    assert migrations.current(database) == migrations.head()
    migrations.downgrade(database, "base")
    assert migrations.current(database) is None
    migrations.upgrade(database)
    assert migrations.current(database) == migrations.head()


def test_the_migrations_make_exactly_the_tables_of_the_code(database: Database) -> None:
    options = {"compare_type": True, "compare_server_default": True}
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []


def test_revisions_are_known_by_the_names_of_their_files() -> None:
    scripts = ScriptDirectory(str(migrations._SCRIPTS)).walk_revisions()
    assert migrations.known() == tuple(sorted(one.revision for one in scripts))


def test_a_server_that_finds_its_schema_current_loads_what_it_needs_alone(database: Database) -> None:
    look = (
        "import sys; from meshwright.service.db import migrations; import meshwright.service.api.app;"
        "from meshwright.service.db.database import Database; database = Database(sys.argv[1]);"
        "migrations.upgrade(database); print(migrations.fit(database));"
        "print(*(name for name in ('alembic', 'psycopg') if name in sys.modules))"
    )
    url = database.url.render_as_string(hide_password=False)
    told = subprocess.run([sys.executable, "-c", look, url], capture_output=True, text=True, check=True)
    driver = ["psycopg"] if database.dialect == "postgresql" else []
    assert told.stdout.split() == ["current", *driver]


def test_records_survive_a_downgrade_and_an_upgrade(database: Database) -> None:
    add_job(database)
    engine = JobEngine(database, lease_s=30.0)
    engine.complete(claimed(engine), SUCCESS)
    before = job_in(database)
    migrations.downgrade(database, "0002")
    assert num_plans(database) == 2
    migrations.upgrade(database)
    assert job_in(database) == before
    measured(20, "records changed by there and back", 0, on=database.dialect)
    with database.read() as connection:
        (event,) = events_after(connection, TENANT, "job", after=0, limit=10)
    assert event.state == "succeeded"  # the log of an older schema's job begins where it stands


def test_triggers_that_note_events_are_there_after_every_migration(database: Database) -> None:
    add_job(database, "another")
    with database.read() as connection:
        assert len(events_after(connection, TENANT, "another", after=0, limit=10)) == 1


def test_the_database_names_the_model_of_a_job_that_the_release_before_adds(database: Database) -> None:
    older = insert(metadata.tables["jobs"]).values(
        id="older", tenant=TENANT, state="expired", request={"model": {"name": "llama-3.1-8b" + 200 * "x"}},
        time_limit_s=1.0, created_at_s=0.0, expires_at_s=0.0,
    )  # fmt: skip
    with database.write() as connection:
        connection.execute(older)
    model = job_in(database, "older").model
    assert model is not None
    assert (model[:12], len(model)) == ("llama-3.1-8b", 200)


def test_a_sweeps_points_survive_a_downgrade_as_jobs_of_their_own(
    database: Database, engine: JobEngine
) -> None:
    jobs = Jobs(database, engine, PollingQueue(), queue_timeout_s=60.0)
    parent = jobs.submit(TENANT, a_sweep(global_batch_size=[104, 112], key="of a sweep"))
    children = [child.id for child in children_in(database, parent.id)]
    migrations.downgrade(database, "0006")
    migrations.upgrade(database)
    with database.read() as connection:
        assert find_job(connection, TENANT, parent.id) is None  # an older version could not join it
    assert [(job_in(database, name).state, job_in(database, name).parent_id) for name in children] == [
        ("queued", None)
    ] * 2
    again = jobs.submit(TENANT, a_sweep(global_batch_size=[104, 112], key="of a sweep"))
    assert len(children_in(database, again.id)) == 2


def test_verifications_survive_a_schema_without_fences_and_begin_to_be_counted_anew(
    database: Database,
) -> None:
    rows = [
        {"tenant": TENANT, "plan_id": "ccc", "state": "done", "asked_at_s": 1.0, "claimed_at_s": 2.0,
         "fence": 3, "attempts": 2, "body": {"verdict": "verified"},
         "owner": None},
        {"tenant": TENANT, "plan_id": "ddd", "state": "running", "asked_at_s": 3.0, "claimed_at_s": 4.0,
         "fence": 1, "attempts": 1, "body": None, "owner": None},
    ]  # fmt: skip
    with database.write() as connection:
        connection.execute(insert(verifications), rows)
    migrations.downgrade(database, "0013")
    with database.write() as connection:
        connection.execute(text("UPDATE verifications SET idempotency_key = 'once'"))
    migrations.upgrade(database)
    with database.read() as connection:
        query = select(verifications).order_by(verifications.c.asked_at_s)
        found = [dict(row._mapping) for row in connection.execute(query)]
    assert found == [{**row, "fence": 0, "attempts": 0} for row in rows]
