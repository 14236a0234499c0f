"""Worker processes and an API process that are killed and frozen, and always started again."""

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import httpx

from meshwright.service.db.database import DATABASE_AWAY
from tests.processes.servers import SERVE, Settings, environment, freeze
from tests.processes.warm import Warm

WORKER = ["-m", "meshwright.workers"]
API = ["-c", SERVE]
LOOK_S = 0.05
Found = TypeVar("Found")


class NodeGroups:
    """Keeps one process of every command running until it is closed."""

    def __init__(self, settings: Settings, commands: Sequence[list[str]]) -> None:
        self._settings = settings
        self._commands = commands
        self._processes = [self._start(command) for command in commands]
        self._thawing: list[tuple[float, Warm]] = []

    def keep_running(self) -> None:
        """Start again what died, and wake what was frozen for long enough."""
        now = time.monotonic()
        for moment, process in list(self._thawing):
            if now >= moment:
                process.send_signal(signal.SIGCONT)
                self._thawing.remove((moment, process))
        for place, process in enumerate(self._processes):
            if process.poll() is not None:
                self._processes[place] = self._start(self._commands[place])

    def kill(self, pid: int) -> bool:
        """SIGKILL one process; False: it is not ours or frozen."""
        process = self._awake(pid)
        if process is not None:
            process.kill()
            process.wait()
        return process is not None

    def stop(self, pid: int) -> bool:
        """SIGTERM one process, which may finish what it has in hand; False: it is not ours or frozen."""
        process = self._awake(pid)
        if process is not None:
            process.send_signal(signal.SIGTERM)
        return process is not None

    def kill_all(self) -> int:
        """SIGKILL every process at once; how many they were."""
        self._thawing.clear()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        return len(self._processes)

    def freeze(self, pid: int, seconds: float) -> bool:
        """Stop one process and let it go on later; False: it is not ours or frozen already."""
        process = self._awake(pid)
        if process is not None:
            freeze(process.pid, self._settings["database_url"])
            self._thawing.append((time.monotonic() + seconds, process))
        return process is not None

    def any_pid(self, draw: random.Random) -> int:
        """A process of the fleet."""
        return draw.choice(self._processes).pid

    def _awake(self, pid: int) -> Warm | None:
        frozen = {process.pid for _, process in self._thawing}
        awake = (p for p in self._processes if p.pid == pid and p.pid not in frozen and p.poll() is None)
        return next(awake, None)

    def _start(self, command: list[str]) -> Warm:
        quiet = subprocess.DEVNULL
        return Warm(command, env=environment(self._settings), stdout=quiet, stderr=quiet)


class Submitter:
    """Posts jobs until each was acknowledged, each under its own idempotency key, whatever breaks."""

    def __init__(
        self, url: str, number: int, problem_of: Callable[[int], dict[str, object]], token: str
    ) -> None:
        self.acknowledged: dict[str, str] = {}
        self.refused: list[str] = []  # answers that are neither 202 nor a 503
        self.max_open = 0  # jobs that may be acknowledged so far; the storm raises it
        self._url = url
        self._number = number
        self._problem_of = problem_of  # the number of a job
        self._head = {"Authorization": f"Bearer {token}"}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop posting."""
        self._over.set()
        self._thread.join(15)

    def _run(self) -> None:
        while len(self.acknowledged) < self._number and not self._over.is_set():
            if len(self.acknowledged) >= self.max_open or not self._post(len(self.acknowledged)):
                self._over.wait(LOOK_S)

    def _post(self, number: int) -> bool:
        key, body = f"key-{number}", self._problem_of(number)
        try:
            answer = httpx.post(
                f"{self._url}/v1/{'fleets' if 'jobs' in body else 'jobs'}",
                params={"fresh": "true"},
                headers={**self._head, "Idempotency-Key": key},
                json=body,
                timeout=10,
            )
        except httpx.HTTPError:  # the API was killed, or is not up yet
            return False
        if answer.status_code == httpx.codes.ACCEPTED:
            self.acknowledged[key] = answer.json()["id"]
            return True
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            self.refused.append(f"{answer.status_code} {answer.text[:200]}")
        return False


def patiently(ask: Callable[[], Found], within_s: float = 60.0) -> Found:
    """What ``ask`` returns once the database is back."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return ask()
        except DATABASE_AWAY:
            if time.monotonic() > deadline:
                raise
            time.sleep(LOOK_S)
