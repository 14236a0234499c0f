"""Lists of jobs by label, model and owner."""

import pytest
from fastapi.testclient import TestClient

from meshwright.service.api.app import create_app
from meshwright.service.db import records
from meshwright.service.db.database import Database
from meshwright.service.settings import Settings
from tests.served.access_cases import token_of
from tests.served.api_client import BODY, submit


def listed(client: TestClient, **wanted: str) -> list[str]:
    answer = client.get("/v1/jobs", params=wanted)
    assert answer.status_code == 200, answer.text
    return [job["id"] for job in answer.json()["jobs"]]


def test_jobs_are_found_by_all_of_their_labels(client: TestClient) -> None:
    first = submit(client, labels={"team": "nlp", "run": "7"})
    second = submit(client, labels={"team": "nlp"}, launcher="torchtitan")
    submit(client, launcher="deepspeed")
    assert listed(client, labels="team=nlp") == [second, first]
    assert listed(client, labels="run=7,team=nlp") == [first]
    assert listed(client, labels="team=vision") == []
    assert listed(client, labels="team=nlp", state="failed") == []
    assert client.get(f"/v1/jobs/{first}").json()["labels"] == {"run": "7", "team": "nlp"}


def test_jobs_are_found_by_their_model(client: TestClient) -> None:
    small, large = submit(client), submit(client, model={"name": "llama-3.1-70b"})
    assert listed(client, model="llama-3.1-8b") == [small]
    assert listed(client, model="llama-3.1-70b", state="queued") == [large]
    assert client.get(f"/v1/jobs/{small}").json()["model"] == "llama-3.1-8b"


def test_a_sweep_is_listed_by_its_labels_and_its_points_are_not(client: TestClient) -> None:
    sweep = submit(client, sweep={"num_nodes": [2, 4]}, labels={"team": "nlp"})
    assert listed(client, labels="team=nlp") == listed(client, model="llama-3.1-8b") == [sweep]


def test_jobs_are_found_by_who_submitted_them(database: Database) -> None:
    app = create_app(Settings(database_url=str(database.url)))
    with TestClient(app, base_url="http://localhost") as client:
        jobs = {}
        for name, tenant in (("one", "own"), ("two", "own"), ("foreign", "other")):
            token = token_of(database, tenant)
            client.headers["Authorization"] = f"Bearer {token}"
            jobs[name] = submit(client, launcher="torchtitan" if name == "two" else "none")
            assert listed(client, owner="me") == [jobs[name]]
            assert client.get(f"/v1/jobs/{jobs[name]}").json()["owner"] == token.split("_")[1]
            if name == "one":
                first = token.split("_")[1]
        assert listed(client, owner=first) == []  # as another tenant
        client.headers["Authorization"] = f"Bearer {token_of(database, 'own')}"
        assert listed(client, owner=first) == [jobs["one"]]
        assert listed(client, owner="me") == []


def test_pages_with_several_filters_lead_to_every_job(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs are looked at for each page, of which one or none fits."""
    monkeypatch.setattr(records, "MAX_LOOKED_AT", 2)
    wanted = {"labels": "team=nlp", "model": "llama-3.1-8b"}
    fitting = []
    for number in range(6):
        model = "llama-3.1-8b" if number in {0, 5} else "llama-3.1-70b"
        job = submit(client, labels={"team": "nlp", "n": str(number)}, model={"name": model})
        fitting += [job] if number in {0, 5} else []
        client.post(f"/v1/jobs/{job}:cancel")
    found, token, pages = [], "", 0
    while token is not None:
        more = {"page_token": token} if token else {}
        page = client.get("/v1/jobs", params={**wanted, "page_size": "1", **more}).json()
        found += [job["id"] for job in page["jobs"]]
        token, pages = page.get("next_page_token"), pages + 1
    assert found == fitting[::-1]
    assert pages > 2


@pytest.mark.parametrize(
    ("labels", "pointer"),
    [
        ({"": "x"}, "/labels"),
        ({"team": "n p"}, "/labels/team"),
        ({"team": 7}, "/labels/team"),
        (["team"], "/labels"),
        ({str(number): "x" for number in range(17)}, "/labels"),
    ],
)
def test_unusable_labels_are_refused_by_name(client: TestClient, labels: object, pointer: str) -> None:
    answer = client.post("/v1/jobs", json={**BODY, "labels": labels})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)


@pytest.mark.parametrize("selector", ["team", "team=a b", "team=a,team=b", "=x", "", ",", "team=nlp,"])
def test_an_unusable_selector_is_refused(client: TestClient, selector: str) -> None:
    answer = client.get("/v1/jobs", params={"labels": selector})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/query/labels")
