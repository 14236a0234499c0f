"""What a worker does before it takes its first job."""

import subprocess
from pathlib import Path

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from tests.processes.servers import HANGS_S, environment, until, working
from tests.processes.warm import run_warm


def run_worker(*options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return run_warm("-m", "meshwright.workers", *options, env=environment(settings), timeout=HANGS_S)


def test_a_worker_refuses_a_schema_it_was_not_written_for(tmp_path: Path) -> None:
    run = run_worker("--database-url", f"sqlite:///{tmp_path / 'empty.db'}")
    assert run.returncode == 1
    assert run.stderr == "error: the database schema is not current. Run: meshwright db upgrade\n"


def test_a_celery_worker_needs_a_queue(tmp_path: Path) -> None:
    run = run_worker("--celery", "--database-url", f"sqlite:///{tmp_path / 'x.db'}")
    assert (run.returncode, run.stderr) == (
        1,
        "error: --celery needs --redis-url or MESHWRIGHT_REDIS_URL\n",
    )


def test_a_wrong_setting_is_named_with_its_range_and_a_command(tmp_path: Path) -> None:
    run = run_worker(database_url=f"sqlite:///{tmp_path / 'x.db'}", lease_s="-1")
    assert run.returncode == 1
    assert run.stderr == (
        "error: MESHWRIGHT_LEASE_S: -1 is out of range. Allowed: from 1.0 to 31536000. Nearest: 1.0\n"
        "tip: export MESHWRIGHT_LEASE_S=1.0\n"
    )


def test_a_worker_waits_for_a_database_that_is_away(tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "later"
    made.mkdir()
    database = Database(f"sqlite:///{made / 'meshwright.db'}")
    migrations.upgrade(database)
    database.close()
    settings = {"database_url": f"sqlite:///{folder / 'meshwright.db'}"}
    with working(settings, stderr=subprocess.PIPE) as worker:
        assert worker.stderr is not None
        assert "waiting for the database" in worker.stderr.readline()
        made.rename(folder)  # whole: a schema that is half made would be refused
        until(lambda: Path(f"{folder}/meshwright.db-wal").exists())  # it is looking for jobs
        assert worker.poll() is None
