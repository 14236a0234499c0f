"""What ``make test`` leaves to ``make fuzz``: most random requests, rows of long tables, slow tests."""

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")
TIMES = int(os.environ.get("MESHWRIGHT_TEST_DRAWS", "1"))
WHOLE = TIMES > 1 or "UPDATE_GOLDEN" in os.environ  # take whole tables
# make fuzz takes every file that imports this module: architecture/test_house.py holds it to that
seldom = pytest.mark.skipif(not WHOLE, reason="slow: make fuzz runs it; a quicker test runs the same code")


def draws(of_every_day: int, *, of_more: int = 0) -> int:
    """So many; ``MESHWRIGHT_TEST_DRAWS=30`` makes thirty times as many of them, or of ``of_more``.

    Draws that take seconds each are one or two every day, and as many as ever where more is drawn.
    """
    return of_every_day if TIMES == 1 else max(of_every_day, of_more) * TIMES


def some_of(every: Sequence[T], *, each: int, first: int = 0) -> Sequence[T]:
    """Return every ``each``-th row from the ``first`` one on (modulo ``each``).

    All rows in ``make fuzz``, and when golden files are rewritten.
    """
    return every if WHOLE else every[first % each :: each]
