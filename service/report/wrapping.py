"""Lines that break between their pieces, and go on further to the right."""

from __future__ import annotations

import textwrap

from rich.text import Text

_TIE = "\N{NO-BREAK SPACE}"
_HANG = 2
_LEAST_ROOM = 20  # columns of text that a continued line keeps


def tied(piece: str) -> str:
    """A piece that is not broken: its blanks hold."""
    return piece.replace(" ", _TIE)


def pieces(text: str, separator: str) -> str:
    """``text`` that breaks at its separators only."""
    return f" {separator} ".join(map(tied, text.split(f" {separator} ")))


def wrapped(text: str, width: int, *, indent: int = 0, hang: int = _HANG, style: str = "") -> Text:
    """``text`` in lines of ``width`` columns; lines after the first stand ``hang`` further right.

    Breaks at blanks, never in a ``tied`` piece unless it alone is too long for a line.
    """
    room = max(width - indent - _LEAST_ROOM, 0)
    after = " " * (indent + min(hang, room))
    lines = textwrap.wrap(
        text,
        max(width, 1),
        initial_indent=" " * indent,
        subsequent_indent=after,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return Text("\n".join(lines).replace(_TIE, " "), style=style)
