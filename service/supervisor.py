"""Starts worker processes, restarts those that die, and stops them all."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from service.settings import Settings

LOOK_S = 0.2
MIN_LIFE_S = 5.0  # a worker that dies younger is restarted with growing pauses
MAX_PAUSE_S = 10.0
KILL_AFTER_S = 2.0  # beyond the grace period
_ROOT = Path(__file__).parents[1]
_log = logging.getLogger(__name__)


class Supervisor:
    """A context that owns ``settings.workers`` worker processes; spawned, never forked."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self._slots = [_Slot(_command(), _environment(settings)) for _ in range(settings.workers)]
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        return self

    def start(self) -> None:
        """Start the workers and keep them running; returns at once."""
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        for slot in self._slots:
            slot.terminate()
        give_up_at = time.monotonic() + self._settings.grace_s + KILL_AFTER_S
        for slot in self._slots:
            slot.wait(give_up_at)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            for slot in self._slots:
                slot.keep_running()
            self._stopping.wait(LOOK_S)


class _Slot:
    """The place of one worker process."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._not_before = 0.0
        self._pause_s = LOOK_S

    def keep_running(self) -> None:
        """Start the process if there is none, unless it died a moment ago."""
        now = time.monotonic()
        if self._process is not None and self._process.poll() is not None:
            _log.warning("worker %d ended with %s", self._process.pid, self._process.returncode)
            young = now - self._started_at < MIN_LIFE_S
            self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s) if young else LOOK_S
            self._not_before = now + self._pause_s
            self._process = None
        if self._process is None and now >= self._not_before:
            # A session of its own: Ctrl-C in the terminal reaches the server, which tells its workers.
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command, env=self._environment, start_new_session=True
            )
            self._started_at = now

    def terminate(self) -> None:
        """Ask the process to give its job back and leave."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self, give_up_at: float) -> None:
        """Wait until the process has left; kill it at ``give_up_at`` (monotonic clock)."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            _log.warning("worker %d does not leave; killed", self._process.pid)
            self._process.kill()
            self._process.wait()


def _command() -> list[str]:
    """A worker that leaves when this process is gone."""
    return [sys.executable, "-m", "workers", "--parent-pid", str(os.getpid())]


def _environment(settings: Settings) -> dict[str, str]:
    """The worker's settings; the database URL may hold a password, so it is not put on a command line."""
    values = settings.model_dump(exclude={"host", "port", "insecure"}, exclude_none=True)
    ours = {f"MESHWRIGHT_{name.upper()}": str(value) for name, value in values.items()}
    paths = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **ours, "PYTHONPATH": paths}
