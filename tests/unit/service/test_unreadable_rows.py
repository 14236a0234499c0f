"""One stored document that cannot be read never breaks a list, nor the page of anything else."""

import json
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import JSON, Column, String, text, type_coerce, update

from meshwright.service.api.app import create_app
from meshwright.service.db.database import Database
from meshwright.service.db.tables import metadata
from meshwright.service.settings import Settings
from meshwright.service.web.install import install
from tests.draws import some_of
from tests.served.answered_jobs import add_answered_job
from tests.served.api_client import submit
from tests.served.job_records import add_job
from tests.served.reports import small_answer
from tests.unit.service.web.routes.test_stores import CHIP, CLUSTER
from tests.unit.service.web.test_questions import CONFIG

OPENED = "served"  # the answered job
BAD = ("{", "[]", '"x"', "7", "{}", '{"name": 7, "incumbent_step_time_s": "x", "values": [], "rank": "x"}')
DOCUMENTS = [
    column for table in metadata.sorted_tables for column in table.columns if isinstance(column.type, JSON)
]
LISTS = (
    "/v1/jobs", "/v1/jobs?labels=team=a,run=1", "/v1/fleets", "/v1/plans", "/v1/models", "/v1/clusters",
    "/v1/gpus", "/v1/profiles", "/v1/keys", "/v1/audit", "/v1/usage", "/v1/workers", "/metrics",
    f"/v1/jobs/{OPENED}/replans", f"/v1/jobs/{OPENED}/share-links", "/v1/share-links",
    "/", "/jobs", "/fleets", "/models", "/clusters", "/gpus", "/profiles", "/keys", "/links",
)  # fmt: skip
ROWS = (
    "/v1/models/a-own",
    "/v1/clusters/a-own",
    "/v1/gpus/a-own",
    "/models/a-own",
    "/clusters/a-own",
    "/gpus/a-own",
)


@pytest.fixture
def kept(database: Database) -> Iterator[TestClient]:
    """A service with a row in every list."""
    app = create_app(Settings(database_url=str(database.url)))
    install(app)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = small_answer()
        add_answered_job(database, OPENED, answer[0], answer[1])
        for kind, document in (("models", CONFIG), ("clusters", CLUSTER), ("gpus", CHIP)):
            assert client.put(f"/v1/{kind}/a-own", json=document).status_code == 201
        submit(client, labels={"team": "a", "run": "1"})
        add_job(database, "fleet", kind="fleet")
        client.delete("/v1/gpus/nobody")
        yield client


@pytest.mark.parametrize("column", DOCUMENTS, ids=str)
def test_a_document_that_cannot_be_read_leaves_every_list_whole(
    kept: TestClient, database: Database, column: Column[object]
) -> None:
    answered = f"/v1/jobs/{OPENED}/plans", f"/jobs/{OPENED}", f"/v1/jobs/{OPENED}"
    for bad in some_of(BAD, each=3, first=DOCUMENTS.index(column)):  # two of six in make test
        with database.write() as connection:
            connection.execute(update(column.table).values({column.name: type_coerce(bad, String)}))
        for address in (*LISTS, *ROWS):
            answer = kept.get(address, headers={"accept": "text/html" if "v1" not in address else "*/*"})
            assert answer.status_code == 200, (bad, address, answer.text[-300:])
        for address in answered:
            assert kept.get(address).status_code in {200, 409, 422}, (bad, address)


def damage(database: Database, statement: str) -> None:
    with database.write() as connection:
        connection.execute(text(statement))


def test_a_definition_that_cannot_be_read_is_listed_with_its_name_and_the_reason(
    kept: TestClient, database: Database
) -> None:
    damage(database, "UPDATE definitions SET document = '{\"hidden_size\": 4097.5}' WHERE kind = 'model'")
    (row,) = [one for one in kept.get("/v1/models").json()["items"] if one["name"] == "a-own"]
    assert (row["origin"], row["version"]) == ("stored", 1)
    assert row["unreadable"]
    assert "unreadable: " in kept.get("/models").text
    asked = {
        "model": {"name": "a-own"},
        "cluster": {"name": "dgx-h100"},
        "workload": {"global_batch_size": 8},
    }
    refused = kept.post("/v1/jobs", json=asked)
    assert refused.status_code == 422
    (fault, *_) = refused.json()["errors"]
    assert fault["pointer"] == "/model/name"
    assert "PUT /v1/models/a-own" in fault["allowed"]


def test_plans_that_cannot_be_read_are_named_and_the_others_shown(
    kept: TestClient, database: Database
) -> None:
    plans = kept.get(f"/v1/jobs/{OPENED}/plans").json()["plans"]
    broken, *whole = [one["plan_id"] for one in plans]
    assert whole
    damage(database, "UPDATE plans SET body = '{' WHERE rank = 1")
    page = kept.get(f"/v1/jobs/{OPENED}/plans").json()
    assert [one["plan_id"] for one in page["plans"]] == whole
    assert [one["plan_id"] for one in page["unreadable"]] == [broken]
    assert broken in kept.get(f"/jobs/{OPENED}", headers={"accept": "text/html"}).text
    assert kept.get(f"/v1/plans/{broken}").status_code == 422


def test_what_is_left_of_a_job_is_shown(kept: TestClient, database: Database) -> None:
    damage(database, "UPDATE jobs SET progress = '[1]', labels = '{' WHERE id = 'served'")
    (job,) = [one for one in kept.get("/v1/jobs").json()["jobs"] if one["id"] == OPENED]
    assert job["state"] == "succeeded"
    assert "can't be read" in job["unreadable"]
    assert json.loads(kept.get(f"/v1/jobs/{OPENED}").text)["request"]["model"]
