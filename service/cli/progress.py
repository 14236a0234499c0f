"""A search's progress in the terminal, and Ctrl-C as a request to stop."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from meshwright.service.report.formatting import count, seconds
from meshwright.solver.problem import Progress

_STDERR = 2
_STOPPING = b"\nstopping: the best so far follows (Ctrl-C again: end at once)\n"


class ProgressLine:
    """One line on stderr, rewritten at every report; silent where stderr is no terminal."""

    def __init__(self) -> None:
        self._alive = sys.stderr.isatty()

    def show(self, progress: Progress) -> None:
        """Rewrite the line."""
        if self._alive:
            room = shutil.get_terminal_size().columns - 1  # a line that wraps could not be taken away
            sys.stderr.write(f"\r\x1b[2K{progress_words(progress)[:room]}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._alive:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def progress_words(progress: Progress) -> str:
    """``solving 3 912 of 184 320 · incumbent 33.6 s · bound 32.6 s · gap 3.0 % · 400 ms``."""
    words = [str(progress.stage)]
    if progress.total:
        words[0] += f" {count(progress.explored)} of {count(progress.total)}"
    if progress.incumbent_step_time_s is not None:
        words.append(f"incumbent {seconds(progress.incumbent_step_time_s)}")
    if progress.bound_step_time_s is not None:
        words.append(f"bound {seconds(progress.bound_step_time_s)}")
    if progress.gap is not None:
        words.append(f"gap {progress.gap * 100:.1f} %")
    return " · ".join([*words, seconds(progress.elapsed_s)])


class Cancellation:
    """Whether the user wants the search to stop."""

    def __init__(self) -> None:
        self.wanted = False

    def should_stop(self) -> bool:
        """Return whether the user wants to stop; the search asks."""
        return self.wanted


@contextmanager
def cancellable() -> Iterator[Cancellation]:
    """The first Ctrl-C asks the search to stop and keep what it has; the second one interrupts."""
    cancellation = Cancellation()

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        if cancellation.wanted:
            raise KeyboardInterrupt
        cancellation.wanted = True
        os.write(_STDERR, _STOPPING)  # a handler may interrupt a write of sys.stderr itself

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield cancellation
    finally:
        signal.signal(signal.SIGINT, before)
