"""Pages that are made from code say what the code says; what they describe is really there."""

import pytest

from meshwright.service.cli.examples import EXAMPLES
from meshwright.service.reference.__main__ import DOCS, PAGES
from meshwright.service.reference.pages import fields_table, glossary_page, openapi
from meshwright.service.report.formatting import COLUMNS, MEMORY_TERMS, TIME_TERMS, words


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_makes_of_it(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "make reference"


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
        '| `b` | `x` \\| `y` | `"x"` |  |',
        "| `c` | list of Plan | – |  |",
    ]
