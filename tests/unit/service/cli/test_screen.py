"""What is printed where the encoding has none of our signs."""

import io
import sys

import pytest

from meshwright.service.cli.terminal import spell_plainly


def printed(text: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    buffer = io.BytesIO()
    with io.TextIOWrapper(buffer, encoding=encoding, write_through=True) as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        spell_plainly()
        stream.write(text)
        return buffer.getvalue()


def test_signs_that_an_encoding_lacks_become_plain_ones_of_the_same_width(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "16 × DGX · ±4 % │ – ← best └─ −8 ms …"
    plain = printed(text, "ascii", monkeypatch).decode()
    assert plain == "16 x DGX * ~4 % | - < best +- -8 ms ."
    assert len(plain) == len(text)


def test_other_signs_become_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed("模", "ascii", monkeypatch) == b"?"


def test_what_an_encoding_has_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed("× │", "latin-1", monkeypatch) == b"\xd7 |"
    assert printed("│", "utf-8", monkeypatch) == "│".encode()
