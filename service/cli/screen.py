"""The terminal, or the pipe, that a command prints to."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_WIDTH = 160  # columns where nobody can say how wide the reader is


def screen() -> Console:
    """stdout: as wide as the terminal, PIPE_WIDTH in a pipe; colour only where there is a terminal."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)
