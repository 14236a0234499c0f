"""``python`` of any environment as a program whose processes have torch loaded: forks of one process.

Loading torch takes two CPU seconds, and a trainer five; ``torchrun`` does so itself and in every rank.
``python`` writes the program. What it runs is a process with its own arguments, folder, environment,
streams and signals, for which the program stands: it passes signals on, ends as the process does, and takes
it along where it is killed. What that process starts by ``sys.executable`` comes from here as well.
``python warm_python.py SOCKET PROGRAM MODULE…`` is the process that is forked: it needs nothing beyond
the standard library, has one thread, and ends when its standard input is closed.
"""

import atexit
import gc
import importlib
import io
import json
import os
import random
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

RANKS = (  # what trainers load in each
    "torch", "torch.distributed.run", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor",
    "torch.distributed.checkpoint", "torch.distributed.pipelining",
)  # fmt: skip
SETTLED = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}  # torch reads them as it is loaded
CLIENT = """\
import array, json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX); line.connect({path!r})
asked = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
line.sendmsg([len(asked).to_bytes(4, "big")],
             [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
line.sendall(asked)
pid = int.from_bytes(line.recv(4), "big")
for one in (signal.SIGINT, signal.SIGTERM):
    signal.signal(one, lambda number, _: os.kill(pid, number))
code = int.from_bytes(line.recv(4), "big", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL); os.kill(os.getpid(), -code)
os._exit(code)
"""


@cache
def python(interpreter: str = sys.executable, *modules: str, path: str = "") -> str:
    """Return the program that takes the place of an interpreter; it ends with this process.

    Args:
        interpreter: of the environment that it is.
        modules: that its processes have loaded; without any, ``RANKS``.
        path: ``PYTHONPATH`` by which these are found.
    """
    folder = tempfile.mkdtemp(prefix="mw-python-")
    address, program = f"{folder}/socket", Path(folder) / "python"
    program.write_text(f"#!{sys.executable} -IS\n" + CLIENT.format(path=address))
    program.chmod(0o755)
    ours = {**os.environ, "PYTHONPATH": path, **SETTLED}
    forked = subprocess.Popen(
        [interpreter, __file__, address, str(program), *(modules or RANKS)], stdin=subprocess.PIPE, env=ours
    )
    stream = forked.stdin
    assert stream is not None

    def end() -> None:
        stream.close()
        forked.wait()

    atexit.register(end)
    while not Path(address).exists():
        assert forked.poll() is None, "it did not start"
        time.sleep(0.02)
    return str(program)


# --------------------------------------------------------------------------------------------------
# The process that is forked.


def main(address: str, program: str, modules: Sequence[str]) -> Callable[[], object]:
    """Fork until nobody wants more; in a fork, what it is to do."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = [one for one in sys.path[1:] if one not in given]
    for name in modules:
        importlib.import_module(name)
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork has no other thread"
    sys.executable = program
    gc.freeze()  # a fork does not look through what was loaded, neither while it runs nor as it ends
    waker, woken = socket.socketpair()
    for one in (waker, woken):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: for the tests, not for this
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.new")
    listener.listen(64)
    Path(f"{address}.new").rename(address)
    running: dict[socket.socket, int] = {}
    chosen = selectors.DefaultSelector()
    for source in (sys.stdin, listener, waker):
        chosen.register(source, selectors.EVENT_READ)
    while sys.stdin not in (ready := [key.fileobj for key, _ in chosen.select()]):
        with suppress(BlockingIOError):
            waker.recv(4096)
        for line in running.keys() & {*ready}:  # the program was killed
            chosen.unregister(line)
            os.kill(running[line], signal.SIGKILL)
        bury(running, chosen)
        if listener in ready:
            line, _ = listener.accept()
            asked, streams = received(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                chosen.close()
                for one in (line, listener, waker, woken, *running):
                    one.close()
                return begun(asked, streams, own)
            for stream in streams:
                os.close(stream)
            line.sendall(pid.to_bytes(4, "big"))
            running[line] = pid
            chosen.register(line, selectors.EVENT_READ)
    return lambda: None


def received(line: socket.socket) -> tuple[list[object], list[int]]:
    """What is asked for, and the streams of the new process."""
    head, streams, _, _ = socket.recv_fds(line, 4, 3)
    left, said = int.from_bytes(head, "big"), b""
    while len(said) < left:
        said += line.recv(left - len(said))
    return json.loads(said), streams


def bury(running: dict[socket.socket, int], chosen: selectors.BaseSelector) -> None:
    """Tell who waits for children that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        line = next(one for one, other in running.items() if other == pid)
        del running[line]
        with suppress(KeyError):  # its program was killed
            chosen.unregister(line)
        with suppress(OSError):
            line.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
        line.close()


def begun(asked: Sequence[object], streams: Sequence[int], own: Sequence[str]) -> Callable[[], object]:
    """Become the process that is asked for: all but what it runs."""
    words, folder, environment = asked
    assert isinstance(words, list)
    assert isinstance(folder, str)
    assert isinstance(environment, dict)
    os.setsid()
    for number, one in enumerate(streams):
        os.dup2(one, number)
        os.close(one)
    unbuffered = words[0] == "-u"
    kind, *words = words[1:] if unbuffered else words
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), encoding="utf-8")
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(number, "w", closefd=False)), encoding="utf-8",
            errors="backslashreplace", line_buffering=number == 2, write_through=unbuffered,
        )
        for number in (1, 2)
    )  # fmt: skip
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()
    first = str(Path(kind).resolve().parent) if kind not in ("-c", "-m") else folder if kind == "-m" else ""
    added = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[:] = [first, *added, *own]
    if kind == "-c":
        code, *arguments = words
        sys.argv = ["-c", *arguments]
        return lambda: exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102
    if kind == "-m":
        sys.argv = words
        sys.modules.pop(words[0], None)  # it runs as a module of its own
        return lambda: runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    sys.argv = [kind, *words]
    return lambda: runpy.run_path(kind, run_name="__main__")


def ended(run: Callable[[], object]) -> NoReturn:
    """Run it, and end as Python ends, but for taking apart every module; faults end as they always do."""
    code: str | int | None = None
    try:
        run()
    except SystemExit as end:
        code = end.code
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if isinstance(code, str):
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    ended(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
