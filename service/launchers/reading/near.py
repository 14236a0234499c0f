"""Names that were meant: a slip of the finger is refused, because a launcher drops it or stops on it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from itertools import zip_longest

_SHORT = 6  # letters; below it any other name may be meant
_SHORT_WORD = 4  # below it letters are swapped only: ep_size is no slip of sp_size
_LONG_WORD = 8  # from here on two slips are forgiven
_CUTOFF = 0.8  # of difflib's ratio: two slips in ten letters
_BETWEEN = re.compile(r"[._-]")


def meant(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` is a slip away from; None: none is.

    Every word of it may be wrong in a letter, lack one, have one too many, or two of them swapped; short
    words and digits must be right: ``fp4_recipe`` is not meant to be ``fp8_recipe``.
    """
    if len(name) < _SHORT:
        return None
    near = difflib.get_close_matches(name, known, n=3, cutoff=_CUTOFF)
    return next((other for other in near if _is_slip(name, other)), None)


def _is_slip(name: str, other: str) -> bool:
    """Whether each word of one name is a slip away from that of the other."""
    if _digits(name) != _digits(other):
        return False
    words = list(zip_longest(_BETWEEN.split(name), _BETWEEN.split(other), fillvalue=""))
    if any("" in pair for pair in words):
        return _slips(name, other) == 1  # of what stands between words
    return all(one == right or _is_slip_of_word(one, right) for one, right in words)


def _is_slip_of_word(word: str, right: str) -> bool:
    if len(right) < _SHORT_WORD:
        return sorted(word) == sorted(right) and _slips(word, right) == 1
    return _slips(word, right) <= 1 + (len(right) >= _LONG_WORD)


def _digits(name: str) -> str:
    return "".join(letter for letter in name if letter.isdecimal())


def _slips(one: str, other: str) -> int:
    """Edits of one letter, or swaps of neighbours, between two names (optimal string alignment)."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        now = [row]
        for column, wanted in enumerate(other, start=1):
            cost = min(last[column] + 1, now[-1] + 1, last[column - 1] + (letter != wanted))
            if row > 1 and column > 1 and (letter, one[row - 2]) == (other[column - 2], wanted):
                cost = min(cost, before[column - 2] + 1)
            now.append(cost)
        before, last = last, now
    return last[-1]
