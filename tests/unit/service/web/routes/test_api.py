"""What editors and programs read of the API: its document, and the schemas of files."""

import json
from collections.abc import Callable

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from fastapi.testclient import TestClient

from meshwright.service.fleets.request import read_fleet
from meshwright.service.requests.parse import parse_problem
from tests.processes.warm import ROOT


def test_the_page_of_the_api_is_its_document(browser: TestClient) -> None:
    assert browser.get("/docs").status_code == 404
    assert '<a href="/openapi.json">API</a>' in browser.get("/").text
    assert browser.get("/openapi.json").json()["paths"]


@pytest.mark.parametrize(
    ("name", "example", "read"),
    [
        ("problem", "llama-3.1-70b-128xh100.json", parse_problem),
        ("fleet", "fleet-small.yaml", read_fleet),
    ],
)
def test_a_file_names_its_schema_which_marks_mistakes_and_which_is_not_read(
    browser: TestClient, name: str, example: str, read: Callable[[dict[str, object]], object]
) -> None:
    schema = jsonschema.Draft202012Validator(browser.get(f"/schemas/{name}.json").json())
    written = yaml.safe_load((ROOT / "examples" / example).read_text())
    file = {"$schema": f"http://localhost/schemas/{name}.json", **written}
    schema.validate(file)
    assert read(file) == read(written)
    (mistake,) = schema.iter_errors({**file, "cluter": "dgx-h100"})
    assert "'cluter' was unexpected" in mistake.message


def test_an_unknown_schema_is_refused_with_those_that_exist(browser: TestClient) -> None:
    answer = browser.get("/schemas/plan.json", headers={"accept": "application/json"})
    assert answer.status_code == 404
    assert "there are problem, fleet" in json.dumps(answer.json())
