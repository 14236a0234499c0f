"""What a worker does before it takes its first job."""

import subprocess
import sys
import time
from pathlib import Path

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from tests.processes.servers import environment, until, working


def run_worker(*options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "meshwright.workers", *options]
    return subprocess.run(
        command, env=environment(settings), capture_output=True, text=True, check=False, timeout=20
    )


def test_a_worker_refuses_a_schema_it_was_not_written_for(tmp_path: Path) -> None:
    run = run_worker("--database-url", f"sqlite:///{tmp_path / 'empty.db'}")
    assert run.returncode == 1
    assert run.stderr == "error: the database schema is not current; run: meshwright db upgrade\n"


def test_a_celery_worker_needs_a_queue(tmp_path: Path) -> None:
    run = run_worker("--celery", "--database-url", f"sqlite:///{tmp_path / 'x.db'}")
    assert (run.returncode, run.stderr) == (
        1,
        "error: --celery needs --redis-url or MESHWRIGHT_REDIS_URL\n",
    )


def test_a_wrong_setting_is_named_in_one_line(tmp_path: Path) -> None:
    run = run_worker(database_url=f"sqlite:///{tmp_path / 'x.db'}", lease_s="-1")
    assert run.returncode == 1
    assert run.stderr == "error: lease_s: Input should be greater than or equal to 1\n"


def test_a_worker_waits_for_a_database_that_is_away(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    url = f"sqlite:///{folder / 'meshwright.db'}"
    with working({"database_url": url}) as worker:
        time.sleep(1.0)  # it starts, and finds nothing
        folder.mkdir()
        database = Database(url)
        migrations.upgrade(database)
        database.close()
        until(lambda: Path(f"{folder}/meshwright.db-wal").exists())  # it is looking for jobs
        assert worker.poll() is None
