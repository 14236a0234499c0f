"""A process that forks on demand, and the program that stands for a fork: the standard library alone.

Processes of the product (``warm``) and of other environments (``warm_python``) begin so with their modules
loaded. The process that is forked has one thread, and ends when its standard input is closed.
"""

import atexit
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

MAX_BYTES = 2**20  # of a request for a process
CLIENT = """\
import array, json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX); line.connect({address!r})
asked = json.dumps([{words!r} + sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
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


def write_program(path: Path, address: str, *words: str) -> None:
    """Write a program that gets a process, passes signals on, ends as it does; its own words come last."""
    path.write_text(f"#!{sys.executable} -IS\n" + CLIENT.format(address=address, words=[*words]))
    path.chmod(0o755)


def start(command: Sequence[str], address: str, *, env: Mapping[str, str], cwd: Path) -> None:
    """Start the process to fork, which ends with this one, and wait until it listens."""
    forked = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=cwd, env=env)
    stream = forked.stdin
    assert stream is not None

    def end() -> None:
        stream.close()
        forked.wait()

    atexit.register(end)
    while not Path(address).exists():
        assert forked.poll() is None, "it did not start"
        time.sleep(0.02)


def serve(
    address: str, begun: Callable[[list[Any]], Callable[[], object]], *, kills: bool
) -> Callable[[], object]:
    """Fork until nobody wants more; in a fork, what it is to do.

    ``kills``: a process goes with the program that stands for it, if that is killed.
    """
    gc.freeze()  # a fork does not look through what was loaded, neither while it runs nor as it ends
    waker, woken = socket.socketpair()
    for end in (waker, woken):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # the selector wakes: a child has ended
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
        for line in running.keys() & {*ready}:  # its program was killed
            chosen.unregister(line)
            os.kill(running[line], signal.SIGKILL)
        _bury(running, chosen)
        if listener not in ready:
            continue
        line, _ = listener.accept()
        asked, streams = _received(line)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            chosen.close()
            for one in (line, listener, waker, woken, *running):
                one.close()
            _settle(streams)
            return begun(asked)
        for stream in streams:
            os.close(stream)
        line.sendall(pid.to_bytes(4, "big"))
        running[line] = pid
        if kills:
            chosen.register(line, selectors.EVENT_READ)
    return lambda: None


def _settle(streams: Sequence[int]) -> None:
    """Take the signals and the streams of a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)


def _received(line: socket.socket) -> tuple[list[Any], list[int]]:
    """What is asked for, and the streams of the new process."""
    head, streams, _, _ = socket.recv_fds(line, 4, 3)
    left = int.from_bytes(head, "big")
    assert left <= MAX_BYTES
    said = b""
    while len(said) < left:
        said += line.recv(left - len(said))
    return json.loads(said), streams


def _bury(running: dict[socket.socket, int], chosen: selectors.BaseSelector) -> None:
    """Tell who waits for children that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        line = next(one for one, other in running.items() if other == pid)
        del running[line]
        with suppress(KeyError):  # it is not watched, or not any more
            chosen.unregister(line)
        with suppress(OSError):  # nobody may wait any more
            line.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
        line.close()


def ended(run: Callable[[], object]) -> NoReturn:
    """Run it, and end as Python ends, but for taking apart every module: that would copy all shared pages.

    What nobody caught ends as it always does.
    """
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
