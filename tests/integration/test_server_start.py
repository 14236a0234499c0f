"""A server that cannot start says why in one line and leaves nothing running."""

import re
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis

from meshwright.service.db import migrations
from meshwright.service.db.database import Database
from meshwright.service.jobs.queue import password_refusal
from tests.processes.postgres_server import PostgresServer
from tests.processes.servers import HANGS_S, RedisServer, environment, free_port, serving
from tests.processes.starting import CODES, end_during_start
from tests.processes.warm import run_warm
from tests.served.migrated import migrated


def serve(**settings: str) -> subprocess.CompletedProcess[str]:
    """``meshwright serve`` to its end."""
    return run_warm("-m", "meshwright", "serve", env=environment(settings), timeout=HANGS_S)


def start(**settings: str) -> str:
    """What a server that refuses to start says."""
    run = serve(port="0", workers="0", database_wait_s="0", **settings)
    assert (run.returncode, run.stdout) == (2, ""), run.stderr
    error, *tips = run.stderr.splitlines()
    assert error.startswith("error: ")
    assert len(tips) <= 1
    assert all(
        re.fullmatch(r"tip: (meshwright serve --help|(export|unset) MESHWRIGHT_.*)", tip) for tip in tips
    )
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


def test_a_schema_that_a_newer_version_made_incompatible_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    database = Database(url)
    migrations.upgrade(database)
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        connection.exec_driver_sql("UPDATE schema_compatibility SET oldest_code = '9998'")
    database.close()
    assert "newer Meshwright" in start(database_url=url)


@pytest.mark.parametrize(
    ("name", "value"), [("grace_s", "inf"), ("lease_s", "0.1"), ("redis_url", "http://host")]
)
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: str) -> None:
    assert f"error: MESHWRIGHT_{name.upper()}: " in start(**{name: value})


@contextmanager
def starting_postgresql(answers: Callable[[int], bytes]) -> Iterator[int]:
    """A port that begins as PostgreSQL does; ``answers`` gets the number of the connection."""

    def talk(connection: socket.socket, number: int) -> None:
        with connection:
            while len(head := connection.recv(8)) == 8:
                length, code = struct.unpack("!II", head)
                connection.recv(length - 8)
                if code not in {80877103, 80877104}:  # requests for TLS and GSSAPI, protocol 3.0
                    connection.sendall(answers(number))
                    return
                connection.sendall(b"N")

    def listen(port: socket.socket) -> None:
        number = 0
        while True:
            try:
                connection, _ = port.accept()
            except OSError:
                return
            number += 1
            threading.Thread(target=talk, args=(connection, number), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as port:
        threading.Thread(target=listen, args=(port,), daemon=True).start()
        yield port.getsockname()[1]
        port.shutdown(socket.SHUT_RDWR)


def refusal(state: str, words: str) -> bytes:
    """An ErrorResponse (PostgreSQL 18 documentation, section 54.7)."""
    fields = b"".join(
        kind + text.encode() + b"\0" for kind, text in ((b"S", "FATAL"), (b"C", state), (b"M", words))
    )
    return b"E" + struct.pack("!I", len(fields) + 5) + fields + b"\0"


def test_a_server_waits_for_a_postgresql_that_is_still_starting_and_says_so() -> None:
    # cannot_connect_now to the first six connections; then a password is wrong, which no waiting mends
    def answers(number: int) -> bytes:
        if number <= 6:
            return refusal("57P03", "the database system is starting up")
        return refusal("28P01", "password authentication failed")

    with starting_postgresql(answers) as port:
        url = f"postgresql://nobody:secret@127.0.0.1:{port}/name"
        run = serve(port="0", workers="0", database_url=url, database_wait_s="25")
    first, *_, last = run.stderr.splitlines()
    assert (
        f"PostgreSQL at 127.0.0.1:{port} is starting or stopping; waiting for it, 25 s more at most"
        in first
    )
    assert last.startswith("error: the database cannot be used: ")
    assert "password authentication failed" in last
    assert "secret" not in run.stderr


def test_a_server_gives_up_after_the_stated_wait_and_says_what_to_do() -> None:
    began_s = time.monotonic()
    run = serve(port="0", database_url="postgresql://127.0.0.1:1/name", database_wait_s="1.5")
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1] == (
        "error: the database cannot be used: PostgreSQL at 127.0.0.1:1 does not answer; "
        "waited 1.5 s for it; start it, correct MESHWRIGHT_DATABASE_URL, "
        "or wait longer with MESHWRIGHT_DATABASE_WAIT_S"
    )
    assert time.monotonic() - began_s > 1.5


def test_a_server_serves_once_a_postgresql_that_was_down_is_back() -> None:
    with PostgresServer() as postgres:
        url = postgres.new_database("late")
        postgres.crash()
        back = threading.Timer(1.5, postgres.start)
        back.start()
        with serving({"database_url": url, "workers": "0", "auto_migrate": "true"}) as server:
            assert httpx.get(f"{server.url}/readyz").json()["ready"] is True
        back.join()


def test_a_sigterm_at_any_moment_of_a_start_ends_the_server(tmp_path: Path) -> None:
    settings = {"database_url": migrated(tmp_path / "meshwright.db"), "workers": "0"}
    found = end_during_start(settings, times=8)
    assert [one for one in found if one.code not in CODES] == []


def test_sigterms_that_are_repeated_end_the_server_no_less(tmp_path: Path) -> None:
    settings = {"database_url": migrated(tmp_path / "meshwright.db"), "workers": "0"}
    found = end_during_start(settings, times=3, signals=3)
    assert [one for one in found if one.code not in CODES] == []


def test_a_redis_that_refuses_the_password_refuses_the_start(tmp_path: Path) -> None:
    server = RedisServer(port=free_port(), folder=tmp_path)
    server.start()
    try:
        with redis.Redis(port=server.port) as admin:
            admin.config_set("requirepass", "right")
        url = f"sqlite:///{tmp_path / 'meshwright.db'}"
        for password in ({}, {"redis_password": "wrong"}):
            assert "MESHWRIGHT_REDIS_PASSWORD" in start(database_url=url, redis_url=server.url, **password)
        assert password_refusal(f"redis://:right@127.0.0.1:{server.port}/0") is None
    finally:
        server.stop()
    assert password_refusal(server.url) is None  # away: workers poll
