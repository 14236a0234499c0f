"""Clients that do not speak HTTP, against a real server."""

import json
import select
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from meshwright.service.api.problems import HEAD_S
from tests.processes.servers import serving, until


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
def test_what_is_no_http_is_a_400_problem_and_the_server_goes_on(tmp_path: Path, sent: bytes) -> None:
    settings = {"database_url": f"sqlite:///{tmp_path / 'jobs.db'}", "workers": "0"}
    with serving(settings) as server:
        host, port = server.url.removeprefix("http://").split(":")
        head, body = exchanged(host, int(port), sent)
        assert head.startswith("HTTP/1.1 400 Bad Request")
        assert "content-type: application/problem+json" in head
        assert json.loads(body)["type"] == "urn:meshwright:problem:bad_request"
        alive = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        assert exchanged(host, int(port), alive)[0].startswith("HTTP/1.1 200")


def test_heads_that_do_not_arrive_are_ended_and_hold_up_nobody(tmp_path: Path) -> None:
    """Twenty connections send a byte a second; ten send nothing."""
    settings = {"database_url": f"sqlite:///{tmp_path / 'jobs.db'}", "workers": "0"}
    with serving(settings) as server, ExitStack() as stack:
        host, port = server.url.removeprefix("http://").split(":")
        address = host, int(port)
        opened = [stack.enter_context(socket.create_connection(address)) for _ in range(30)]
        alive = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        trickling, ended = iter(alive), 0
        for _ in range(round(3 * HEAD_S)):  # a loaded machine ends them later
            byte = bytes([next(trickling)])
            for one in opened[:20]:
                with suppress(OSError):
                    one.sendall(byte)
            time.sleep(1.0)
            ended = sum(has_ended(one) for one in opened)
            if ended == len(opened):
                break
        assert ended == len(opened)
        assert exchanged(host, int(port), alive)[0].startswith("HTTP/1.1 200")


def test_a_client_that_leaves_in_the_middle_of_its_body_is_counted_as_such(tmp_path: Path) -> None:
    settings = {"database_url": f"sqlite:///{tmp_path / 'jobs.db'}", "workers": "0"}
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with serving(settings) as server:
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
