"""The page of the API: every operation of the OpenAPI document, with a request that can be copied."""

import re

from fastapi.testclient import TestClient

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
    (command,) = re.findall(r'id="curl-submit_v1_jobs_post"[^>]*><code>(.*?)</code>', text, re.DOTALL)
    assert command.startswith("curl http://localhost/v1/jobs")
    assert "-d @request.json" in command
    assert "curl -X DELETE" in text
