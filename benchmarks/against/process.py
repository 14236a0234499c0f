"""Peers run in processes and environments of their own: installing, starting, timing, giving up."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv-peers"
SCRIPTS = ROOT / "benchmarks" / "peers"
INSTALL_LIMIT_S = 900.0


class UnavailableError(Exception):
    """A peer cannot be asked; the message is the line to show for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a process answered, and what it took, from its start to its end."""

    answer: Mapping[str, Any]
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Seconds for everything."""

    limit_s: float
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds left; 0 when time is up."""
        return max(self.limit_s - (time.monotonic() - self.began_s), 0.0)


def environment(name: str, requirements: Sequence[str], *, alone: Sequence[str] = ()) -> Path:
    """The Python of a peer's own environment, made on first use; ``alone`` go in without dependencies.

    Raises:
        UnavailableError: it cannot be installed.
    """
    home = ENVIRONMENTS / name
    python = home / "bin" / "python"
    stamp = home / "installed"
    wanted = "\n".join([*requirements, *alone])
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(
        f"installing {', '.join([*alone, *requirements])} into {home.relative_to(ROOT)} (first time only)"
    )
    venv.create(home, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([*pip, *requirements], [*pip, "--no-deps", *alone]):
        if command[-1].startswith("--"):
            continue
        _installed(name, command)
    stamp.write_text(wanted)
    return python


def _installed(name: str, command: Sequence[str]) -> None:
    """Run pip; its last words where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as fault:
        raise UnavailableError(f"{name} could not be installed: {fault}") from None
    if done.returncode:
        raise UnavailableError(f"{name} could not be installed: {_last_words(done.stderr)}")


def ask(name: str, command: Sequence[str], request: Mapping[str, object], budget: Budget) -> Run:
    """Start a process, hand it a request as JSON, read the JSON in its last line of output.

    Raises:
        UnavailableError: it fails, answers no JSON, or time is up; what it started is then stopped.
    """
    if budget.left_s <= 0.0:
        raise UnavailableError(f"{name} is not measured: time is up")
    before = _children_cpu_s()
    try:
        process = _started(command)
    except OSError as fault:
        raise UnavailableError(f"{name} did not start: {fault}") from None
    try:
        out, err = process.communicate(json.dumps(request), timeout=budget.left_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise UnavailableError(f"{name} is not measured: it was not done when time was up") from None
    cpu_s = _children_cpu_s() - before
    if process.returncode:
        raise UnavailableError(f"{name} did not run: {_last_words(err)}")
    try:
        answer: Mapping[str, Any] = json.loads(out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise UnavailableError(f"{name} did not run: its last line is no JSON") from None
    return Run(answer=answer, cpu_s=cpu_s)


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    """A process in a group of its own, so that all it starts can be stopped with it."""
    threads = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **threads, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"},
        start_new_session=True,
    )


def ask_ours(request: Mapping[str, object], budget: Budget) -> Run:
    """Meshwright in a process of its own (``benchmarks.against.ours``)."""
    return ask("Meshwright", [sys.executable, "-m", "benchmarks.against.ours"], request, budget)


def _children_cpu_s() -> float:
    """CPU time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _last_words(text: str) -> str:
    """The last line of an error output."""
    return (text.strip().splitlines() or ["no message"])[-1][:300]
