"""What is deleted on request, and what is not, on both databases."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from meshwright.service.api.app import create_app
from meshwright.service.auth.keys import Keys, NewKey
from meshwright.service.db import key_records
from meshwright.service.db.database import Database
from meshwright.service.db.tables import api_keys, jobs, metadata
from meshwright.service.jobs.engine import JobEngine
from meshwright.service.settings import Settings
from meshwright.service.stores import deletion
from meshwright.service.stores.deletion import Deletion
from tests.reliability.figures import measured
from tests.served.access_cases import token_of
from tests.served.api_client import answer_next, submit
from tests.served.job_records import SUCCESS, add_job, claimed


def url_of(database: Database) -> str:
    return database.url.render_as_string(hide_password=False)


def rows_of(database: Database, tenant: str) -> dict[str, int]:
    """The number of rows of a tenant in every table that has any."""
    with database.read() as connection:
        counts = {
            table.name: connection.scalar(
                select(func.count()).select_from(table).where(table.c.tenant == tenant)
            )
            for table in metadata.sorted_tables
            if "tenant" in table.c
        }
    return {name: count for name, count in counts.items() if count}


def served(database: Database, token: str) -> TestClient:
    app = create_app(Settings(database_url=url_of(database)))
    return TestClient(app, base_url="http://localhost", headers={"Authorization": f"Bearer {token}"})


def test_a_deleted_job_takes_its_plans_events_and_labels_along(
    database: Database, engine: JobEngine
) -> None:
    token = token_of(database, "removing", "submit")
    with served(database, token) as client:
        job, other = submit(client, labels={"team": "nlp"}), submit(client, launcher="torchtitan")
        answer_next(engine)
        with served(database, token_of(database, "foreign")) as foreign:
            assert foreign.delete(f"/v1/jobs/{job}").status_code == 404
        assert client.delete(f"/v1/jobs/{job}").status_code == 204
        assert [client.get(f"/v1/jobs/{one}").status_code for one in (job, other)] == [404, 200]
        assert client.delete(f"/v1/jobs/{job}").status_code == 404
        found = rows_of(database, "removing")
        assert (found["jobs"], found.get("plans", 0), found.get("job_labels", 0)) == (1, 0, 0)
        assert client.delete(f"/v1/jobs/{other}").status_code == 204
    found = rows_of(database, "removing")
    assert found == {"api_keys": 1, "audit": 3, "key_usage": 1}  # who did it, and what it cost


def test_a_sweep_is_deleted_with_its_points_and_no_point_alone(database: Database) -> None:
    with served(database, token_of(database, "sweeping")) as client:
        sweep = submit(client, sweep={"num_nodes": [2, 4]})
        (point, _) = client.get(f"/v1/jobs/{sweep}/children").json()["children"]
        refused = client.delete(f"/v1/jobs/{point['id']}")
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:meshwright:problem:conflict")
        assert client.delete(f"/v1/jobs/{sweep}").status_code == 204
    assert "jobs" not in rows_of(database, "sweeping")


def test_f28_a_worker_that_runs_a_deleted_job_loses_its_claim(
    database: Database, engine: JobEngine
) -> None:
    add_job(database, "running")
    claim = claimed(engine)
    Deletion(database, actor="test").job(claim.tenant, claim.job_id)
    assert engine.heartbeat(claim) == "lost"
    assert not engine.complete(claim, SUCCESS)
    measured(28, "writes of the worker that changed anything", 0, on=database.dialect)


def test_a_tenant_is_deleted_with_all_records_and_others_keep_theirs(
    database: Database, engine: JobEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "BATCH", 2)
    with served(database, token_of(database, "kept")) as client:
        submit(client)
        kept = rows_of(database, "kept")
    another = token_of(database, "gone", "submit")
    with served(database, token_of(database, "gone")) as client:
        for number in range(3):
            submit(client, labels={"run": str(number)}, search={"top_k": number + 1})
        submit(client, sweep={"num_nodes": [2, 4]})
        answer_next(engine)
        shape = {"groups": [{"gpu": "h100-sxm-80gb", "num_nodes": 2}]}
        assert client.put("/v1/clusters/own", json=shape).status_code < 300
        assert client.delete("/v1/tenants/kept").status_code == 404
        assert client.delete("/v1/tenants/gone").status_code == 204
        assert client.get("/v1/jobs").status_code == 401
    with served(database, another) as client:
        assert client.get("/v1/jobs").status_code == 401
    assert rows_of(database, "gone") == {"audit": 1}  # the deletion itself
    assert rows_of(database, "kept") == kept
    with served(database, token_of(database, "kept", "submit")) as client:
        assert client.delete("/v1/tenants/kept").status_code == 403


def test_a_service_whose_last_tenant_was_deleted_still_demands_keys(database: Database) -> None:
    with database.write() as connection:
        connection.execute(api_keys.delete())
    Keys(database, actor="test").create(NewKey(tenant="last"))
    Deletion(database, actor="command line").tenant("last")
    with database.read() as connection:
        assert key_records.any_key(connection)
        assert connection.scalar(select(func.count()).where(jobs.c.tenant == "last")) == 0
    with TestClient(
        create_app(Settings(database_url=url_of(database))), base_url="http://localhost"
    ) as client:
        assert client.get("/v1/jobs").status_code == 401
    with database.write() as connection:
        connection.execute(api_keys.delete())
