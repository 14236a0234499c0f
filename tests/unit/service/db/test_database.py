"""A database of this service, SQLite or PostgreSQL."""

import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import IntegrityError, OperationalError

from meshwright.service.db import migrations
from meshwright.service.db.backup import back_up
from meshwright.service.db.database import Database
from meshwright.service.db.file_lock import owned
from meshwright.service.jobs import claiming


def test_what_is_stored_does_not_reach_the_log_with_an_error_of_the_database(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'm.db'}")
    with pytest.raises(OperationalError) as caught, database.write() as connection:
        connection.execute(text("INSERT INTO nowhere VALUES (:request)"), {"request": "a model of ours"})
    database.close()
    assert "nowhere" in str(caught.value)
    assert "a model of ours" not in str(caught.value)


# Writers of one SQLite file that wait for each other share a commit, and nothing else.

HOW_MANY = 8


def writes(number: int) -> Callable[[Connection], int]:
    def work(connection: Connection) -> int:
        connection.execute(text("INSERT INTO leaders VALUES (:name, 'us', 0)"), {"name": f"role-{number}"})
        return number

    return work


def roles(database: Database) -> set[str]:
    with database.read() as connection:
        return set(connection.execute(text("SELECT role FROM leaders")).scalars())


def at_once(database: Database, works: list[Callable[[Connection], int]]) -> list[Future[int]]:
    """All of them while another thread holds the database, so that they wait for one commit."""
    waiting = database._grouping
    assert waiting is not None
    with ThreadPoolExecutor(len(works)) as threads, database.write():
        found = [threads.submit(database.write_together, work) for work in works]
        while len(waiting._waiting) < len(works):
            threading.Event().wait(0.001)
    return found


def test_what_waits_together_is_committed_together(database: Database) -> None:
    commits: list[Connection] = []
    event.listen(database._engine, "commit", commits.append)
    found = at_once(database, [writes(number) for number in range(HOW_MANY)])
    assert [one.result() for one in found] == list(range(HOW_MANY))
    assert roles(database) == {f"role-{number}" for number in range(HOW_MANY)}
    assert len(commits) == 2  # of the one that held the database, and of the eight


def test_a_refusal_is_its_own(database: Database) -> None:
    def refuses(connection: Connection) -> int:
        writes(99)(connection)
        raise LookupError("no room")

    found = at_once(database, [writes(0), refuses, writes(0), writes(1)])
    assert isinstance(found[1].exception(), LookupError)
    faults = {type(one.exception()) for one in (found[0], found[2])}
    assert faults == {IntegrityError, type(None)}  # the same row twice
    assert found[3].result() == 1
    assert roles(database) == {"role-0", "role-1"}  # and nothing of the one that refused


def test_a_commit_that_fails_keeps_nothing(database: Database) -> None:
    def full(_connection: Connection) -> None:
        raise OSError("the disk is full")

    event.listen(database._engine, "commit", full)
    with pytest.raises(OSError, match="full"):
        database.write_together(writes(0))
    event.remove(database._engine, "commit", full)
    assert roles(database) == set()


def test_a_transaction_that_ends_early_is_a_failure_of_all(database: Database) -> None:
    def ends(connection: Connection) -> int:
        connection.exec_driver_sql("ROLLBACK")  # as SQLite does by itself when the disk is full
        raise OSError("the disk is full")

    found = at_once(database, [writes(1), ends, writes(2)])
    assert [one.exception() is None for one in found] == [False, False, False]
    assert roles(database) == set()


# How SQLite looks for whose turn it is: its own plan of the statement, so not a test of every database.


def test_whose_turn_it_is_is_found_without_a_look_at_any_open_sweep(database: Database) -> None:
    asked = str(claiming._TENANTS_BY_TURN.compile(compile_kwargs={"literal_binds": True}))
    with database.read() as connection:
        steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}").all()
    counted = [step.detail for step in steps if "running" in step.detail]
    assert len(counted) == 1
    assert "COVERING INDEX ix_jobs_with_worker" in counted[0]


def test_a_sqlite_file_its_journals_and_its_copies_are_for_their_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    before = os.umask(0)
    try:
        made = Database(f"sqlite:///{file}")
        migrations.upgrade(made)
        with made.write() as connection:
            connection.exec_driver_sql("UPDATE schema_compatibility SET oldest_code = oldest_code")
            back_up(file, tmp_path / "copy.db")
            found = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.glob("*.db*")}
        made.close()
        assert found == dict.fromkeys(("jobs.db", "jobs.db-wal", "jobs.db-shm", "copy.db"), 0o600)
        file.chmod(0o644)  # of an older release
        with owned(file):
            for one in (file, tmp_path / "jobs.db.lock"):
                assert stat.S_IMODE(one.stat().st_mode) == 0o600
    finally:
        os.umask(before)
