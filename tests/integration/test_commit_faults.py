"""F24: a worker is killed at every step of storing a result, on both databases."""

import signal

import pytest
from sqlalchemy import delete

from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from meshwright.service.jobs.engine import JobEngine
from tests.processes.servers import environment
from tests.processes.warm import run_warm
from tests.reliability.figures import measured
from tests.served.job_records import SUCCESS, add_job, claimed, job_in, let_lease_run_out, num_plans

# BEGIN, (SQLite: its own,) UPDATE jobs, INSERT plans, what is noted of them, COMMIT, after it
STEPS = range(1, 13)


@pytest.fixture(autouse=True)
def _empty(database: Database) -> None:
    with database.write() as connection:
        connection.execute(delete(jobs))


def test_f24_sigkill_at_any_step_of_the_result_commit_leaves_all_or_nothing(
    database: Database, engine: JobEngine
) -> None:
    url = database.url.render_as_string(hide_password=False)
    stored = []
    for step in STEPS:
        job_id = add_job(database, f"job-{step}")
        before = num_plans(database)
        died = run_warm("-m", "tests.processes.dying_writer", url, str(step), env=environment({}))
        assert died.returncode == -signal.SIGKILL
        now = (job_in(database, job_id).state, num_plans(database) - before)
        assert now in {("running", 0), ("succeeded", 2)}
        stored.append(now[0] == "succeeded")
        if now[0] == "running":  # another worker does it again, once
            let_lease_run_out(database)
            assert engine.sweep().requeued == 1
            assert engine.complete(claimed(engine), SUCCESS)
        assert (job_in(database, job_id).state, num_plans(database) - before) == ("succeeded", 2)
    assert stored == sorted(stored)  # nothing before the commit, everything after it
    assert stored[0] is False
    assert stored[-1] is True
    measured(24, "steps at which it was killed", len(stored), on=database.dialect)
    measured(24, "half-stored results", 0, on=database.dialect)
