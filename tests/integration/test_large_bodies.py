"""A real server under bodies that would blow up: its memory, its patience, and who else is served."""

import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.processes.pace import pace
from tests.processes.servers import HANGS_S, SERVE, RunningServer, cpu_s, serving
from tests.reliability.figures import measured

MIB = 2**20
JSON = {"Content-Type": "application/json"}
CLIENTS = 40  # each body comes from three of them at once
MEASURED = {"format": "meshwright-measured", "version": 1}


def filled(num_bytes: int, begin: bytes, unit: bytes, end: bytes) -> bytes:
    """As many units as fit."""
    return begin + unit * ((num_bytes - len(begin) - len(end)) // len(unit)) + end


def rows(number: int, entry: object) -> bytes:
    return json.dumps({**MEASURED, "rows": [entry] * number}, separators=(",", ":")).encode()


SMALL, LARGE = 2**18, 8 * MIB


def worst() -> tuple[tuple[str, str, bytes], ...]:
    """The most that may be sent where: more values than are allowed, and as many as are."""
    return (
        ("POST", "/v1/profiles", filled(LARGE, b'{"a":[', b"1,", b"1]}")),
        ("POST", "/v1/profiles", filled(LARGE, b'{"a":[', b"{},", b"1]}")),
        ("POST", "/v1/profiles", rows(99_000, {"a": 1.5})),
        ("POST", "/v1/profiles", rows(49_000, {"a": [12345.5], "b": {}})),
        ("PUT", "/v1/clusters/own", rows(190_000, "abcdefghijklmnopqrstuvwxyz")),
        ("PUT", "/v1/models/own", rows(19, {f"{number}": number for number in range(9_999)})),
        ("PUT", "/v1/models/own", b"{" + b",".join(b'"%d":9999' % n for n in range(10_000)) + b"}"),
        ("POST", "/v1/jobs", filled(SMALL, b'{"a":[', b"1,", b"1]}")),
        ("POST", "/v1/jobs", b"{" + b",".join(b'"%d":999' % n for n in range(19_000)) + b"}"),
        ("POST", "/v1/jobs", rows(19, {f"{number}": number for number in range(1_000)})),
        ("POST", "/v1/jobs", b"{" + b",".join(b'"%d":%s' % (n, b"9" * 18) for n in range(1_000)) + b"}"),
        ("POST", "/v1/predictions", filled(SMALL, b'{"a":[', b"[],", b"1]}")),
        ("POST", "/v1/predictions", filled(SMALL, b'{"a":"', "é😀".encode(), b'"}')),
    )


# A process of its own, whose memory is its own; a body is slow for its sender's sake, not the machine's.
PATIENT = f"""import meshwright.service.api.deps as deps
deps.MAX_UPLOAD_S = 500.0
{SERVE}"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    settings = {"database_url": f"sqlite:///{tmp_path / 'jobs.db'}", "workers": "0"}
    with serving(settings, start=PATIENT, fresh=True) as running:
        yield running


def peak_bytes(pid: int) -> int:
    """The most memory that a process ever had resident (proc(5), VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def send(url: str, method: str, path: str, body: bytes, *, chunked: bool) -> int:
    """The status of an answer; 0 where the server hung up in the middle of a refused body."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=500)
    try:
        pieces = (body[start : start + 2**16] for start in range(0, len(body), 2**16))
        connection.request(
            method,
            path,
            pieces if chunked else body,
            JSON,
            encode_chunked=chunked,
        )
        return connection.getresponse().status
    except (ConnectionError, http.client.BadStatusLine):
        return 0
    finally:
        connection.close()


def test_forty_clients_with_the_worst_bodies_leave_the_api_below_300_mib(server: RunningServer) -> None:
    url, pid = server.url, server.process.pid
    assert httpx.get(f"{url}/livez").status_code == 200
    bodies = worst()
    idle_bytes, idle_s = peak_bytes(pid), cpu_s(pid)
    found: Counter[int] = Counter()

    def attack(number: int) -> None:
        method, path, body = bodies[number % len(bodies)]
        found[send(url, method, path, body, chunked=number % 4 == 0)] += 1

    clients = [threading.Thread(target=attack, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    slowest_s = 0.0  # what the server did for others before it answered, whoever else used the machine
    while any(client.is_alive() for client in clients):
        began_s = cpu_s(pid)
        assert httpx.get(f"{url}/livez", timeout=HANGS_S).status_code == 200
        slowest_s = max(slowest_s, cpu_s(pid) - began_s)
        time.sleep(0.1)
    peak, spent_s = peak_bytes(pid), cpu_s(pid) - idle_s
    measured(17, "memory of the API under 40 clients with the worst bodies, MiB", peak / MIB)
    figures = f"idle {idle_bytes / MIB:.0f} MiB, peak {peak / MIB:.0f} MiB, {spent_s:.1f} CPU-s, {found}"
    assert peak < 300 * MIB, figures  # one such body took 690 MiB, three 2 GiB
    assert set(found) <= {0, 413, 422, 503}
    assert found[422] > 0, figures
    assert slowest_s < 10.0 * pace(), figures
    assert found[0] == 0
    assert spent_s / CLIENTS < 1.0 * pace()  # one such body took 8 CPU-s
    assert httpx.get(f"{url}/v1/jobs").json()["jobs"] == []


IMPATIENT = f"""import meshwright.service.api.deps as deps
deps.MAX_UPLOAD_S = 1.5
deps.MAX_WAIT_FOR_TURN_S = 0.3
{SERVE}"""


def test_bodies_that_trickle_in_are_ended_and_hold_up_large_ones_only_so_long(tmp_path: Path) -> None:
    settings = {"database_url": f"sqlite:///{tmp_path / 'jobs.db'}", "workers": "0"}
    head = (
        b"POST /v1/profiles HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000000\r\n\r\n{"
    )
    with serving(settings, start=IMPATIENT) as server:
        address = urlsplit(server.url)
        slow = [socket.create_connection((address.hostname, address.port or 0)) for _ in range(2)]
        for connection in slow:
            connection.sendall(head)
        time.sleep(0.5)
        body = b"{" + b" " * 2**17 + b"}"
        large = httpx.post(f"{server.url}/v1/profiles", content=body, headers=JSON)
        assert (large.status_code, large.json()["type"]) == (503, "urn:meshwright:problem:busy")
        assert int(large.headers["Retry-After"]) >= 1
        assert httpx.post(f"{server.url}/v1/jobs", json={}).status_code == 422  # small: waits for nobody
        of_a_problem = json.dumps({"title": "x" * 100_000})
        problem = httpx.post(f"{server.url}/v1/jobs", content=of_a_problem, headers=JSON)
        assert problem.status_code == 422  # waits for its like only
        for connection in slow:
            connection.settimeout(20)
            assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")
            connection.close()
        later = httpx.post(f"{server.url}/v1/profiles", content=body, headers=JSON)
        assert later.status_code == 422
