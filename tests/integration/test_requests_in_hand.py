"""What a client sees of every kind of request that a SIGTERM finds in hand."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import delete

from meshwright.service.api.deps import COMPUTING_SHARE
from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs
from tests.chaos.storm import FLEET, ROLES
from tests.processes.quiet_clock import quiet_seconds
from tests.processes.servers import HANGS_S, RunningServer, Settings, serving
from tests.processes.slow_api import START
from tests.served.answered_jobs import add_answered_job
from tests.served.reports import small_answer
from tests.unit.service.web.test_questions import CONFIG

PROBLEM = {
    "model": {"name": "llama-3.1-8b"},
    "cluster": {"name": "dgx-h100", "num_nodes": 4},
    "workload": {"global_batch_size": 256, "seq_length": 8192},
}
REPLAN = {"lost_nodes": 1, "steps_done": 100, "steps_total": 200}
GRACE_S = 1.0
LATE_S = 20.0  # far beyond the grace: nothing of it ends by itself


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of request, and where what it stores is counted."""

    method: str
    path: str
    body: Any = None
    listed: str = ""  # the list that shows what it stored
    items: str = ""


KINDS = {
    "submit": Kind(
        method="POST", path="/v1/jobs?fresh=true", body=PROBLEM, listed="/v1/jobs", items="jobs"
    ),
    "list": Kind(method="GET", path="/v1/jobs"),
    "report": Kind(method="GET", path="/v1/jobs/{job}/report"),
    "replan": Kind(
        method="POST", path="/v1/jobs/{job}:replan", body=REPLAN,
        listed="/v1/jobs/{job}/replans", items="replans",
    ),
    "measurement": Kind(
        method="POST", path="/v1/plans/{plan}/measurements", body={"peak_memory_bytes": 60 * 2**30},
        listed="/v1/profiles", items="profiles",
    ),
    "share": Kind(
        method="POST", path="/v1/jobs/{job}/share-links", body={},
        listed="/v1/jobs/{job}/share-links", items="links",
    ),
    "definition": Kind(method="PUT", path="/v1/models/our-own", body=CONFIG),
    "roles": Kind(method="POST", path="/v1/jobs", body=ROLES),
    "fleet": Kind(method="POST", path="/v1/fleets", body=FLEET, listed="/v1/fleets", items="fleets"),
    "prediction": Kind(
        method="POST", path="/v1/predictions",
        body={**PROBLEM, "configuration": {"tensor_parallel_size": 8}},
    ),
}  # fmt: skip

COMPUTE = ("report", "replan", "measurement", "prediction")  # a tenant's take turns


@pytest.fixture
def settings(database: Database) -> Settings:
    url = database.url.render_as_string(hide_password=False)
    return {"database_url": url, "workers": "0", "grace_s": str(GRACE_S)}


@pytest.fixture
def names(database: Database) -> dict[str, str]:
    problem, answer = small_answer()
    with database.write() as connection:  # those of the test before
        connection.execute(delete(jobs).where(jobs.c.state == "queued"))
    return {
        "job": add_answered_job(database, f"in-hand-{time.monotonic_ns()}", problem, answer),
        "plan": answer.plans[0].plan_id,
    }


def sent(server: RunningServer, name: str, kind: Kind, names: dict[str, str]) -> httpx.Response:
    headers = {"Idempotency-Key": f"{name}-{names['job']}"} if kind.method == "POST" else {}
    return httpx.request(
        kind.method,
        server.url + kind.path.format(**names),
        json=kind.body,
        headers=headers,
        timeout=HANGS_S,
    )


def await_work(server: RunningServer, requests: int) -> None:
    """Wait until so many requests have done their work; none is answered."""
    assert server.process.stdout is not None
    for _ in range(requests):
        assert server.process.stdout.readline()


def test_requests_beyond_the_grace_get_a_503_and_what_they_stored_is_known(
    settings: Settings, names: dict[str, str]
) -> None:
    slow = {**settings, "slow_s": str(LATE_S)}
    with serving(slow, start=START) as server, ThreadPoolExecutor(len(KINDS)) as clients:
        asked = {name: clients.submit(sent, server, name, kind, names) for name, kind in KINDS.items()}
        await_work(server, len(KINDS) - len(COMPUTE) + COMPUTING_SHARE)  # the others wait for their turn
        with quiet_seconds() as clock:
            server.process.terminate()
            assert server.process.wait(HANGS_S) == 0
        assert clock.took_s < GRACE_S + 3.0
        for name, one in asked.items():
            answer = one.result()
            assert answer.status_code == 503, (name, answer.text)
            assert answer.headers["content-type"] == "application/problem+json", name
            assert answer.headers["retry-after"], name
            assert answer.json()["type"].endswith(":stopping"), name
    with serving(settings) as server:
        for name, kind in KINDS.items():
            before = listed(server, kind, names)
            times = 1 if kind.method == "GET" else 2
            again = [sent(server, name, kind, names) for _ in range(times)]
            assert {answer.is_success for answer in again} == {True}, (name, again[0].text)
            assert listed(server, kind, names) == max(before, 1), (
                name
            )  # it was stored before, or is now, once


def listed(server: RunningServer, kind: Kind, names: dict[str, str]) -> int:
    if not kind.listed:
        return 1
    found = httpx.get(server.url + kind.listed.format(**names), timeout=HANGS_S).json()[kind.items]
    return sum("served" not in str(one.get("id")) and names["job"] != one.get("id") for one in found)


def test_requests_within_the_grace_are_answered_as_asked(settings: Settings, names: dict[str, str]) -> None:
    quick = {**settings, "slow_s": "1", "grace_s": "60"}
    few = {name: KINDS[name] for name in ("submit", "list", "replan", "definition")}
    with serving(quick, start=START) as server, ThreadPoolExecutor(len(few)) as clients:
        asked = {name: clients.submit(sent, server, name, kind, names) for name, kind in few.items()}
        await_work(server, len(few))
        server.process.terminate()
        for name, one in asked.items():
            assert one.result().is_success, (name, one.result().text)
        assert server.process.wait(HANGS_S) == 0
