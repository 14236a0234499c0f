"""The examples of the OpenAPI document: each operation has one, and it is what the document allows."""

from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from fastapi.testclient import TestClient
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

JSON = "application/json"


@pytest.fixture
def document(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


def described(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return every body and every answer of JSON, with its name."""
    parts = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            every = {"body": operation.get("requestBody", {}), **operation["responses"]}
            for name, part in every.items():
                if (name == "body" or name.startswith("2")) and JSON in part.get("content", {}):
                    parts.append((f"{method} {path} {name}", part["content"][JSON]))
    return parts


def test_every_operation_shows_what_it_takes_and_answers(document: dict[str, Any]) -> None:
    lacking = {name for name, part in described(document) if "example" not in part}
    kinds = ("models", "clusters", "gpus")
    assert lacking == {f"put /v1/{kind}/{{name}} 200" for kind in kinds}  # as 201


def test_every_operation_shows_texts_archives_and_values_of_its_address(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            status, success = next(
                (code, one) for code, one in operation["responses"].items() if code[0] == "2"
            )
            others = [part for kind, part in success.get("content", {}).items() if kind != JSON]
            assert all("example" in part for part in others), f"{method} {path}"
            assert bool(success.get("content")) is (status != "204"), f"{method} {path}"
            placed = [one for one in operation.get("parameters", ()) if one["in"] == "path"]
            assert all("example" in one for one in placed), f"{method} {path}"


def test_examples_are_what_the_document_describes(document: dict[str, Any]) -> None:
    resource = Resource.from_contents(document, default_specification=DRAFT202012)
    registry = Registry().with_resource("urn:openapi", resource)
    parts = described(document)
    for name, part in parts:
        if "example" in part:
            schema = absolute(part["schema"])
            faults = jsonschema.Draft202012Validator(schema, registry=registry).iter_errors(part["example"])
            assert [fault.message[:200] for fault in faults] == [], name
    assert len(parts) > 40


def absolute(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a schema with references to the document by its name."""
    if isinstance(schema, dict):
        return {
            name: f"urn:openapi{one}" if name == "$ref" else absolute(one) for name, one in schema.items()
        }
    return [absolute(one) for one in schema] if isinstance(schema, list) else schema
