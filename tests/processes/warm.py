"""Processes of the product that begin with its modules loaded: forks of one that did nothing but load them.

Starting ``python -m meshwright …`` takes half a second to load modules, a server or a worker more than one.
A test that asks what a process does, not how it starts, takes one from here: its own process with its own
arguments, folder, environment, streams, signals and exit code. Commands search by a clock of CPU seconds,
and take their solvers from here as well: loading OR-Tools takes a third of a CPU second.
``python -m tests.processes.warm SOCKET`` is the process that is forked; it has one thread and ends when its
standard input is closed.
"""

import importlib
import io
import json
import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Self

from meshwright.profiles.profile import default_profile
from meshwright.service.cli.main import COMMANDS
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.planner.plan import ask
from meshwright.solver.search import cp_sat
from meshwright.solver.search.certify import judge
from tests.processes.cpu_clock import count_cpu_seconds
from tests.processes.forks import ended, serve, start, write_program

ROOT = Path(__file__).parents[2]
SOLVER = "meshwright.solver.search.certify.child"
RUN = ("meshwright.workers.__main__", SOLVER)  # by ``-m``, which loads them itself
CELERY = ("celery.bin.celery", "celery.apps.worker", "celery.concurrency.solo", "kombu.transport.redis")
LOADED = (
    "meshwright.service.serving.serve", "meshwright.service.jobs.sweeps", "meshwright_client", *RUN,
    "meshwright.workers.celery_app", *CELERY,
)  # fmt: skip
CERTIFY = ("split_model",)
REQUEST = {
    "model": {"name": "llama-3.1-8b"}, "cluster": {"name": "dgx-h100", "num_nodes": 1},
    "workload": {"global_batch_size": 64, "seq_length": 4096}, "launcher": "megatron-lm",
    "search": {"certify": "none", "top_k": 1},
}  # fmt: skip


@cache
def _socket(root: Path = ROOT) -> str:
    """The address of this process's own process to fork, of the code in ``root``; it ends with this one."""
    folder = tempfile.mkdtemp(prefix="mw-warm-")
    path = f"{folder}/socket"
    command = [sys.executable, "-m", "tests.processes.warm", path]
    ours = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root / 'client'}:{root}"}
    start(command, path, env=ours, cwd=root)
    return path


def program(path: Path) -> None:
    """Write ``meshwright`` as a program that gets a warm process, passes signals on, ends as it does."""
    write_program(path, _socket(), "-m", "meshwright")


class Warm(subprocess.Popen[str]):
    """A process as ``subprocess.Popen(…, text=True)`` gives it; ``words`` are what follows ``python``."""

    def __init__(
        self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path = ROOT,
        stdin: int | None = None, stdout: int | None = None, stderr: int | None = None, root: Path = ROOT,
    ) -> None:  # fmt: skip
        self._child_created = False  # for the destructor of the base: nothing of this process's own to bury
        self.args, self.returncode = list(words), None
        self.stdin, given = _input(stdin)
        self._communication_started, self._input = False, None
        self.text_mode = True
        self.stdout, out = _stream(stdout, 1)
        self.stderr, err = _stream(stderr, 2)
        streams = [given, out, err]
        self._line = socket.socket(socket.AF_UNIX)
        self._line.connect(_socket(root))
        asked = json.dumps([list(words), str(cwd), dict(env)]).encode()
        socket.send_fds(self._line, [len(asked).to_bytes(4, "big")], streams)
        self._line.sendall(asked)
        for one in streams:
            os.close(one)
        self.pid = int.from_bytes(self._line.recv(4), "big")

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        if self.returncode is None:
            self._line.settimeout(1e-6 if timeout == 0 else timeout)
            try:
                told = self._line.recv(4)
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._line.close()
            self.returncode = int.from_bytes(told, "big", signed=True)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Nothing where it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it may end here, as ``subprocess`` allows for
                os.kill(self.pid, sig)

    def __enter__(self) -> Self:
        return self


def _input(wanted: int | None) -> tuple[IO[Any] | None, int]:
    """Our end of its standard input, for bytes, where it is a pipe, and its own: by default nothing."""
    if wanted != subprocess.PIPE:
        return None, os.open(os.devnull, os.O_RDONLY)
    its, ours = os.pipe()
    return os.fdopen(ours, "wb"), its


def _stream(wanted: int | None, number: int) -> tuple[IO[str] | None, int]:
    """Our end of a stream, where it is a pipe, and that of the new process: by default the tests' own."""
    if wanted == subprocess.DEVNULL:
        return None, os.open(os.devnull, os.O_WRONLY)
    if wanted != subprocess.PIPE:
        return None, os.dup(number)
    ours, its = os.pipe()
    return os.fdopen(ours, encoding="utf-8"), its


class Solver(Warm):
    """CP-SAT as a warm process, in place of the one that the judge starts: it has OR-Tools loaded."""

    def __init__(
        self, command: Sequence[str], *, stdin: int, stdout: int, stderr: int, start_new_session: bool
    ) -> None:
        assert start_new_session  # as every one is begun
        super().__init__(command[1:], env=os.environ, stdin=stdin, stdout=stdout, stderr=stderr)


def run_warm(
    *arguments: str, env: Mapping[str, str], cwd: Path = ROOT, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS`` to its end, with what it printed."""
    with Warm(arguments, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(arguments), process.wait(), stdout, stderr)


# --------------------------------------------------------------------------------------------------
# The process that is forked.


def main(path: str) -> Callable[[], object]:
    """Fork until nobody wants more; in a fork, what it is to do."""
    _load()
    _answer()
    vars(sys.modules[__name__])["_socket"] = lambda _root=ROOT: path  # of forks
    return serve(path, _begun, kills=False)


def _load() -> None:
    """Load what forks run, and let them take their solvers from here."""
    commands = (f"meshwright.service.cli.{where.partition(':')[0]}" for where, _ in COMMANDS.values())
    for name in (*LOADED, *commands):
        importlib.import_module(name)
    sys.modules["pandas"] = cp_sat._TypesAlone("pandas")  # as the solver has it
    for name in CERTIFY:
        importlib.import_module(f"meshwright.solver.search.certify.{name}")
    for name in ("pandas", *RUN):
        del sys.modules[name]
    vars(judge)["subprocess"] = SimpleNamespace(
        Popen=Solver, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL
    )


def _answer() -> None:
    """Answer one small request: forks find the facts that it reads and what follows from them."""
    problem = parse_problem(REQUEST)
    ask(problem, default_profile(problem.cluster, problem.launcher))


def _begun(asked: list[Any]) -> Callable[[], object]:
    """Become the process that is asked for: all but what it runs."""
    words, folder, environment = asked
    sys.stdin = _text(0, "r")
    sys.stdout = _text(
        1, "w", line_buffering=os.isatty(1), write_through=bool(environment.get("PYTHONUNBUFFERED"))
    )
    sys.stderr = _text(2, "w", errors="backslashreplace", line_buffering=True)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path += [one for one in paths if one and one not in sys.path]
    time.tzset()
    random.seed()
    kind, what, *arguments = words
    if what == SOLVER:
        os.setsid()
    if what == "meshwright" and arguments[:1] != ["serve"]:
        count_cpu_seconds()
    sys.argv = ["-c" if kind == "-c" else what, *arguments]
    if kind == "-c":
        code = compile(what, "<string>", "exec")
        return lambda: exec(code, {"__name__": "__main__"})  # noqa: S102 - as ``python -c`` does
    return lambda: runpy.run_module(what, run_name="__main__", alter_sys=True)


def _text(number: int, mode: str, **how: Any) -> io.TextIOWrapper:  # noqa: ANN401 - arguments of TextIOWrapper
    """A standard stream as Python opens it."""
    raw = io.FileIO(number, mode, closefd=False)
    buffered = io.BufferedReader(raw) if mode == "r" else io.BufferedWriter(raw)
    return io.TextIOWrapper(buffered, encoding="utf-8", **how)


if __name__ == "__main__":
    ended(main(sys.argv[1]))
