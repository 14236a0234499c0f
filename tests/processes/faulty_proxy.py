"""A network that misbehaves: an HTTP proxy before a real server, which does to a request as it is told."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

Handler = BaseHTTPRequestHandler
Fault = Callable[[Handler, httpx.Response], None]  # gets the connection and the server's answer


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One request that came through."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(kw_only=True)
class FaultyProxy:
    """Its address, what it saw, and what it will do to the next requests whose path holds a word."""

    target: str
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    faults: dict[str, deque[Fault]] = field(default_factory=dict)

    def then(self, word: str, *faults: Fault) -> None:
        """Do this to the next requests whose path holds ``word``, one each."""
        self.faults.setdefault(word, deque()).extend(faults)

    def of(self, word: str) -> list[Seen]:
        """Requests whose path held ``word``."""
        return [one for one in self.seen if word in one.path]

    def next_fault(self, path: str) -> Fault:
        waiting = next((queue for word, queue in self.faults.items() if word in path and queue), None)
        return waiting.popleft() if waiting else hand_on


def hand_on(connection: Handler, answer: httpx.Response) -> None:
    """Do as a proxy should."""
    _head(connection, answer)
    for chunk in answer.iter_raw():
        connection.wfile.write(chunk)
        connection.wfile.flush()


def lose_answer(_connection: Handler, answer: httpx.Response) -> None:
    """The server has done its work, and nobody hears of it."""
    answer.read()


def refuse(status: int, *, retry_after: str | None = None) -> Fault:
    """Answer in the server's place, as a load balancer does."""

    def fault(connection: Handler, _answer: httpx.Response) -> None:
        connection.send_response(status)
        if retry_after is not None:
            connection.send_header("Retry-After", retry_after)
        connection.send_header("Content-Length", "0")
        connection.end_headers()

    return fault


def _head(connection: Handler, answer: httpx.Response) -> None:
    connection.send_response(answer.status_code)
    for name, value in answer.headers.items():
        if name.lower() not in {"transfer-encoding", "connection", "date"}:
            connection.send_header(name, value)
    connection.end_headers()


@contextmanager
def faulty_proxy(target: str) -> Iterator[FaultyProxy]:
    """A proxy before ``target``; every connection carries one request."""
    proxy = FaultyProxy(target=target)

    class Connection(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            headers = {name.lower(): value for name, value in self.headers.items()}
            proxy.seen.append(Seen(method=self.command, path=self.path, headers=headers))
            fault = proxy.next_fault(self.path)
            sent = {name: value for name, value in headers.items() if name not in {"host", "connection"}}
            try:
                with httpx.stream(
                    self.command,
                    proxy.target + self.path,
                    headers={**sent, "accept-encoding": "identity"},
                    content=self.rfile.read(length),
                    timeout=60,
                ) as answer:
                    fault(self, answer)
            except (httpx.TransportError, OSError):
                return  # the server is gone, or the client is: hang up

        do_POST = do_GET  # noqa: N815 - the name that the standard library looks for

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Connection)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
