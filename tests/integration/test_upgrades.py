"""Upgrades while the service runs, and the way back, on both databases."""

import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from fastapi.testclient import TestClient
from sqlalchemy import Connection, func, inspect, select, text, update
from sqlalchemy.exc import ProgrammingError

from meshwright.service.api.app import create_app
from meshwright.service.db import metric_records, migrations
from meshwright.service.db.database import Database
from meshwright.service.db.metric_records import GAP_BOUNDS, SOLVE_BOUNDS_S, fold_totals, job_figures
from meshwright.service.db.records import find_job
from meshwright.service.db.tables import job_totals, jobs, metadata, plans
from meshwright.service.errors import ServerStartError
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.jobs.retention import Retention
from meshwright.service.jobs.states import Outcome
from meshwright.service.serving.serve import _prepare_schema
from meshwright.service.settings import Settings
from meshwright.workers.__main__ import _require_schema
from tests.processes.servers import environment, until
from tests.processes.warm import run_warm
from tests.reliability.figures import measured
from tests.served.job_records import SUCCESS, TENANT, add_job, claimed
from tests.served.sweep_jobs import a_sweep

NEXT = "9999"  # a revision that this release does not know
RULES = Path(__file__).parents[2]  # the folder with those of the linter


@pytest.fixture(autouse=True)
def _without_quotas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim without asking for CPU seconds: schemas before 0021 count none."""
    monkeypatch.setattr(JobEngine, "_over_quota", lambda _engine, _tenant: [])


@pytest.fixture
def clean(database: Database) -> Iterator[Database]:
    """A database without rows, at this release's schema, and again afterwards."""
    with database.write() as connection:
        connection.execute(text("DELETE FROM jobs"))
        connection.execute(text("DELETE FROM job_totals"))
    yield database
    with database.write() as connection:
        if migrations._current(connection) == NEXT:
            migrated_elsewhere(connection, oldest_code="0014", revision=migrations.head())


def migrated_elsewhere(connection: Connection, *, oldest_code: str, revision: str = NEXT) -> None:
    """As a newer release leaves the schema after its migrations."""
    connection.execute(text("UPDATE alembic_version SET version_num = :one"), {"one": revision})
    connection.execute(text("UPDATE schema_compatibility SET oldest_code = :one"), {"one": oldest_code})


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return run_warm("-m", "meshwright", *words, env=environment({}))


def url_of(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


def test_f25_a_schema_that_a_newer_release_calls_compatible_is_served(clean: Database) -> None:
    with clean.write() as connection:
        migrated_elsewhere(connection, oldest_code=migrations.head())
    settings = Settings(database_url=url_of(clean))
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["migration"]) == (200, "newer")
    _prepare_schema(settings)  # a server of this release starts, and changes nothing
    checked = run("db", "check", "--database-url", url_of(clean))
    assert f"revision {NEXT}. This version ({migrations.head()}) can serve it" in checked.stdout
    assert run("db", "upgrade", "--database-url", url_of(clean)).returncode == 0
    assert migrations.current(clean) == NEXT
    measured(25, "servers not ready for a newer, compatible schema", 0, on=clean.dialect)


def test_f25_a_schema_that_leaves_this_release_behind_is_refused_with_the_way_back(clean: Database) -> None:
    with clean.write() as connection:
        migrated_elsewhere(connection, oldest_code="9998")
    settings = Settings(database_url=url_of(clean))
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["migration"]) == (503, "unsupported")
    advice = f"run with that release: meshwright db downgrade {migrations.head()}"
    with pytest.raises(ServerStartError, match=advice):
        _prepare_schema(settings)
    for word in ("check", "upgrade"):
        refused = run("db", word, "--database-url", url_of(clean))
        assert refused.returncode == 2
        assert advice in refused.stderr
    back = run("db", "downgrade", "0014", "--database-url", url_of(clean))
    assert (back.returncode, "with that release" in back.stderr) == (2, True)


def test_a_worker_starts_while_another_process_finishes_the_migration(
    clean: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema is read once: a worker serves it, or is given advice on what it read."""
    read = migrations._current
    revisions = iter(("0016", migrations.head(), migrations.head()))
    monkeypatch.setattr(migrations, "_current", lambda _connection: next(revisions))
    with pytest.raises(SystemExit, match=r"not current. Run: meshwright db upgrade"):
        _require_schema(clean, threading.Event())
    _require_schema(clean, threading.Event())
    monkeypatch.setattr(migrations, "_current", read)


def test_f25_the_way_back_is_a_command(clean: Database) -> None:
    add_job(clean, "kept")
    gone = run("db", "downgrade", "0014", "--database-url", url_of(clean))
    assert (gone.returncode, "revision 0014" in gone.stdout) == (0, True)
    wrong = run("db", "downgrade", "0099", "--database-url", url_of(clean))
    assert "0099: no such revision. Allowed: base, 0001" in wrong.stderr
    newer = run("db", "downgrade", "0016", "--database-url", url_of(clean))
    assert "the schema is at 0014, which is older" in newer.stderr
    assert run("db", "upgrade", "--database-url", url_of(clean)).returncode == 0
    assert job_count(clean) == 1


def test_every_migration_since_0014_declares_code_that_it_leaves_working() -> None:
    for revision in migrations.known():
        if revision > migrations.LINTED_FROM:
            assert migrations.oldest_code(revision) < revision


OLDER_CLAIM = """
UPDATE jobs SET state = 'running', fence = fence + 1, attempts = attempts + 1, worker = 'older'
WHERE id = (
    SELECT id FROM jobs WHERE state = 'queued' AND tenant = :tenant
    ORDER BY priority, created_at_s, id LIMIT 1
) AND state = 'queued' RETURNING id
"""  # what workers of revisions 0014 to 0022 change, which know no kinds


def test_f29_a_worker_of_an_older_release_never_gets_a_fleet(clean: Database) -> None:
    """Not even one that a worker of this release has given back, or has lost with its lease."""
    engine = JobEngine(clean, lease_s=60.0)
    add_job(clean, "fleet", kind="fleet")

    def claimed_by_older(tenant: str = "default") -> list[str]:
        with clean.write() as connection:
            return list(connection.execute(text(OLDER_CLAIM), {"tenant": tenant}).scalars())

    assert claimed_by_older() == []
    for name in ("search", "last of all"):  # the fleet goes behind its tenant's other jobs
        add_job(clean, name)
    with clean.write() as connection:
        connection.execute(text("UPDATE jobs SET priority = 9 WHERE id = 'last of all'"))
    assert [claimed_by_older() for _ in range(3)] == [["search"], ["last of all"], []]
    with clean.read() as connection:
        shown = find_job(connection, "default", "fleet")
    assert shown is not None
    assert shown.priority == 9  # the last that a request can state
    add_job(clean, "of another tenant", tenant="other")
    assert claimed_by_older("other") == ["of another tenant"]
    first = claimed(engine)
    assert (first.job_id, first.kind) == ("fleet", "fleet")
    with clean.write() as connection:
        connection.execute(text("UPDATE jobs SET state = 'queued', worker = NULL WHERE id = 'fleet'"))
    assert claimed_by_older() == []
    again = claimed(engine)
    assert engine.release(again)
    assert claimed_by_older() == []
    assert engine.complete(claimed(engine), Outcome(state="succeeded", answer={}))
    add_job(clean, "after it")
    assert claimed_by_older() == ["after it"]
    measured(29, "fleets that an older worker got", 0, on=clean.dialect)


def test_f29_workers_get_no_kind_of_job_that_only_a_later_release_knows(clean: Database) -> None:
    """Those that know fleets alone get no post-training, and those of today no kind of tomorrow."""
    of_fleets = OLDER_CLAIM.replace("attempts + 1,", "attempts + 1, kind_fence = fence + 1,")

    def claimed_by_older() -> list[str]:
        with clean.write() as connection:
            return list(connection.execute(text(of_fleets), {"tenant": TENANT}).scalars())

    engine = JobEngine(clean, lease_s=60.0)
    add_job(clean, "roles", kind="post_training")
    assert claimed_by_older() == []
    add_job(clean, "fleet", kind="fleet")
    assert claimed_by_older() == ["fleet"]
    first = claimed(engine)
    assert (first.job_id, first.kind) == ("roles", "post_training")
    assert engine.release(first)
    assert claimed_by_older() == []
    assert engine.complete(claimed(engine), Outcome(state="succeeded", answer={}))
    add_job(clean, "tomorrow", kind="of_tomorrow")
    assert engine.claim_one("w") is None
    add_job(clean, "search")
    assert claimed(engine).job_id == "search"


def job_count(database: Database) -> int:
    with database.read() as connection:
        return connection.scalar(select(func.count()).select_from(jobs)) or 0


def test_the_linter_of_migrations_finds_what_holds_up_a_database_in_use() -> None:
    def lint(statements: str) -> subprocess.CompletedProcess[str]:
        squawk = [f"{sys.prefix}/bin/squawk", "--stdin-filepath", "migrations.sql"]
        return subprocess.run(
            squawk, input=statements, text=True, capture_output=True, check=False, cwd=RULES
        )

    assert lint(migrations.as_sql()).returncode == 0
    for rule, bad in {
        "require-concurrent-index-creation": "CREATE INDEX IF NOT EXISTS x ON jobs (tenant);",
        "ban-drop-column": "ALTER TABLE jobs DROP COLUMN tenant;",
        "adding-not-nullable-field": "ALTER TABLE jobs ALTER COLUMN worker SET NOT NULL;",
    }.items():
        found = lint(bad)
        assert (found.returncode, rule in found.stdout) == (1, True), found.stdout


# --------------------------------------------------------------------------------------------------
# What the triggers keep equals what the rows say.


def counted(connection: Connection) -> dict[str, object]:
    """The figures of all jobs, counted one by one."""
    rows = connection.execute(select(jobs)).all()
    ended = [row for row in rows if row.finished_at_s is not None and row.num_children is None]
    times = [row.finished_at_s - row.started_at_s for row in ended if row.started_at_s is not None]
    gaps = [row.progress["gap"] for row in ended if row.progress and row.progress.get("gap") is not None]
    return {
        "states": {state: sum(row.state == state for row in rows) for state in {row.state for row in rows}},
        "attempts": sum(row.attempts for row in rows),
        "lost": sum(max(0, row.attempts - 1) for row in rows),
        "solve": [sum(one <= bound for one in times) for bound in SOLVE_BOUNDS_S] + [len(times)],
        "gap": [sum(one <= bound for one in gaps) for bound in GAP_BOUNDS] + [len(gaps)],
    }


def kept(connection: Connection) -> dict[str, object]:
    """The same, as the database keeps them."""
    found = job_figures(connection)
    return {
        "states": found.by_state, "attempts": found.attempts, "lost": found.lost_leases,
        "solve": [*found.solve_s.at_most, found.solve_s.count],
        "gap": [*found.gap.at_most, found.gap.count],
    }  # fmt: skip


def newest_by_hand(connection: Connection) -> set[tuple[str, int]]:
    """The plans that lists name: of each id the last found, sweeps left out."""
    query = select(plans, jobs.c.num_children).join(jobs, jobs.c.id == plans.c.job_id)
    newest: dict[tuple[str, str], tuple[float, str, int]] = {}
    for row in connection.execute(query):
        if row.num_children is None:
            place, name = (row.found_at_s, row.job_id, row.rank), (row.tenant, row.plan_id)
            newest[name] = max(newest.get(name, place), place)
    return {(job_id, rank) for _, job_id, rank in newest.values()}


def newest_kept(connection: Connection) -> set[tuple[str, int]]:
    query = select(plans.c.job_id, plans.c.rank).where(plans.c.superseded_at_s.is_(None))
    return {(job_id, rank) for job_id, rank in connection.execute(query)}


def agree(database: Database) -> None:
    with database.read() as connection:
        assert kept(connection) == counted(connection)
        assert newest_kept(connection) == newest_by_hand(connection)


def live(database: Database, number: int, *, seed: int) -> None:
    """Jobs that are queued, run, given back, cancelled, ended with plans that others found, forgotten."""
    draw = random.Random(seed)
    engine = JobEngine(database, lease_s=30.0)
    service = Jobs(database, engine, PollingQueue(), queue_timeout_s=3600.0)
    for step in range(number):
        add_job(database, f"job-{seed}-{step}")
        if step % 5 == 0:
            batches: list[object] = [8 * (1 + draw.randrange(9)), 104]
            service.submit(TENANT, a_sweep(global_batch_size=batches, fresh=True))
        claim = claimed(engine)
        found = [{"plan_id": f"p{draw.randrange(6)}", "rank": rank} for rank in (1,)]
        engine.heartbeat(claim, {"stage": "searching", "gap": draw.choice([None, 0.0, 0.02, 3.0])})
        act = draw.randrange(5)
        if act == 0:
            engine.release(claim)
        elif act == 1:
            engine.cancel(TENANT, claim.job_id)
            engine.release(claim, {"status": "feasible", "plans": found})
        elif act == 2:
            engine.fail(claim, code="x", detail="y")
        else:
            engine.complete(claim, Outcome(state="succeeded", answer={}, plans=found))
        if step % 7 == 0:
            with database.write() as connection:
                fold_totals(connection)
        if step % 9 == 8:
            with database.write() as connection:
                old = select(jobs.c.id).where(jobs.c.finished_at_s.is_not(None)).limit(1)
                name = connection.scalar(old.order_by(func.random()))
                connection.execute(jobs.delete().where(jobs.c.id == name))  # as retention does


def test_the_sums_and_the_newest_plans_are_what_the_rows_say(clean: Database) -> None:
    live(clean, 60, seed=1)
    agree(clean)
    with clean.write() as connection:
        fold_totals(connection)
        assert (connection.scalar(select(func.count()).select_from(job_totals)) or 0) < 60
    agree(clean)


def test_folding_parts_of_a_sum_keeps_what_jobs_alone_do_not_show(
    clean: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one running job with two attempts: -1 job and -1 attempt, +1 and +2, and then +1 and +1."""
    monkeypatch.setattr(metric_records, "FOLDED", 2)
    add_job(clean, "job")
    none = {"solve_s": 0.0, "gap": 0.0}
    with clean.write() as connection:
        connection.execute(jobs.update().values(state="running", attempts=2))
        connection.execute(job_totals.delete())
        for number, attempts, lost in ((-1, -1, 0), (1, 2, 1), (1, 1, 0)):
            part = {"state": "running", "jobs": number, "attempts": attempts, "lost_leases": lost, **none}
            connection.execute(job_totals.insert().values(part))
        for _ in range(3):
            assert kept(connection) == counted(connection)
            fold_totals(connection)
    agree(clean)


def test_rows_from_before_are_filled_in_while_others_are_written(clean: Database) -> None:
    live(clean, 30, seed=2)
    migrations.downgrade(clean, "0014")
    migrations.upgrade(clean, "0015")  # the triggers are there, and what was before them is not filled in
    live_at_0015(clean)
    migrations.upgrade(clean)
    agree(clean)


def live_at_0015(database: Database) -> None:
    """This release writes what came later too: that is there for as long."""
    with database.write() as connection:
        found = inspect(connection)
        present = {column["name"] for column in found.get_columns("jobs")}
        added = [column for column in jobs.columns if column.name not in present]
        later = [table for table in metadata.sorted_tables if not found.has_table(table.name)]
        for column in added:
            kind = column.type.compile(connection.dialect)
            connection.execute(text(f"ALTER TABLE jobs ADD COLUMN {column.name} {kind}"))
        metadata.create_all(connection, tables=later)
    live(database, 20, seed=3)
    with database.write() as connection:
        metadata.drop_all(connection, tables=later)
        for column in added:
            connection.execute(text(f"ALTER TABLE jobs DROP COLUMN {column.name}"))


def test_an_index_build_that_was_interrupted_is_done_again(postgres: Database) -> None:
    migrations.downgrade(postgres, "0015")
    with postgres.read() as connection:
        connection.execute(text("CREATE INDEX ix_jobs_submitted ON jobs (tenant)"))
        broken = "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ix_jobs_submitted'::regclass"
        connection.execute(text(broken))
    migrations.upgrade(postgres)
    with postgres.read() as connection:
        found = text("SELECT indexdef FROM pg_indexes WHERE indexname = 'ix_jobs_submitted'")
        assert "WHERE (parent_id IS NULL)" in connection.execute(found).scalar_one()


# --------------------------------------------------------------------------------------------------
# Locks of a PostgreSQL in use.


@contextmanager
def other(database: Database, options: str) -> Iterator[Database]:
    """Connections to the same database with other patience."""
    url = database.url.update_query_dict({"options": options})
    made = Database(url.render_as_string(hide_password=False))
    try:
        yield made
    finally:
        made.close()


def waits(database: Database) -> bool:
    """Return whether some transaction waits for a lock."""
    query = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with database.read() as connection:
        return bool(connection.scalar(query))


def test_a_plan_that_is_found_again_while_its_newest_job_is_deleted_is_listed_once(
    postgres: Database,
) -> None:
    """Without a lock, the trigger of the delete makes the plans of ``first`` the newest once more."""
    with postgres.write() as connection:
        connection.execute(jobs.delete())
    engine = JobEngine(postgres, lease_s=30.0)
    for name in ("first", "last"):
        add_job(postgres, name)
        engine.complete(claimed(engine), SUCCESS)
    add_job(postgres, "again")
    claim = claimed(engine)
    with ThreadPoolExecutor() as pool:
        with postgres.write() as pruning:
            pruning.execute(jobs.delete().where(jobs.c.id == "last"))
            ending = pool.submit(engine.complete, claim, SUCCESS)
            until(lambda: waits(postgres))
        assert ending.result(timeout=60.0)
    with postgres.read() as connection:
        assert newest_kept(connection) == {("again", 1), ("again", 2)}


@pytest.mark.parametrize(("change", "start"), [("upgrade", "0014"), ("downgrade", "0015")])
def test_a_migration_that_waits_for_jobs_does_not_hold_plans(
    postgres: Database, change: str, start: str
) -> None:
    """A search that ends writes to ``jobs`` first, then to ``plans``."""
    migrations.downgrade(postgres, start)
    end = "0015" if change == "upgrade" else "0014"
    with other(postgres, "-c lock_timeout=60000") as patient, ThreadPoolExecutor() as pool:
        with postgres.write() as ending:
            ending.execute(text("UPDATE jobs SET worker = 'one'"))
            changing = pool.submit(getattr(migrations, change), patient, end)
            until(lambda: waits(postgres))
            ending.execute(text("LOCK TABLE plans IN ROW EXCLUSIVE MODE NOWAIT"))
        changing.result(timeout=60.0)
    migrations.upgrade(postgres)


def test_a_migration_that_a_deadlock_ended_is_run_again(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends the transaction that notices the deadlock: the migration, which looks after 3 s."""
    tries: list[str] = []
    run = command.upgrade

    def counted(config: Config, revision: str) -> None:
        tries.append(revision)
        run(config, revision)

    monkeypatch.setattr(command, "upgrade", counted)
    migrations.downgrade(postgres, "0014")
    with (
        other(postgres, "-c lock_timeout=60000 -c deadlock_timeout=3s") as hasty,
        other(postgres, "-c lock_timeout=60000 -c deadlock_timeout=60s") as patient,
        ThreadPoolExecutor() as pool,
    ):
        with patient.write() as connection:
            connection.execute(text("LOCK TABLE plans IN ROW EXCLUSIVE MODE"))
            upgrading = pool.submit(migrations.upgrade, hasty)
            until(lambda: waits(postgres))
            connection.execute(text("LOCK TABLE jobs IN ROW EXCLUSIVE MODE"))
        upgrading.result(timeout=60.0)
    assert tries == ["head", "head"]
    assert migrations.current(postgres) == migrations.head()


def test_f27_a_prune_that_a_deadlock_with_a_migration_ended_is_run_again(postgres: Database) -> None:
    """PostgreSQL ends the transaction that notices the deadlock: the prune, which looks after 3 s."""
    add_job(postgres, "old")
    with postgres.write() as connection:
        finished = {"state": "failed", "finished_at_s": 0.0}
        connection.execute(update(jobs).where(jobs.c.id == "old").values(finished))
    with (
        other(postgres, "-c lock_timeout=60000 -c deadlock_timeout=3s") as hasty,
        other(postgres, "-c lock_timeout=60000 -c deadlock_timeout=60s") as patient,
        ThreadPoolExecutor() as pool,
    ):
        retention = Retention(hasty, keep_jobs_days=1.0, idempotency_ttl_s=60.0)
        with patient.write() as migration:
            migration.execute(text("LOCK TABLE plans IN ACCESS EXCLUSIVE MODE"))
            pruning = pool.submit(retention.prune)
            until(lambda: waits(postgres))
            migration.execute(text("LOCK TABLE jobs IN SHARE ROW EXCLUSIVE MODE"))
        gone = pruning.result(timeout=60.0).jobs
        assert gone >= 1
        measured(27, "jobs pruned after the deadlock", gone, on="postgresql")
    with postgres.read() as connection:
        assert connection.scalar(select(func.count()).where(jobs.c.id == "old")) == 0


def test_a_failed_index_build_leaves_the_connection_with_its_time_limits(postgres: Database) -> None:
    migrations.downgrade(postgres, "0016")
    with postgres.write() as connection:
        connection.execute(text("ALTER TABLE sessions RENAME TO elsewhere"))
    with other(postgres, "-c lock_timeout=4000 -c statement_timeout=50000") as only:
        with pytest.raises(ProgrammingError, match="sessions"):
            migrations.upgrade(only)
        with only.read() as connection:  # the pool has this one alone
            limits = ("lock_timeout", "statement_timeout")
            shown = [connection.scalar(text(f"SHOW {name}")) for name in limits]
    with postgres.write() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO sessions"))
    migrations.upgrade(postgres)
    assert shown == ["4s", "50s"]
