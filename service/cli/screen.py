"""The terminal, or the pipe, that a command prints to."""

from __future__ import annotations

import codecs
import io
import os
import sys

from rich.console import Console

PIPE_WIDTH = 160  # columns where nobody can say how wide the reader is
_PLAIN = str.maketrans("·×–−±…│─└←→≤≥█", "*x--~.|-+<><>#")  # one for one: columns stay where they are
_UNSPELLABLE = "meshwright-plain"


def screen() -> Console:
    """stdout: as wide as the terminal or COLUMNS, else PIPE_WIDTH; colour only in a terminal."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if known else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)


def spell_plainly() -> None:
    """Let stdout and stderr of an encoding without our signs (``LC_ALL=C``) show plainer ones."""
    codecs.register_error(_UNSPELLABLE, _plainer)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_UNSPELLABLE)


def _plainer(fault: UnicodeError) -> tuple[str, int]:
    """ASCII in the place of what an encoding lacks; unknown signs become question marks."""
    if not isinstance(fault, UnicodeEncodeError):
        raise fault
    lacking = fault.object[fault.start : fault.end].translate(_PLAIN)
    return lacking.encode("ascii", "replace").decode("ascii"), fault.end
