"""Seconds as they would have been, had nothing else used the machine.

While something is timed, a thread repeats a small piece of work and a short sleep. Whatever holds up what
is timed (other processes, a neighbour on the same host) holds up the thread as well, so every repetition
counts as long as the fastest one took. What waits lets the thread run on, and counts. What computes without
leaving the interpreter to others holds the thread up, too: its promise is in CPU seconds. The clock runs
slower on a slower machine (``tests.processes.pace``).
"""

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.processes.pace import pace

_SLEEP_S = 0.004
_WORK = bytes(2**20)  # half a millisecond to hash


class QuietSeconds:
    """The clock of ``quiet_seconds``; ``took_s`` grows until its block is left."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._laps: list[float] = []

    @property
    def took_s(self) -> float:
        return len(self._laps) * min(self._laps, default=0.0) / pace()

    def run(self) -> None:
        while not self._ended.is_set():
            began_s = time.monotonic()
            time.sleep(_SLEEP_S)
            hashlib.sha256(_WORK)
            self._laps.append(time.monotonic() - began_s)

    def end(self) -> None:
        self._ended.set()


@contextmanager
def quiet_seconds() -> Iterator[QuietSeconds]:
    """Time a block by a clock that stands still while the machine is busy with other things."""
    clock = QuietSeconds()
    thread = threading.Thread(target=clock.run, daemon=True)
    thread.start()
    try:
        yield clock
    finally:
        clock.end()
        thread.join()
