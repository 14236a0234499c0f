"""The page of the API: every operation of the OpenAPI document, with a request that can be copied."""

import json
import re
from collections.abc import Callable

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from fastapi.testclient import TestClient

from meshwright.service.fleets.request import read_fleet
from meshwright.service.requests.parse import parse_problem
from tests.processes.warm import ROOT
from tests.served.reports import Page


def test_every_operation_is_on_the_page_with_its_example(browser: TestClient) -> None:
    document = browser.get("/openapi.json").json()
    answer = browser.get("/docs")
    assert answer.status_code == 200
    page = Page(answer.text)
    examples = 0
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            assert f"{method.upper()} {path}" in page.text
            assert f'id="{one["operationId"]}"' in answer.text
            content = one.get("requestBody", {}).get("content", {}).get("application/json", {})
            examples += "example" in content
            assert ("example" in content) == (f'id="body-{one["operationId"]}"' in answer.text)
    assert examples >= 10  # of problems, plans, profiles, definitions and keys


def test_the_command_of_a_request_with_a_body_names_its_file(browser: TestClient) -> None:
    text = browser.get("/docs").text
    (command,) = re.findall(r'id="curl-submit_job"[^>]*><code>(.*?)</code>', text, re.DOTALL)
    assert command.startswith("curl http://localhost/v1/jobs")
    assert "-d @request.json" in command
    assert "curl -X DELETE" in text


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
