"""The OpenAPI document: what a client's generator makes of it."""

import re
from collections import Counter
from typing import Any

import pytest
from fastapi.testclient import TestClient


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
