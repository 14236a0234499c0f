"""Others that ask the same API during a storm: people whose provider hangs, slow bodies, long requests.

What they must see: an answer of the service (a 503 says when to come back), or a connection that broke
because the API was killed. What everybody else must see: an API that answers meanwhile.
"""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import httpx

from tests.served.job_records import TINY_PROBLEM

SIGN_INS = 60  # more than the API has threads
SLOW_BODIES = 12
SLOW_BYTES = 150_000  # of a body, of which one byte arrives a second
SLOW_S = 8.0
READY_WITHIN_S = 5.0  # on two cores that everything shares
PATIENCE_S = 30.0
FINE = {200, 201, 303, 400, 408, 413, 422, 429, 503}
LONG: dict[str, object] = {
    "model": {"name": "llama-3.1-70b"}, "cluster": {"name": "dgx-h100", "num_nodes": 16},
    "workload": {"global_batch_size": 512, "seq_length": 8192}, "launcher": "megatron-lm",
    "configuration": {"tensor_parallel_size": 8, "pipeline_parallel_size": 4},
}  # fmt: skip


@contextmanager
def hanging_provider() -> Iterator[str]:
    """The address of a provider that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class Neighbours:
    """Bursts of them against one API; ``faults`` are what nobody may see."""

    def __init__(self, url: str, token: str) -> None:
        self.faults: list[str] = []
        self.answers: Counter[int] = Counter()
        self._url = url
        self._head = {"Authorization": f"Bearer {token}"}
        self._threads: list[threading.Thread] = []

    def sign_in(self) -> bool:
        """Many people who sign in at once, and one who looks whether the API is there."""
        self._many(SIGN_INS, lambda: self._ask("GET", "/sign-in/oidc"))
        time.sleep(0.3)
        self._look()
        return True

    def send_slowly(self) -> bool:
        """Large bodies of which little arrives."""
        self._many(SLOW_BODIES, self._slow_body)
        time.sleep(0.3)
        self._look()
        return True

    def compute(self) -> bool:
        """Requests that take the API's processor, for a server that is told to stop."""
        self._many(8, lambda: self._ask("POST", "/v1/predictions", LONG))
        return True

    def close(self) -> None:
        """Wait for the last answers."""
        for one in self._threads:
            one.join(PATIENCE_S)
        self.faults += ["a request had no answer"] * sum(one.is_alive() for one in self._threads)

    def _many(self, number: int, work: Callable[[], None]) -> None:
        some = [threading.Thread(target=work, daemon=True) for _ in range(number)]
        self._threads += some
        for one in some:
            one.start()

    def _ask(self, method: str, path: str, body: object = None) -> None:
        try:
            answer = httpx.request(
                method, self._url + path, json=body, headers=self._head, timeout=PATIENCE_S
            )
        except httpx.TimeoutException:
            self.faults.append(f"{method} {path} had no answer in {PATIENCE_S:g} s")
        except httpx.HTTPError:  # the API was killed, or is not up yet
            return
        else:
            self._note(answer.status_code, f"{method} {path}")

    def _look(self) -> None:
        began_s = time.monotonic()
        with suppress(httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
            httpx.get(f"{self._url}/livez", timeout=PATIENCE_S)
        if (took_s := time.monotonic() - began_s) > READY_WITHIN_S:
            self.faults.append(f"/livez took {took_s:.1f} s")

    def _slow_body(self) -> None:
        address = urlsplit(self._url)
        head = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Authorization: {self._head['Authorization']}\r\n"
            f"Content-Length: {SLOW_BYTES}\r\n\r\n{json.dumps(TINY_PROBLEM)[:-1]}"
        )
        with (
            suppress(OSError),
            socket.create_connection((address.hostname or "", address.port or 0)) as line,
        ):
            line.sendall(head.encode())
            line.settimeout(1.0)
            until = time.monotonic() + SLOW_S
            while time.monotonic() < until:
                with suppress(TimeoutError):
                    said = line.recv(64)
                    if said:
                        self._note(int(said.split()[1]), "a slow body")
                    return
                line.sendall(b" ")

    def _note(self, status: int, what: str) -> None:
        self.answers[status] += 1
        if status not in FINE:
            self.faults.append(f"{what}: {status}")
