"""Clients that do not speak HTTP, against a real server."""

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.processes.servers import SERVE, RunningServer, serving, until

IMPATIENT = f"""import meshwright.service.api.problems as problems
problems.HEAD_S = 1.5
{SERVE}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    url = f"sqlite:///{tmp_path_factory.mktemp('served') / 'jobs.db'}"
    with serving({"database_url": url, "workers": "0"}) as running:
        yield running


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS where there is none
        b"HELLO\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["tls", "words", "header without a colon", "negative length"],
)
def test_what_is_no_http_is_a_400_problem_and_the_server_goes_on(
    server: RunningServer, sent: bytes
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    head, body = exchanged(host, int(port), sent)
    assert head.startswith("HTTP/1.1 400 Bad Request")
    assert "content-type: application/problem+json" in head
    assert json.loads(body)["type"] == "urn:meshwright:problem:bad_request"
    alive = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert exchanged(host, int(port), alive)[0].startswith("HTTP/1.1 200")


def test_heads_that_do_not_arrive_are_ended_and_hold_up_nobody(tmp_path: Path) -> None:
    """Twenty connections go on sending a byte; ten send nothing."""
    settings = {"database_url": f"sqlite:///{tmp_path / 'jobs.db'}", "workers": "0"}
    with serving(settings, start=IMPATIENT) as server, ExitStack() as stack:
        host, port = server.url.removeprefix("http://").split(":")
        address = host, int(port)
        opened = [stack.enter_context(socket.create_connection(address)) for _ in range(30)]
        alive = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ended = False
        for byte in alive[:-1]:  # for 8 times as long as a head may take: a loaded machine ends them later
            for one in opened[:20]:
                with suppress(OSError):
                    one.sendall(bytes([byte]))
            time.sleep(0.2)
            ended = all(has_ended(one) for one in opened)
            if ended:
                break
        assert ended
        assert exchanged(host, int(port), alive)[0].startswith("HTTP/1.1 200")


def test_a_client_that_leaves_in_the_middle_of_its_body_is_counted_as_such(server: RunningServer) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head + b"Content-Length: 100\r\n\r\n{")
        time.sleep(0.2)  # its handler waits for the rest
    counted = 'method="POST",route="/v1/jobs",status="499"'
    until(lambda: counted in httpx.get(f"{server.url}/metrics").text)


def has_ended(connection: socket.socket) -> bool:
    """Whether the server has answered, or hung up."""
    return bool(select.select([connection], [], [], 0)[0])


def exchanged(host: str, port: int, sent: bytes) -> tuple[str, str]:
    """Head and body of what comes back until the server hangs up."""
    with socket.create_connection((host, port), timeout=10) as connection:
        connection.sendall(sent)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    head, _, body = answer.decode().partition("\r\n\r\n")
    return head, body
