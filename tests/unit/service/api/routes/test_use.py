"""CPU seconds of keys, quotas by them, and the workers that are alive."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from meshwright.service.api.app import create_app
from meshwright.service.api.turns import Turns
from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db import usage_records
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import key_usage, workers
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.jobs.jobs import Jobs
from meshwright.service.jobs.queue import PollingQueue
from meshwright.service.jobs.spending import Spender
from meshwright.service.settings import Settings
from meshwright.service.stores.verifications import Verifications
from meshwright.solver.problem import Problem
from meshwright.workers.poller import note_presence
from meshwright.workers.runner import Runner
from tests.builders import a_plan, an_answer
from tests.served.access_cases import token_of
from tests.served.answered_jobs import add_answered_job
from tests.served.api_client import BODY, submit
from tests.served.job_records import SUCCESS, TENANT, add_job, claimed
from tests.served.reports import small_answer

BURNT_S = 0.2
REPLAN = {"lost_nodes": 1, "steps_done": 100, "steps_total": 200}


def burning(_problem: Problem, **_given: object) -> object:
    """A search that takes a known time of the processor."""
    until = time.thread_time() + BURNT_S
    while time.thread_time() < until:
        pass
    return an_answer(a_plan(plan_id="aaa"))


def test_the_cpu_seconds_of_a_job_are_its_keys(database: Database, engine: JobEngine) -> None:
    token = token_of(database, "own", "submit")
    app = create_app(Settings(database_url=str(database.url)))
    with TestClient(
        app, base_url="http://localhost", headers={"Authorization": f"Bearer {token}"}
    ) as client:
        jobs = [submit(client), submit(client, launcher="torchtitan")]
        runner = Runner(engine, burning, worker="w", leaving=threading.Event())  # type: ignore[arg-type]
        assert runner.run_next()
        assert runner.run_next()
        spent = [client.get(f"/v1/jobs/{job}").json()["cpu_s"] for job in jobs]
        (used,) = client.get("/v1/usage").json()["usage"]
        assert min(spent) >= BURNT_S
        assert used["cpu_s"] == pytest.approx(sum(spent))
        assert (used["key_id"], used["jobs"]) == (token.split("_")[1], 2)
        assert used["day"] == datetime.now(UTC).date().isoformat()
        client.headers["Authorization"] = f"Bearer {token_of(database, 'other')}"
        assert client.get("/v1/usage").json() == {
            "usage": [], "total": {"cpu_s": 0.0, "jobs": 0}, "next_page_token": None,
        }  # fmt: skip


def test_a_job_that_is_given_back_costs_its_key_too_and_counts_once(
    client: TestClient, engine: JobEngine
) -> None:
    job = submit(client)
    engine.release(claimed(engine), cpu_s=2.0)
    engine.complete(claimed(engine), SUCCESS, cpu_s=3.0)
    assert client.get(f"/v1/jobs/{job}").json()["cpu_s"] == 5.0
    (used,) = client.get("/v1/usage").json()["usage"]
    assert (used["cpu_s"], used["jobs"], used["key_id"]) == (5.0, 1, None)


def test_usage_has_pages_and_the_sums_of_all_of_them(client: TestClient, database: Database) -> None:
    with database.write() as connection:
        today = connection.execute(select(usage_records.TODAY)).scalar_one()
        for day, key in ((today, "b"), (today, ""), (today - 1, "c"), (today - 40, "c")):
            row = {"tenant": TENANT, "day": day, "key_id": key, "cpu_s": 1.5, "jobs": 2}
            connection.execute(key_usage.insert().values(row))
    seen, token = [], ""
    while token is not None:
        page = client.get("/v1/usage", params={"page_size": 1} | ({"page_token": token} if token else {}))
        seen += [one["key_id"] for one in page.json()["usage"]]
        assert page.json()["total"] == {"cpu_s": 4.5, "jobs": 6}
        token = page.json()["next_page_token"]
    assert seen == ["b", None, "c"]


def test_cpu_seconds_of_a_year_ago_are_forgotten(database: Database, engine: JobEngine) -> None:
    with database.write() as connection:
        today = connection.execute(select(usage_records.TODAY)).scalar_one()
        for tenant, age in ((TENANT, 365), (TENANT, 366), (TENANT, 900), ("other", 900)):
            row = {"tenant": tenant, "day": today - age, "key_id": "k", "cpu_s": 1.0, "jobs": 1}
            connection.execute(key_usage.insert().values(row))
    add_job(database)
    engine.complete(claimed(engine), SUCCESS, cpu_s=2.0)
    with database.read() as connection:
        kept = connection.execute(select(key_usage.c.tenant, today - key_usage.c.day)).all()
    assert sorted(map(tuple, kept)) == [(TENANT, 0), (TENANT, 365), ("other", 900)]


@pytest.mark.parametrize(("own", "default"), [(10.0, None), (None, 10.0), (36_000.0, 1.0)])
def test_a_key_that_has_used_its_cpu_seconds_waits_for_tomorrow(
    database: Database, engine: JobEngine, own: float | None, default: float | None
) -> None:
    new = NewKey(tenant="own", max_cpu_s_per_day=own)
    settings = Settings(database_url=str(database.url), max_cpu_s_per_day=default)
    quota_s = own or 10.0
    keys = [Keys(database, actor="test").create(one)[1] for one in (new, NewKey(tenant="own"))]
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        client.headers["Authorization"] = f"Bearer {keys[0]}"
        submit(client)
        engine.complete(claimed(engine), SUCCESS, cpu_s=0.99 * quota_s)
        submit(client, launcher="torchtitan")
        engine.complete(claimed(engine), SUCCESS, cpu_s=0.02 * quota_s)
        refused = client.post("/v1/jobs", json={**BODY, "launcher": "deepspeed"})
        assert (refused.status_code, refused.json()["type"]) == (
            429,
            "urn:meshwright:problem:too_many_requests",
        )
        assert 0 < int(refused.headers["Retry-After"]) <= 86_400
        assert f"used {1.01 * quota_s:.10g} of {quota_s:.0f} CPU seconds" in refused.json()["detail"]
        client.headers["Authorization"] = f"Bearer {keys[1]}"  # another key of the same tenant
        submit(client, launcher="deepspeed")


def cpu_s_of(client: TestClient) -> float:
    return float(client.get("/v1/usage").json()["total"]["cpu_s"])


def test_a_running_job_and_every_request_that_computes_cost_their_key(
    database: Database, engine: JobEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, release = list[str](), Turns._release

    def noted(own: Turns, tenant: str) -> None:
        turns.append(tenant)
        release(own, tenant)

    monkeypatch.setattr(Turns, "_release", noted)
    settings = Settings(database_url=str(database.url), max_cpu_s_per_day=50.0)
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        service = client.app.state.service  # type: ignore[attr-defined]
        submit(client)
        claim = claimed(engine)
        assert engine.heartbeat(claim, cpu_s=3.0) == "ok"
        assert cpu_s_of(client) == 3.0
        problem, answer = small_answer()
        assert engine.complete(claim, SUCCESS, cpu_s=1.0)
        add_answered_job(database, "of-reports", problem, answer)
        plan = answer.plans[0].plan_id
        asks: list[Callable[[], Any]] = [
            lambda: client.post("/v1/predictions", json={"plan": plan}),
            lambda: client.get("/v1/jobs/of-reports/report"),
            lambda: client.post("/v1/jobs/of-reports:replan", json=REPLAN),
            lambda: client.post(f"/v1/plans/{plan}/measurements", json={"peak_memory_bytes": 60 * 2**30}),
        ]
        for number, ask in enumerate(asks, 1):
            before = cpu_s_of(client)
            answered = ask()
            assert answered.is_success, answered.text
            assert turns == [TENANT] * number
            service.spending.write()
            assert cpu_s_of(client) > before
        service.spending.add(Spender(tenant=TENANT, key_id=None), 60.0)
        asks.append(lambda: client.post("/v1/jobs", json={**BODY, "launcher": "deepspeed"}))
        for ask in asks:
            assert ask().status_code == 429


@pytest.mark.parametrize("beyond", ["refuse", "wait"])
def test_queued_jobs_of_a_key_without_cpu_seconds_wait_for_tomorrow(
    database: Database, beyond: str
) -> None:
    url = str(database.url)
    settings = Settings.model_validate(
        {"database_url": url, "max_cpu_s_per_day": 10.0, "beyond_cpu_quota": beyond}
    )
    engine = JobEngine(database, lease_s=30.0, max_cpu_s_per_day=10.0)
    poor, rich = (Keys(database, actor="test").create(NewKey(tenant="own"))[1] for _ in range(2))
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        client.headers["Authorization"] = f"Bearer {poor}"
        first, second = submit(client), submit(client, launcher="torchtitan")
        assert engine.heartbeat(claimed(engine), cpu_s=11.0) == "ok"
        engine._over.clear()
        assert engine.claim_one("w") is None  # second waits, and first goes on
        late = client.post("/v1/jobs", json={**BODY, "launcher": "deepspeed"})
        assert late.status_code == (429 if beyond == "refuse" else 202)
        client.headers["Authorization"] = f"Bearer {rich}"
        third = submit(client, launcher="deepspeed")
        assert claimed(engine).job_id == third
        with database.write() as connection:  # tomorrow
            connection.execute(update(key_usage).values(day=key_usage.c.day - 1))
        engine._over.clear()
        assert claimed(engine).job_id == second != first


def test_a_verification_costs_the_key_that_asked_for_it(database: Database, jobs: Jobs) -> None:
    problem, answer = small_answer()
    add_answered_job(database, "verified", problem, answer)
    store = Verifications(database, jobs, PollingQueue(), lease_s=30.0, max_attempts=3)
    store.ask(TENANT, answer.plans[0].plan_id, owner="k1")
    asked = store.claim()
    assert asked is not None
    store.spent(asked, 7.0)
    with database.read() as connection:
        assert usage_records.used_today(connection, TENANT, "k1")[0] == 7.0


def test_live_workers_are_listed_with_what_they_do(
    client: TestClient, engine: JobEngine, database: Database
) -> None:
    leaving, noted = threading.Event(), threading.Event()
    present = {"kind": "search", "every_s": 0.01, "leaving": leaving}
    thread = threading.Thread(target=note_presence, args=(database, "host:1"), kwargs=present)
    thread.start()
    while not client.get("/v1/workers").json()["workers"]:
        assert not noted.wait(0.01)
    (idle,) = client.get("/v1/workers").json()["workers"]
    assert (idle["name"], idle["kind"], idle["busy"], idle["job_id"]) == ("host:1", "search", False, None)
    job = submit(client)
    assert engine.claim_one("host:1") is not None
    (busy,) = client.get("/v1/workers").json()["workers"]
    assert (busy["busy"], busy["job_id"]) == (True, job)
    with TestClient(client.app, base_url="http://localhost") as foreign:
        foreign.headers["Authorization"] = f"Bearer {token_of(database, 'other', 'read')}"
        (seen,) = foreign.get("/v1/workers").json()["workers"]
    assert (seen["busy"], seen["job_id"]) == (True, None)
    leaving.set()
    thread.join()
    foreign.headers["Authorization"] = f"Bearer {token_of(database, 'default', 'read')}"
    assert foreign.get("/v1/workers").json() == {"workers": []}


def test_a_silent_worker_is_not_listed(client: TestClient, database: Database) -> None:
    leaving = threading.Event()
    leaving.set()
    note_presence(database, "host:1", kind="search", every_s=1.0, leaving=leaving)
    with database.write() as connection:
        connection.execute(
            workers.insert().values(
                name="host:2", kind="search", version="1", started_at_s=now_s(), seen_at_s=now_s() - 31.0
            )
        )
    assert client.get("/v1/workers").json() == {"workers": []}
    with database.write() as connection:
        connection.execute(update(workers).values(seen_at_s=now_s() - 29.0))
    assert len(client.get("/v1/workers").json()["workers"]) == 1
