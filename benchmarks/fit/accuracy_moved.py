"""What a page of tables has moved by against the one that was last committed.

Rows are found again by their section, the words that introduce their table and their first cells; a
number is the first one of a cell. Rows that only one of both pages has are named.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.fit.accuracy_tables import table

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_MEASURED = re.compile(r"mean|rank corr|in 80 %|memory")  # in titles of columns of errors and orders
LEAST_MOVE = 0.3  # points of error, hundredths of a correlation times thirty
_CORRELATION = 30.0  # .01 of a rank correlation counts as .3 points
_MOST_SHOWN = 60

Place = tuple[str, str, str]  # section, row, column


def committed(page: Path) -> str:
    """The page as it was last committed; empty where it never was."""
    found = subprocess.run(
        ["git", "show", f"HEAD:./{page.name}"],
        cwd=page.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout if found.returncode == 0 else ""


def moved(before: str, after: str) -> list[str]:
    """A table of the figures that moved, the farthest first, and the rows that came or went."""
    old, new = dict(_figures(before)), dict(_figures(after))
    both = [place for place in new if place in old]
    moves = {place: new[place] - old[place] for place in both}
    far = [place for place in both if _size(place, moves) >= LEAST_MOVE]
    far.sort(key=lambda place: -_size(place, moves))
    rows = [
        (section, row, column, f"{old[section, row, column]:g}", f"{new[section, row, column]:g}",
         f"{moves[section, row, column]:+.2f}")
        for section, row, column in far[:_MOST_SHOWN]
    ]  # fmt: skip
    lines = [f"{len(far)} of {len(both)} figures on both pages moved by {LEAST_MOVE} or more.", ""]
    lines += table(("section", "row", "figure", "committed", "now", "move"), rows)
    for word, here, there in (("new", new, old), ("gone", old, new)):
        names = sorted({f"{section}: {row}" for section, row, _ in here} - _rows(there))
        if names:
            lines += [f"{word}: {'; '.join(names[:_MOST_SHOWN])}", ""]
    return lines


def _rows(figures: Mapping[Place, float]) -> set[str]:
    """The rows that figures stand in."""
    return {f"{section}: {row}" for section, row, _ in figures}


def _size(place: Place, moves: Mapping[Place, float]) -> float:
    """How far a figure moved, correlations in points."""
    return abs(moves[place]) * (_CORRELATION if "rank corr" in place[2] else 1.0)


def _figures(page: str) -> Iterator[tuple[Place, float]]:
    """Every figure of the tables that has errors or orders."""
    section = caption = ""
    titles: list[str] = []
    for line in page.splitlines():
        if line.startswith("#"):
            section, caption, titles = line.strip("# ").split(":")[0], "", []
        elif not line.startswith("|"):
            caption, titles = (f"; {line[:-1]}" if line.endswith(":") else "") if line else caption, []
        elif not titles:
            titles = _cells(line)
        elif set(line) - set("|- "):
            yield from _row(section + caption, titles, _cells(line))


def _row(section: str, titles: list[str], cells: list[str]) -> Iterator[tuple[Place, float]]:
    """The figures of one row; columns of one title are told apart by what stands before them."""
    group = ""
    for title, cell in zip(titles[1:], cells[1:], strict=False):
        group = title.split(":")[0] if ":" in title else group
        found = _NUMBER.search(cell)
        if found and _MEASURED.search(title):
            column = title if title.startswith(group) else f"{group}: {title}"
            yield (section, cells[0], column.replace("*", "")), float(found.group())


def _cells(line: str) -> list[str]:
    """The cells of a line of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
