"""A database as it is after months: a million jobs, if so many are wanted, made by the database itself."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from meshwright.migrations.totals import COLUMNS, counted
from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from tests.served.job_records import TENANT, TINY_PROBLEM

BLOCK = 50_000  # jobs of one transaction
DAY_S = 86_400.0
KEPT_S = 80 * DAY_S  # all jobs ended within this time
FOUND_BY = 20  # jobs that find the same plan
FEW = 10_000  # rows of everything that is not a job's

# One in ten of another tenant, one in a hundred queued, one in fifty failed, one in 25 a point of a sweep.
_JOBS = """
INSERT INTO jobs (id, tenant, state, request, time_limit_s, created_at_s, expires_at_s, started_at_s,
    claimed_at_s, finished_at_s, fence, attempts, progress, answer, cache_key, parent_id, position,
    point, model, owner)
SELECT 'many-' || n, CASE WHEN n % 10 = 3 THEN 'theirs' ELSE :tenant END,
    CASE WHEN n % 100 = 0 AND n < 100000 THEN 'queued' WHEN n % 50 = 1 THEN 'failed' ELSE 'succeeded' END,
    :request, 30, :now - (:all - n) * :each, :now + 86400,
    CASE WHEN n % 100 > 0 OR n >= 100000 THEN :now - (:all - n) * :each END,
    CASE WHEN n % 100 > 0 OR n >= 100000 THEN :now - (:all - n) * :each END,
    CASE WHEN n % 100 > 0 OR n >= 100000 THEN :now - (:all - n) * :each + 1 END,
    1, CASE WHEN n % 100 > 0 OR n >= 100000 THEN 1 ELSE 0 END,
    CAST('{"stage": "done", "explored": 1, "total": 1, "incumbent_step_time_s": 1.0, ' ||
         '"bound_step_time_s": 1.0, "gap": 0.001, "elapsed_s": 1.0}' AS JSON),
    CAST('{"status": "optimal"}' AS JSON), CASE WHEN n % 50 <> 1 THEN 'key-' || (n % 1000) END,
    CASE WHEN n % 25 = 4 THEN 'sweep-' || (n / 10000) END, CASE WHEN n % 25 = 4 THEN n % 10000 END,
    CASE WHEN n % 25 = 4 THEN CAST('{"values": {}, "reused_from": null}' AS JSON) END,
    :model, CASE WHEN n BETWEEN 1 AND :few THEN 'k7' END
FROM numbers ORDER BY 'many-' || n"""
_EVENTS = """
INSERT INTO job_events (job_id, tenant, at_s, state, cancel_requested, progress)
SELECT id, tenant, :now, state, cancel_requested, progress FROM jobs"""
_PLANS = """
INSERT INTO plans (job_id, rank, tenant, plan_id, body, found_at_s, model, cluster, launcher, num_gpus,
    tensor_parallel_size, pipeline_parallel_size, data_parallel_size, micro_batch_size, step_time_s,
    tokens_per_s_per_gpu, mfu, peak_memory_bytes, out_of_memory_probability, num_measurements,
    superseded_at_s)
SELECT 'many-' || n, 1, CASE WHEN n % 10 = 3 THEN 'theirs' ELSE :tenant END,
    'plan-' || (n % (1 + :all / :found_by)), CAST('{"plan_id": "none", "rank": 1}' AS JSON),
    :now - (:all - n) * :each + 1, 'model-' || (n % 7), 'dgx-h100', 'megatron-lm', 8 * (1 + n % 64),
    8, 1, 1 + n % 64, 1, 1 + (n * 7919 % 100000) / 1000.0, 100.0 + n % 1000, 0.4, 1000000 * (n % 70000),
    0.001, 0,
    lead(:now - (:all - n) * :each + 1) OVER (
        PARTITION BY n % 10 = 3, n % (1 + :all / :found_by) ORDER BY n)
FROM numbers WHERE (n % 100 > 0 OR n >= 100000) AND n % 50 <> 1"""
_KEYS = """
INSERT INTO idempotency_keys (tenant, key, body_sha256, job_id, created_at_s)
SELECT CASE WHEN n % 10 = 3 THEN 'theirs' ELSE :tenant END, 'key-' || n, 'none', 'many-' || n, :now
FROM numbers"""
_OTHERS = (
    """INSERT INTO verifications (tenant, plan_id, state, asked_at_s, claimed_at_s, body)
    SELECT :tenant, 'plan-' || n, 'done', :now - n, :now - n, CAST('{"verdict": "verified"}' AS JSON)
    FROM numbers WHERE n <= :few""",
    """INSERT INTO profiles (tenant, id, kind, title, document, created_at_s, scope, version)
    SELECT :tenant, 'profile-' || n, 'calibration', '', CAST('{}' AS JSON), :now - n, 'scope-' || (n % 5),
    n FROM numbers WHERE n <= :few""",
    """INSERT INTO measurements
    (id, tenant, scope, plan_id, request, config, body, profile_id, created_at_s)
    SELECT 'run-' || n, :tenant, 'scope-' || (n % 5), 'plan-' || n, CAST('{}' AS JSON), CAST('{}' AS JSON),
    CAST('{"step_time_s": 1.5}' AS JSON), 'profile-' || n, :now - n FROM numbers WHERE n <= :few""",
    """INSERT INTO api_keys (id, tenant, scope, title, secret_sha256, created_at_s)
    SELECT 'k' || n, :tenant, 'read', '', 'none', :now - n FROM numbers WHERE n <= :few""",
    """INSERT INTO sessions (token_sha256, key_id, expires_at_s)
    SELECT 'session-' || n, 'k' || n, :now + n FROM numbers WHERE n <= :few""",
    """INSERT INTO audit (tenant, at_s, actor, action, subject, details)
    SELECT :tenant, :now - n, 'me', 'key.create', 'k' || n, CAST('{}' AS JSON)
    FROM numbers WHERE n <= :few""",
    """INSERT INTO definitions (tenant, kind, name, version, document, created_at_s)
    SELECT :tenant, 'model', 'model-' || (n % 1000), 1 + n / 1000, CAST('{}' AS JSON), :now
    FROM numbers WHERE n <= :few AND n < 10000""",
    """INSERT INTO replans (id, tenant, job_id, request, answer, created_at_s)
    SELECT 'replan-' || n, :tenant, 'many-' || n, CAST('{}' AS JSON), CAST('{}' AS JSON), :now - n
    FROM numbers WHERE n <= :few""",
    """INSERT INTO key_usage (tenant, day, key_id, cpu_s, jobs)
    SELECT :tenant, CAST(:now / 86400 AS INTEGER) - n / 100, 'k' || (n % 100), 1.0, 1
    FROM numbers WHERE n <= :few""",
    """INSERT INTO job_labels (job_id, name, value, tenant, created_at_s)
    SELECT 'many-' || n, 'team', 'team-' || (n % 20), :tenant, :now - (:all - n) * :each
    FROM numbers WHERE n <= :few""",
    """INSERT INTO job_labels (job_id, name, value, tenant, created_at_s)
    SELECT 'many-' || n, 'run', 'run-' || n, :tenant, :now - (:all - n) * :each
    FROM numbers WHERE n <= :few""",
)
_NUMBERS = {
    "sqlite": "WITH RECURSIVE numbers(n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers "
    "WHERE n + 1 < :end) ",
    "postgresql": "WITH numbers AS (SELECT n FROM generate_series(CAST(:first AS bigint), :end - 1) AS n) ",
}
_BUILT = {  # what a row costs most for: an index or a trigger, how it is dropped and made again
    "sqlite": "SELECT 'DROP ' || type || ' ' || name, sql FROM sqlite_master "
    "WHERE type IN ('index', 'trigger') AND sql IS NOT NULL",
    "postgresql": "SELECT 'DROP INDEX ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' "
    "AND indexname NOT IN (SELECT conname FROM pg_constraint) "
    "UNION ALL SELECT 'DROP TRIGGER ' || tgname || ' ON ' || tgrelid::regclass, pg_get_triggerdef(oid) "
    "FROM pg_trigger WHERE NOT tgisinternal",
}


def fill(database: Database, num_jobs: int) -> None:
    """Add jobs with their plans, events and keys, and 10 000 of everything else, to an empty database.

    What triggers note row by row is written with the rows. Jobs do not lie in the order of time: updates
    move them.
    """
    migrations.upgrade(database)
    problem = parse_problem(dict(TINY_PROBLEM))
    with database.read() as connection:
        now = {
            "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
            "postgresql": "EXTRACT(EPOCH FROM clock_timestamp())",
        }[database.dialect]
        at_s = float(connection.execute(text(f"SELECT {now}")).scalar_one())
    known = {
        "tenant": TENANT,
        "now": at_s,
        "all": num_jobs,
        "each": KEPT_S / num_jobs,
        "found_by": FOUND_BY,
        "few": min(num_jobs - 1, FEW),
        "request": json.dumps(problem_to_mapping(problem)),
        "model": problem.model.name,
        "first": 0,
        "end": num_jobs,
    }
    with _without_indexes(database):
        if database.dialect == "postgresql":
            with database.write() as connection:  # half of a page is empty, as updates leave it
                connection.exec_driver_sql("ALTER TABLE jobs SET (fillfactor = 45)")
        for first in range(0, num_jobs, BLOCK):
            _run(database, _JOBS, {**known, "first": first, "end": min(first + BLOCK, num_jobs)})
        totals = f"INSERT INTO job_totals ({COLUMNS}) {_sums(database.dialect)}"
        for statement in (_EVENTS, totals, _PLANS, _KEYS, *_OTHERS):
            first = int(statement in _OTHERS)
            _run(database, statement, {**known, "first": first})


@contextmanager
def _without_indexes(database: Database) -> Iterator[None]:
    """Drop indexes and triggers, and make them again: an index is built far faster than row by row."""
    with database.write() as connection:
        built = connection.exec_driver_sql(_BUILT[database.dialect]).all()
        for drop, _ in built:
            connection.exec_driver_sql(drop)
    yield
    with database.write() as connection:
        if database.dialect == "postgresql":
            connection.exec_driver_sql("SET LOCAL maintenance_work_mem = '256MB'")
        for _, make in built:
            connection.exec_driver_sql(make)


def _sums(dialect: str) -> str:
    """Return the query of what all jobs add to the sums over them."""
    sums = "sum(jobs), sum(attempts), sum(lost_leases), solve_bucket, sum(solve_s), gap_bucket, sum(gap)"
    each = f"{counted(dialect, 'jobs', 1)} FROM jobs"
    return f"SELECT state, {sums} FROM ({each}) AS each_job GROUP BY state, solve_bucket, gap_bucket"  # noqa: S608 - constants


def _run(database: Database, statement: str, given: dict[str, object]) -> None:
    """Run one of the statements above, with the parameters that it names."""
    numbers = _NUMBERS[database.dialect]
    if database.dialect == "sqlite":
        statement = statement.replace(" AS JSON", " AS TEXT")
    else:
        statement = statement.replace(":request,", "CAST(:request AS JSON),").replace(
            ":tenant", "CAST(:tenant AS text)"
        )
        for name in ("now", "each"):
            statement = statement.replace(f":{name}", f"CAST(:{name} AS double precision)")
    head, _, rest = statement.partition("SELECT")
    whole = text(f"{head} {numbers} SELECT {rest}")
    with database.write() as connection:
        if database.dialect == "postgresql":  # the rows refer to what is there: no look at each of them
            connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.execute(whole, {name: given[name] for name in whole._bindparams})
