"""Words that a reader stumbles over, counted in the product's text: their number only falls.

Plain words are listed in CONTRIBUTING.md. A count that fell by more than the slack lowers its ceiling here,
so that it cannot rise again.
"""

import re
from pathlib import Path

import pytest

from benchmarks.house import ROOMS

ROOT = Path(__file__).parents[2]
SLACK = 25
CEILINGS = {
    r"told|tells": 20,
    r"whose": 35,
    r"nobody|somebody": 4,
    r"beside": 83,
    r"hangs on|hang on": 0,
    r"mends?|mended": 0,
    r"passed by|pass by": 2,
    r'"""What ': 9,
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
