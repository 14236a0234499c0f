"""``meshwright doctor``: what it finds, and that it says what to do."""

from pathlib import Path

import pytest
from sqlalchemy import insert

from meshwright.service.cli.doctor import Finding, findings
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import workers
from meshwright.service.settings import Settings
from meshwright.solver.answer import version_of
from tests.processes.servers import free_port
from tests.served.job_records import add_job


def found_in(settings: Settings) -> dict[str, Finding]:
    return {one.about: one for one in findings(settings)}


def test_a_service_without_workers_is_told_to_start_one(database: Database) -> None:
    found = found_in(Settings(database_url=str(database.url)))
    assert {one.state for name, one in found.items() if name not in {"workers", "open files"}} == {"ok"}
    assert "meshwright worker" in found["workers"].action
    add_job(database)
    assert "start a worker" in found_in(Settings(database_url=str(database.url)))["queue"].action


def test_workers_of_another_version_are_named(database: Database) -> None:
    for name, version in (("a:1", version_of("meshwright")), ("b:2", "0.0.9")):
        row = {
            "name": name,
            "kind": "search",
            "version": version,
            "started_at_s": now_s(),
            "seen_at_s": now_s(),
        }
        with database.write() as connection:
            connection.execute(insert(workers).values(row))
    assert "0.0.9" in found_in(Settings(database_url=str(database.url)))["workers"].words


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "none.db"
    found = found_in(Settings(database_url=f"sqlite:///{path}"))
    assert found["database"].state == "wrong"
    assert not path.exists()


@pytest.mark.parametrize("what", ["empty", "redis"])
def test_what_is_wrong_has_a_command(tmp_path: Path, database: Database, what: str) -> None:
    if what == "empty":
        (tmp_path / "empty.db").touch()
        one = found_in(Settings(database_url=f"sqlite:///{tmp_path / 'empty.db'}"))["schema"]
        assert (one.state, one.action) == ("wrong", "meshwright db upgrade")
    else:
        url = f"redis://127.0.0.1:{free_port()}/0"
        one = found_in(Settings(database_url=str(database.url), redis_url=url))["redis"]
        assert (one.state, "workers poll" in one.words) == ("look", True)
