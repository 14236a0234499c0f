"""Pages that are made from code say what the code says; what they describe is really there."""

import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from benchmarks.reference.__main__ import DOCS, PAGES
from benchmarks.reference.llms import llms_full_page, llms_page
from benchmarks.reference.pages import fields_table, glossary_page, openapi
from meshwright.service.cli.examples import EXAMPLES
from meshwright.service.report.formatting import COLUMNS, MEMORY_TERMS, TIME_TERMS, words
from meshwright.service.settings import Settings, as_markdown


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes_of_it(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "make reference"


def test_language_models_find_every_page_and_the_text_of_those_for_users() -> None:
    listed, whole = llms_page(), llms_full_page()
    pages = [name for name in listed.split("](")[1:] if not name.startswith("http")]
    assert all((DOCS / name.partition(")")[0]).is_file() for name in pages)
    assert "(howto/assistants.md)" in listed
    assert "# Use it from an AI assistant (MCP)" in whole
    assert "(adr/0001" in listed
    assert "<!-- adr/" not in whole


def test_every_command_every_path_and_every_word_of_the_report_is_there() -> None:
    commands, paths = (PAGES[name]() for name in ("reference/cli.md", "reference/api.md"))
    assert all(f"meshwright {path} {{#" in commands for path in EXAMPLES)
    assert all(
        f"## {verb.upper()} {path}\n" in paths
        for path in openapi()["paths"]
        for verb in openapi()["paths"][path]
    )
    glossary = glossary_page()
    assert all(meaning[1:] in glossary for meaning in COLUMNS.values())
    assert all(f"| {words(term)} |" in glossary for term in (*TIME_TERMS, *MEMORY_TERMS))


def test_a_field_is_told_with_its_type_its_limits_and_its_default() -> None:
    table = fields_table(
        {
            "required": ["a"],
            "properties": {
                "a": {"type": "integer", "minimum": 1, "maximum": 9, "description": "how many"},
                "b": {"anyOf": [{"type": "null"}, {"enum": ["x", "y"]}], "default": "x"},
                "c": {"type": "array", "items": {"$ref": "#/components/schemas/Plan"}, "default": []},
            },
        }
    )
    assert table[2:5] == [
        "| `a` | integer ≥ 1 ≤ 9 | required | how many |",
        '| `b` | `x`, `y` | `"x"` |  |',
        "| `c` | list of Plan | – |  |",
    ]


# docs/settings.md lists every setting there is, as `python -m meshwright.service.settings` prints it.

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_the_page_is_what_the_settings_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == as_markdown(), (
        "python -m meshwright.service.settings > docs/settings.md"
    )


def test_every_setting_says_what_it_is_for() -> None:
    silent = [name for name, field in Settings.model_fields.items() if not field.description]
    assert silent == []


# The OpenAPI document: the checked-in one is the served one, and it holds together.

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
    assert body["anyOf"][0] == {"$ref": "#/components/schemas/JobRequest"}  # or with a launch file
