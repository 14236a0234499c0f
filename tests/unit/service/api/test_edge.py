"""What the outermost layer answers by itself."""

import asyncio
import json
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from meshwright.service.api.edge import Edge, InHand
from meshwright.service.api.metrics import Metrics
from meshwright.service.db.database import Database

SCOPE: Scope = {
    "type": "http", "method": "POST", "path": "/v1/replans", "headers": [(b"host", b"127.0.0.1")],
    "query_string": b"", "server": ("127.0.0.1", 80), "scheme": "http", "root_path": "",
}  # fmt: skip


def cancelled(database: Database, *, begun: bool) -> list[Message]:
    """What a client gets whose request is cancelled, as uvicorn does behind the grace period."""
    sent: list[Message] = []

    async def never_done(_scope: Scope, _receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def keep(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        edge = Edge(
            never_done,
            any_host=lambda: True,
            host_names=frozenset(),
            metrics=Metrics(database),
            in_hand=InHand(),
        )
        request = asyncio.create_task(edge(dict(SCOPE), receive, keep))
        await asyncio.sleep(0)
        request.cancel("timeout graceful shutdown exceeded")
        await asyncio.wait([request])
        assert request.cancelled() == begun

    asyncio.run(run())
    return sent


def test_a_request_that_the_grace_period_cuts_short_is_to_be_sent_again(database: Database) -> None:
    start, body = cancelled(database, begun=False)
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    assert (start["status"], headers["retry-after"]) == (503, "2")
    problem: dict[str, Any] = json.loads(body["body"])
    assert problem["type"] == "urn:meshwright:problem:stopping"
    assert problem["request_id"] == headers["x-request-id"]


def test_a_deploy_counts_no_error_of_the_server(database: Database) -> None:
    counted: list[int] = []

    class Counting(Metrics):
        def count(self, *, method: str, route: str, status: int, seconds: float) -> None:
            del method, route, seconds
            counted.append(status)

    async def never_done(_scope: Scope, _receive: Receive, _send: Send) -> None:
        await asyncio.Event().wait()

    async def nothing(*_: object) -> Any:  # noqa: ANN401 - neither is asked
        return None

    async def run() -> None:
        in_hand = InHand()
        edge = Edge(
            never_done, any_host=lambda: True, host_names=frozenset(), metrics=Counting(database),
            in_hand=in_hand,
        )  # fmt: skip
        requests = [asyncio.create_task(edge(dict(SCOPE), nothing, nothing)) for _ in range(3)]
        await asyncio.sleep(0)
        in_hand.cut_short()
        await asyncio.gather(*requests)

    asyncio.run(run())
    assert counted == [503] * 3  # the alert MeshwrightErrors leaves these out


def test_an_answer_that_has_begun_is_not_followed_by_another(database: Database) -> None:
    assert [message["type"] for message in cancelled(database, begun=True)] == ["http.response.start"]
