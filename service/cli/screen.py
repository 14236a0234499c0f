"""The terminal, or the pipe, that a command prints to."""

from __future__ import annotations

import os
import sys

from rich.console import Console

PIPE_WIDTH = 160  # columns where nobody can say how wide the reader is


def screen() -> Console:
    """stdout: as wide as the terminal or COLUMNS, else PIPE_WIDTH; colour only in a terminal."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    width = None if known else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)
