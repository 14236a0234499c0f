"""The judge's process: a new Python, or a copy of this one that has loaded most of what it needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import IO

from meshwright.solver.search.certify import child


def started() -> Child:
    """Start a new Python that reads questions from stdin."""
    return subprocess.Popen(
        [sys.executable, "-m", "meshwright.solver.search.certify.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is the parent's to handle
    )


def copied() -> Child:
    """Fork this process, which has loaded Python and NumPy; start anew where it has threads."""
    if threading.active_count() > 1:
        return started()
    questions, verdicts = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(questions[1])  # or the copy would hold its own questions open
        os.close(verdicts[0])
        _answer(questions[0], verdicts[1])
    os.close(questions[0])
    os.close(verdicts[1])
    return _Copy(pid=pid, stdin=os.fdopen(questions[1], "wb"), stdout=os.fdopen(verdicts[0], "rb"))


def _answer(questions: int, verdicts: int) -> None:
    """Answer in the copy, which leaves terminal and pipes to the parent, and never return."""
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in {0, 1, 2} - {questions, verdicts}:
            os.dup2(nothing, stream)
        child.answer(os.fdopen(questions), os.fdopen(verdicts, "w"))
    finally:
        os._exit(0)


@dataclass(slots=True, kw_only=True)
class _Copy:
    """A fork of this process with as much of the interface of ``subprocess.Popen`` as the judge uses."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    returncode: int | None = None

    def poll(self) -> int | None:
        return self._status_of(os.WNOHANG)

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int | None:
        return self._status_of(0)

    def _status_of(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


Child = subprocess.Popen[bytes] | _Copy
