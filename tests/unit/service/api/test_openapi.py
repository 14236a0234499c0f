"""The OpenAPI document: what a client's generator makes of it."""

import re
from collections import Counter
from typing import Any

import pytest
from fastapi.testclient import TestClient

from meshwright.service.db.database import Database
from tests.chaos.rolling import ELSEWHERE, READ, WORK, id_of
from tests.served.answered_jobs import add_answered_job
from tests.served.reports import small_answer


@pytest.fixture
def document(client: TestClient) -> dict[str, Any]:
    read: dict[str, Any] = client.get("/openapi.json").json()
    return read


def test_every_operation_is_a_verb_and_a_noun_of_its_own(document: dict[str, Any]) -> None:
    names = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    verbs = "submit|list|read|put|create|add|delete|revoke|cancel|follow|replan|report|export|trace"
    verbs += "|verify|check"
    assert [name for name in names if not re.fullmatch(rf"({verbs})_[a-z_]*[a-z]", name)] == []
    assert [name for name, times in Counter(names).items() if times > 1] == []
    assert {"submit_job", "list_jobs", "create_prediction", "export_plan"} <= set(names)


def test_every_tag_is_described_and_used(document: dict[str, Any]) -> None:
    used = {one["tags"][0] for methods in document["paths"].values() for one in methods.values()}
    described = {tag["name"]: tag["description"] for tag in document["tags"]}
    assert used == set(described)
    assert all(words.endswith(".") for words in described.values())


def test_the_document_names_the_service_that_sends_it(document: dict[str, Any]) -> None:
    assert [server["url"] for server in document["servers"]] == ["/"]


def _kind(method: str, path: str) -> str:
    return f"{method.upper()} {re.sub('{[^}]*}|of-a-rollout', '{}', path.partition('?')[0])}"


def test_a_rolling_upgrade_asks_every_kind_of_request(client: TestClient, database: Database) -> None:
    asked = {_kind(work.method, work.path) for work in WORK} | {_kind("GET", path) for path in READ}
    paths = client.get("/openapi.json").json()["paths"]
    listed = {_kind(method, path) for path, methods in paths.items() for method in methods}
    assert listed - asked - ELSEWHERE == {"POST /v1/jobs"}
    assert not ELSEWHERE & asked
    assert listed >= ELSEWHERE
    problem, answer = small_answer()
    names = {"job": add_answered_job(database, "rolled", problem, answer), "plan": answer.plans[0].plan_id}
    for method, path, body, keeps in (work for work in WORK if work.path.startswith("/v1/")):
        filled = {**body, "plan": names["plan"]} if body and "plan" in body else body
        answered = client.request(method, path.format(**names), json=filled)
        assert answered.is_success, (method, path, answered.text)
        names |= {keeps: id_of(answered)} if keeps else {}
