"""A search's progress in the terminal, and Ctrl-C as a request to stop."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType

from meshwright.service.report.formatting import count, seconds
from meshwright.solver.problem import Progress, ShouldStop

PIPE_EVERY_S = 5.0
_BAR = 12  # characters
_STAGES = {
    "enumerating": "listing configurations",
    "bounding": "ruling out",
    "solving": "searching",
    "certifying": "proving the best plan",
}
_STDERR = 2
_STOPPING = b"\nstopping: the best so far follows (Ctrl-C again: end at once)\n"


class ProgressLine:
    """How far a search is, on stderr: one line that is rewritten, in a pipe one every few seconds."""

    def __init__(self) -> None:
        self._alive = sys.stderr.isatty()
        self._written_s = 0.0  # of the search's own clock, when the last line of a pipe was written

    def show(self, progress: Progress) -> None:
        """Rewrite the line, or write one more if the last is old."""
        if self._alive:
            self.rewrite(f"{bar_of(progress)}{progress_words(progress)}")
            return
        self._written_s = min(self._written_s, progress.elapsed_s)  # the next search of a sweep starts anew
        if progress.elapsed_s - self._written_s >= PIPE_EVERY_S:
            self._written_s = progress.elapsed_s
            sys.stderr.write(f"{progress_words(progress)}\n")
            sys.stderr.flush()

    def rewrite(self, text: str) -> None:
        """Replace the terminal's line, cut to its width: a wrapped line cannot be removed."""
        if self._alive:
            room = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[2K{text[:room]}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        self.rewrite("")


def bar_of(progress: Progress) -> str:
    """Return ``████──────── ``, the share of configurations that are settled; empty: not known."""
    if not progress.total:
        return ""
    full = _BAR * min(progress.explored, progress.total) // progress.total
    return f"{'█' * full}{'─' * (_BAR - full)} "


def progress_words(progress: Progress) -> str:
    """``searching: 3 912 of 184 320 configurations settled · best so far 33.6 s, … · 400 ms``."""
    words = [_STAGES.get(progress.stage, progress.stage)]
    if progress.total:
        words[0] += f": {count(progress.explored)} of {count(progress.total)} configurations settled"
    if progress.incumbent_step_time_s is not None:
        words.append(f"best so far {seconds(progress.incumbent_step_time_s)}")
        if progress.gap is not None:
            words[-1] += f", at most {progress.gap * 100:.1f} % from the best possible"
    return " · ".join([*words, seconds(progress.elapsed_s)])


@contextmanager
def cancellable() -> Iterator[ShouldStop]:
    """Yield a check whether to stop: Ctrl-C stops the search with what it has; a second one interrupts."""
    wanted = Event()

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        if wanted.is_set():
            raise KeyboardInterrupt
        wanted.set()
        os.write(_STDERR, _STOPPING)  # a handler may interrupt a write of sys.stderr itself

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield wanted.is_set
    finally:
        signal.signal(signal.SIGINT, before)
