"""Every POST that makes or changes something may be repeated under its Idempotency-Key."""

import threading
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from meshwright.service.api.app import create_app
from meshwright.service.db.database import Database
from meshwright.service.settings import Settings
from tests.served.access_cases import operations, token_of
from tests.served.api_client import BODY, submit

KEY = {"Idempotency-Key": "once"}
CONFLICT = (422, "urn:meshwright:problem:idempotency_conflict")


@pytest.fixture
def keyed(database: Database) -> Iterator[TestClient]:
    """A service that demands keys, and a client that has one of an administrator."""
    headers = {"Authorization": f"Bearer {token_of(database, 'default')}"}
    app = create_app(Settings(database_url=str(database.url)))
    with TestClient(app, base_url="http://localhost", headers=headers) as client:
        yield client


def test_every_post_takes_the_header_but_those_that_store_nothing() -> None:
    takes = {
        path: any(one["name"] == "idempotency-key" for one in operation.get("parameters", ()))
        for method, path, operation in operations()
        if method == "POST"
    }
    assert {path for path, does in takes.items() if not does} <= {"/v1/predictions"}


def test_a_repeated_request_makes_one_key_and_tells_its_token_once(keyed: TestClient) -> None:
    first = keyed.post("/v1/keys", json={"title": "mine"}, headers=KEY).json()
    again = keyed.post("/v1/keys", json={"title": "mine"}, headers=KEY)
    assert (again.status_code, again.json()["id"], again.json()["token"]) == (201, first["id"], None)
    assert first["token"].startswith(f"mw_{first['id']}_")
    assert len(keyed.get("/v1/keys").json()["keys"]) == 2  # this one and the client's own
    other = keyed.post("/v1/keys", json={"title": "another"}, headers=KEY)
    assert (other.status_code, other.json()["type"]) == CONFLICT


def test_ten_clients_with_one_idempotency_key_make_one_key(keyed: TestClient) -> None:
    made: list[str] = []

    def make() -> None:
        made.append(keyed.post("/v1/keys", json={}, headers=KEY).json()["id"])

    threads = [threading.Thread(target=make) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(set(made))) == (10, 1)


def test_a_key_belongs_to_one_request_whatever_it_was_for(client: TestClient) -> None:
    one, other = submit(client), submit(client, launcher="torchtitan")
    assert client.post(f"/v1/jobs/{one}:cancel", headers=KEY).status_code == 200
    assert client.post(f"/v1/jobs/{one}:cancel", headers=KEY).status_code == 200
    for answer in (
        client.post(f"/v1/jobs/{other}:cancel", headers=KEY),
        client.post("/v1/jobs", json=BODY, headers=KEY),
    ):
        assert (answer.status_code, answer.json()["type"]) == CONFLICT
    assert client.get(f"/v1/jobs/{other}").json()["state"] == "queued"
