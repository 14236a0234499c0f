"""Words that a reader stumbles over, counted in the product's text: their number only falls.

In what users read (strings that are not docstrings, and templates) most of them do not occur at all.

Plain words are listed in CONTRIBUTING.md. A count that fell by more than the slack lowers its ceiling here,
so that it cannot rise again.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.house import ROOMS

ROOT = Path(__file__).parents[2]
SLACK = 25
CEILINGS = {
    r"told|tells": 16,
    r"whose": 18,
    r"nobody|somebody": 2,
    r"beside": 55,
    r"hangs on|hang on": 0,
    r"mends?|mended": 0,
    r"passed by|pass by": 2,
    r'"""What ': 10,
}


@pytest.fixture(scope="module")
def text() -> str:
    """All code and templates of the product."""
    files = [
        path
        for room in ROOMS
        for suffix in ("py", "html")
        for path in sorted((ROOT / room).rglob(f"*.{suffix}"))
    ]
    assert len(files) > 300
    return "\n".join(path.read_text("utf-8") for path in files)


@pytest.mark.parametrize("words", CEILINGS)
def test_words_that_read_as_translated_become_fewer(words: str, text: str) -> None:
    pattern = words if words.startswith('"') else rf"\b({words})\b"
    found = len(re.findall(pattern, text, re.IGNORECASE))
    assert found <= CEILINGS[words], (
        f"{found}: say it plainly (CONTRIBUTING.md), or use a word of the field"
    )
    assert found > CEILINGS[words] - SLACK, f"{found}: lower the ceiling of {words}"


# In strings and templates: what users read.
SHOWN = {
    r"told|nobody|somebody|hangs on|hang on|mends?|mended|passed by|pass by|as it stands|stands for": 0,
    r"tells|whose|says": 0,
    r"beside": 1,  # a key of the catalog
    r"is no (?:JSON|number|text|section|layer|multiple|whole|key|link|time|way to|list)": 0,
}


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def shown_texts() -> list[str]:
    """Strings of the code that are not docstrings, and the text of templates without its comments."""
    return list(_shown_texts())


def _shown_texts() -> Iterator[str]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            docstrings = set[ast.expr]()
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):  # a body after what it is of
                if isinstance(node, ast.Constant):
                    if isinstance(node.value, str) and node not in docstrings:
                        yield node.value
                elif isinstance(node, DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr):
                    docstrings.add(node.body[0].value)
        for path in sorted((ROOT / room).rglob("*.html")):
            yield re.sub(r"\{#.*?#\}", "", path.read_text("utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("words", SHOWN)
def test_users_do_not_read_them(words: str) -> None:
    pattern = re.compile(rf"\b({words})\b", re.IGNORECASE)
    found = [text for text in shown_texts() if pattern.search(text)]
    assert len(found) <= SHOWN[words], found


# In README.md and the pages of docs, without those that show the words as examples.
WRITTEN = {
    r"told|tells|whose|nobody|somebody": 33,
    r"hangs on|hang on|mends?|mended|pass by|as it stands": 0,
    r"beside": 7,
    r"says": 1,
}


@pytest.mark.parametrize("words", WRITTEN)
def test_pages_use_them_less_and_less(words: str) -> None:
    pages = {ROOT / "README.md", *(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "style.md"}
    pages -= {page for page in pages if "adr" in page.parts}  # decisions stay as they were written
    found = sum(
        len(re.findall(rf"\b({words})\b", page.read_text("utf-8"), re.IGNORECASE)) for page in pages
    )
    assert found <= WRITTEN[words], f"{found}: say it plainly (docs/style.md)"
    assert found > WRITTEN[words] - SLACK, f"{found}: lower the ceiling of {words}"
