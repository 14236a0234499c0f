"""The OpenAPI document: the checked-in one is the served one, and it holds together."""

import json
from pathlib import Path

from fastapi.testclient import TestClient

CHECKED_IN = Path(__file__).parents[3] / "docs" / "openapi.json"


def test_the_checked_in_document_is_the_served_one(client: TestClient) -> None:
    served = client.get("/openapi.json").json()
    assert json.loads(CHECKED_IN.read_text()) == served, (
        "python -m meshwright.service.api > docs/openapi.json"
    )


def test_every_address_says_that_its_errors_are_problem_documents(client: TestClient) -> None:
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                if int(status) >= 400 and path != "/readyz":
                    assert list(answer["content"]) == ["application/problem+json"], (method, path, status)


def test_every_reference_of_the_openapi_document_leads_somewhere(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    text = json.dumps(document)
    references = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert references <= document["components"]["schemas"].keys()
    assert "#/$defs/" not in text
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/JobRequest"}
