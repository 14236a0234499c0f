"""Re-plans over HTTP: what a launcher was answered stays on record, and comes again under its key."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, func, select

from meshwright.service.api import deps
from meshwright.service.api.app import create_app
from meshwright.service.db.database import Database
from meshwright.service.db.tables import jobs as job_rows
from meshwright.service.db.tables import replans
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.settings import Settings
from meshwright.service.stores import replans as replan_store
from tests.served.access_cases import token_of
from tests.served.api_client import plan_next, submit

CHANGE = {"num_nodes": 2, "steps_done": 100, "steps_total": 1000}
KEY = {"Idempotency-Key": "restart-7"}


@pytest.fixture
def here(client: TestClient, engine: JobEngine) -> str:
    """The address of a job that has two plans."""
    job = submit(client)
    plan_next(engine)
    return f"/v1/jobs/{job}"


def test_a_launcher_finds_what_it_was_answered(client: TestClient, here: str) -> None:
    first = client.post(f"{here}:replan", json=CHANGE)
    assert first.status_code == 200, first.text
    record = client.get(first.headers["Location"]).json()
    assert (record["answer"], record["request"]) == (first.json(), CHANGE)
    client.post(f"{here}:replan", json={**CHANGE, "num_nodes": 3})
    page = client.get(f"{here}/replans", params={"page_size": 1}).json()
    assert [one["request"]["num_nodes"] for one in page["replans"]] == [3]
    token = {"page_token": page["next_page_token"]}
    (older,) = client.get(f"{here}/replans", params=token).json()["replans"]
    assert older == {name: value for name, value in record.items() if name != "answer"}


def test_the_same_key_gives_the_same_answer_without_a_turn(
    client: TestClient, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.post(f"{here}:replan", json=CHANGE, headers=KEY)
    monkeypatch.setattr(deps, "MAX_WAIT_FOR_TURN_S", 0.05)
    client.app.state.service.computing._value = 0  # type: ignore[attr-defined]
    again = client.post(f"{here}:replan", json=CHANGE, headers=KEY)
    assert again.status_code == 200, again.text
    assert (again.content, again.headers["Location"]) == (first.content, first.headers["Location"])
    other = client.post(f"{here}:replan", json={**CHANGE, "num_nodes": 3}, headers=KEY)
    assert (other.status_code, other.json()["type"]) == (
        422,
        "urn:meshwright:problem:idempotency_conflict",
    )


def test_a_job_keeps_its_newest_replans_and_takes_them_along(
    client: TestClient, here: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replan_store, "MAX_REPLANS", 2)
    first = client.post(f"{here}:replan", json=CHANGE, headers=KEY)
    for nodes in (3, 4):
        client.post(f"{here}:replan", json={**CHANGE, "num_nodes": nodes})
    listed = client.get(f"{here}/replans").json()["replans"]
    assert [one["request"]["num_nodes"] for one in listed] == [4, 3]
    assert client.get(first.headers["Location"]).status_code == 404
    forgotten = client.post(f"{here}:replan", json=CHANGE, headers=KEY)  # its answer is gone: a new one
    assert forgotten.status_code == 200
    with database.write() as connection:
        connection.execute(delete(job_rows))
        assert connection.scalar(select(func.count()).select_from(replans)) == 0


def test_another_tenant_finds_none(database: Database, engine: JobEngine) -> None:
    app = create_app(Settings(database_url=str(database.url)))
    with TestClient(app, base_url="http://localhost") as client:
        own, other = token_of(database, "own"), token_of(database, "other")
        client.headers["Authorization"] = f"Bearer {own}"
        here = f"/v1/jobs/{submit(client)}"
        plan_next(engine)
        record = client.post(f"{here}:replan", json=CHANGE).headers["Location"]
        assert client.get(record).json()["key_id"] == own.split("_")[1]
        client.headers["Authorization"] = f"Bearer {other}"
        for address in (record, f"{here}/replans"):
            assert client.get(address).status_code == 404
        assert client.post(f"{here}:replan", json=CHANGE).status_code == 404
