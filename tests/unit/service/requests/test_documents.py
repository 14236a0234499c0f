"""Files that a request names: lengths of documents as a table."""

from pathlib import Path

import pytest

from meshwright.profiles.errors import InvalidProblemError
from meshwright.service.requests.documents import read_lengths_file


def test_a_table_of_lengths_may_have_a_title_and_numbers_of_documents(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text("tokens,count\n100,3\n\n200\n")
    # 3 of 4 documents have 100 tokens, 1 has 200
    assert read_lengths_file(file) == {
        "histogram": [{"length": 100, "share": 0.75}, {"length": 200, "share": 0.25}]
    }


@pytest.mark.parametrize("text", ["100\ntokens\n", "tokens\n100 200\n", "100\n1,2,3\n", "1\n-5\n"])
def test_a_line_that_is_no_length_is_refused_with_its_number(tmp_path: Path, text: str) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text(text)
    with pytest.raises(InvalidProblemError, match=r"line 2: .*Allowed: TOKENS or TOKENS,COUNT"):
        read_lengths_file(file)
