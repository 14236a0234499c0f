"""Searches whose limits are CPU seconds of their process: a busy or slow machine cuts no answer short.

Nor does it print more: what a pipe shows every few seconds of a search is left out meanwhile.
"""

import math
import time

from meshwright.service.cli import progress
from meshwright.solver import clock
from tests.processes.pace import pace, work_s

_EVERY_S = 0.001
_PIPE_EVERY_S = progress.PIPE_EVERY_S


class _CpuClock:
    """A ``time`` whose seconds are those of the process's CPU time, less on a slower machine.

    The kernel is asked once a millisecond: searches look ten thousand times a second, and it takes 2 µs to
    answer, ten times as long as ``time.monotonic``.
    """

    def __init__(self) -> None:
        self._cpu_s, self._again_s = 0.0, -math.inf

    def monotonic(self) -> float:
        now_s = time.monotonic()
        if now_s >= self._again_s:
            self._cpu_s, self._again_s = work_s(), now_s + _EVERY_S
        return self._cpu_s

    @staticmethod
    def thread_time() -> float:
        return time.thread_time() / pace()


def count_cpu_seconds() -> None:
    """Set the clock of every search of this process."""
    vars(clock)["time"] = _CpuClock()
    vars(progress)["PIPE_EVERY_S"] = math.inf


def count_seconds() -> None:
    """Set it back."""
    vars(clock)["time"] = time
    vars(progress)["PIPE_EVERY_S"] = _PIPE_EVERY_S
