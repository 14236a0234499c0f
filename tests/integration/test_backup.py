"""Copies of the records while a server writes to them, and what comes back."""

import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from meshwright.service.db.backup import BackupError, back_up, restore
from meshwright.service.db.database import Database
from tests.processes.servers import environment, serving
from tests.processes.warm import run_warm
from tests.served.job_records import add_job

PROBLEM = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 4},
    "workload": {"global_batch_size": 256, "seq_length": 8192},
}


def db(*words: str, url: str) -> subprocess.CompletedProcess[str]:
    return run_warm("-m", "meshwright", "db", *words, "--database-url", url, env=environment({}))


def test_a_copy_made_under_load_is_whole_and_serves_again(tmp_path: Path) -> None:
    file, copy = tmp_path / "meshwright.db", tmp_path / "copy.db"
    url = f"sqlite:///{file}"
    with serving({"database_url": url, "workers": "0"}) as server:
        accepted = [server.post_job(PROBLEM, params={"fresh": "true"})["id"] for _ in range(20)]
        stop = threading.Event()

        def keep_writing() -> None:
            while not stop.is_set():
                server.post_job(PROBLEM, params={"fresh": "true"})

        writer = threading.Thread(target=keep_writing)
        writer.start()
        made = db("backup", str(copy), url=url)
        stop.set()
        writer.join()
        assert made.returncode == 0, made.stderr
        refused = db("restore", str(copy), url=url)
        error, tip = refused.stderr.splitlines()
        assert (refused.returncode, tip) == (2, "tip: meshwright db restore --help")
        assert f"already served by process {server.process.pid}" in error
        lost = server.post_job(PROBLEM, params={"fresh": "true"})["id"]
    assert db("restore", str(copy), url=url).returncode == 0
    with serving({"database_url": url, "workers": "0"}) as again:
        statuses = [httpx.get(f"{again.url}/v1/jobs/{job}").status_code for job in accepted]
        assert set(statuses) == {200}
        assert httpx.get(f"{again.url}/v1/jobs/{lost}").status_code == 404  # it came after the copy


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # its files are looked at
def test_the_log_of_a_killed_server_does_not_reach_the_copy(tmp_path: Path, database: Database) -> None:
    file, copy = Path(str(database.url.database)), tmp_path / "copy.db"
    add_job(database, "kept")
    back_up(file, copy)
    add_job(database, "later")
    database.close()
    leftover = file.with_name(f"{file.name}-wal")
    leftover.write_bytes(b"a log of another file")
    restore(copy, file)
    assert not leftover.exists()
    again = Database(str(database.url))
    with again.read() as connection:
        assert connection.exec_driver_sql("SELECT id FROM jobs").scalars().all() == ["kept"]
    again.close()


@pytest.mark.parametrize("content", [None, b"", b"no database", b"SQLite format 3\0" + bytes(4096)])
def test_what_is_no_copy_is_refused_and_the_records_stay(tmp_path: Path, content: bytes | None) -> None:
    file, wrong = tmp_path / "meshwright.db", tmp_path / "wrong.db"
    url = f"sqlite:///{file}"
    assert db("upgrade", url=url).returncode == 0
    before = file.read_bytes()
    if content is not None:
        wrong.write_bytes(content)
    run = db("restore", str(wrong), url=url)
    error, tip = run.stderr.splitlines()
    assert (run.returncode, tip) == (2, "tip: meshwright db restore --help")
    assert error.startswith("error: restore: ")
    assert file.read_bytes() == before
    assert db("check", url=url).returncode == 0
    with pytest.raises(BackupError):
        back_up(wrong, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_check_tells_a_schema_that_is_not_this_versions(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'meshwright.db'}"
    run = db("check", url=url)
    assert run.returncode == 2
    assert "the schema is empty" in run.stderr
    assert "meshwright db upgrade" in run.stderr
