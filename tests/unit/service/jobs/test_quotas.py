"""What one tenant may ask for, and keys that become free again."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.testclient import TestClient
from sqlalchemy import update

from meshwright.service.api.app import create_app
from meshwright.service.db.clock import now_s
from meshwright.service.db.database import Database
from meshwright.service.db.tables import idempotency_keys, jobs
from meshwright.service.jobs.answers import cache_key_of, versions_of
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.requests.parse import parse_problem
from meshwright.service.settings import Settings
from tests.served.access_cases import token_of
from tests.served.api_client import BODY, PROBLEM_TYPE, answer_next, submit
from tests.served.job_records import TENANT, claimed


@contextmanager
def service(database: Database, **settings: object) -> Iterator[TestClient]:
    app = create_app(Settings.model_validate({"database_url": str(database.url), **settings}))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


def test_a_tenant_with_a_full_queue_is_asked_to_come_back(database: Database, engine: JobEngine) -> None:
    with service(database, max_queued_jobs=2) as client:
        ids = [submit(client) for _ in range(2)]
        refused = client.post("/v1/jobs", json=BODY)
        assert (refused.status_code, refused.headers["content-type"]) == (429, PROBLEM_TYPE)
        assert refused.headers["Retry-After"] == "5"
        assert refused.headers["RateLimit"] == '"queue";r=0;t=5'
        assert refused.json()["detail"] == "at most 2 jobs may be queued"
        claimed(engine)  # one of them is running now
        assert submit(client) not in ids


def test_a_full_queue_of_one_tenant_is_not_anothers(database: Database) -> None:
    with service(database, max_queued_jobs=1) as client:
        for tenant in ("ours", "theirs"):
            headers = {"Authorization": f"Bearer {token_of(database, tenant)}"}
            statuses = [client.post("/v1/jobs", json=BODY, headers=headers).status_code for _ in range(2)]
            assert statuses == [202, 429]


def test_a_known_answer_and_a_repeated_key_need_no_room(database: Database, engine: JobEngine) -> None:
    with service(database, max_queued_jobs=1) as client:
        key = {"Idempotency-Key": "mine"}
        job = client.post("/v1/jobs", json=BODY, headers=key).json()["id"]
        assert client.post("/v1/jobs", json=BODY, headers=key).json()["id"] == job
        assert client.post("/v1/jobs", json=BODY, headers={"Idempotency-Key": "other"}).status_code == 429
        answer_next(engine)
        know(database, client.get(f"/v1/jobs/{job}").json()["request"])
        waiting = client.post("/v1/jobs", json={**BODY, "launcher": "none"})  # takes the only place
        assert waiting.status_code == 202
        assert submit(client) == job


def know(database: Database, request: dict[str, Any]) -> None:
    """As if this version of the solver had answered ``request``."""
    known = cache_key_of(TENANT, request, versions_of(parse_problem(request)))
    with database.write() as connection:
        connection.execute(update(jobs).values(cache_key=known))


def test_a_sweep_takes_a_place_for_each_of_its_points(database: Database) -> None:
    with service(database, max_queued_jobs=4) as client:
        swept = {**BODY, "sweep": {"num_nodes": [1, 2, 4]}}
        assert client.post("/v1/jobs", json=swept).status_code == 202
        refused = client.post("/v1/jobs", json={**swept, "launcher": "none"})
        assert refused.status_code == 429
        assert "a sweep of 3 points is 3 of them" in refused.json()["detail"]
        assert client.post("/v1/jobs", json={**BODY, "launcher": "none"}).status_code == 202
        assert client.post("/v1/jobs", json={**BODY, "launcher": "deepspeed"}).status_code == 429


def test_submissions_of_one_minute_are_counted(database: Database) -> None:
    with service(database, max_submits_per_minute=3) as client:
        for _ in range(3):
            submit(client)
        refused = client.post("/v1/jobs", json=BODY)
        assert refused.status_code == 429
        assert 55 <= int(refused.headers["Retry-After"]) <= 60  # the first of three leaves the minute then
        assert refused.headers["RateLimit-Policy"] == '"submits";q=3;w=60'
        with database.write() as connection:
            connection.execute(update(jobs).values(created_at_s=now_s() - 61))
        submit(client)


def test_an_idempotency_key_is_free_again_after_its_time(client: TestClient, database: Database) -> None:
    key = {"Idempotency-Key": "mine"}
    first = client.post("/v1/jobs", json=BODY, headers=key).json()["id"]
    other = {**BODY, "launcher": "none"}
    assert client.post("/v1/jobs", json=other, headers=key).status_code == 422
    with database.write() as connection:
        connection.execute(update(idempotency_keys).values(created_at_s=now_s() - 86_401))
    again = client.post("/v1/jobs", json=other, headers=key)
    assert (again.status_code, again.json()["id"] != first) == (202, True)
    assert client.post("/v1/jobs", json=other, headers=key).json()["id"] == again.json()["id"]
