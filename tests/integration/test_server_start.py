"""A server that cannot start says why in one line and leaves nothing running."""

import subprocess
import sys
from pathlib import Path

import pytest

from service.db import migrations
from service.db.database import Database
from tests.servers import environment

SERVE = [sys.executable, "-c", "import sys; from service.cli.main import main; sys.exit(main())", "serve"]


def start(**settings: str) -> str:
    """What a server that refuses to start says."""
    run = subprocess.run(
        SERVE,
        env=environment({"port": "0", "workers": "0", **settings}),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (run.returncode, run.stdout) == (2, ""), run.stderr
    assert run.stderr.startswith("error: ")
    assert run.stderr.count("\n") == 1
    return run.stderr


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "postgresql://host/name"),
        ("postgres://host/name", "sqlite"),
        ("mysql://root:secret@host/name", "sqlite"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:////dev/null/x/y.db", "Not a directory"),
        ("postgresql://nobody:secret@127.0.0.1:1/name", "the database cannot be used"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_in_one_line(url: str, says: str) -> None:
    said = start(database_url=url)
    assert says in said
    assert "secret" not in said


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "with a space.db"
    file.write_text("not a database " * 100)
    assert "file is not a database" in start(database_url=f"sqlite:///{file}")


def test_a_schema_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    database = Database(url)
    migrations.upgrade(database)
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    database.close()
    assert "newer Meshwright" in start(database_url=url)


@pytest.mark.parametrize(
    ("name", "value"), [("grace_s", "inf"), ("lease_s", "0.1"), ("redis_url", "http://host")]
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: str) -> None:
    assert name in start(**{name: value})
