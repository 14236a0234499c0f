"""Runs a launch command with stand-ins first in PATH, and records the calls that it would have made.

The user's own shell expands the user's own script on the user's own machine; ``torchrun``, ``python``,
``srun`` and their like only write down how they were called. What a capture holds is bounded, and nothing
that the command starts is left running.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import selectors
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from meshwright.launchers.export import PACKAGE_CHECK
from meshwright.launchers.reading.captured import FORM, VERSION
from meshwright.profiles.documents import shown
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service import capture_stand_in
from meshwright.service.capture_stand_in import BEFORE, FOLDER, NAMES

MAX_SECONDS = 60.0
MAX_BYTES = 10_000_000  # of what is kept, of what it prints, and of each file that it writes
MAX_PROCESSES = 200
_PAUSE_S = 0.01
_SHARE_OF_LOOKING = 0.1  # of one core, at most: a look through hundreds of processes takes milliseconds
_GRACE_S = 3.0  # for what still runs in the background when the command has ended
_TAIL = 4_000  # characters of its output that are shown where it calls nothing
_SUBREAPER, _DIE_WITH_PARENT = 36, 1  # PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG of prctl(2)
_NEW_USERS, _NEW_PIDS = 0x10000000, 0x20000000  # CLONE_NEWUSER and CLONE_NEWPID of unshare(2)
_MAX_FILES_OPEN = 256
_MAX_CALLS = 256
_READS = 32  # of 64 KiB, each time round
_NICE = 5  # this process is heard above hundreds of the command's; at 19 a busy machine starves those


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """The calls that a command would have made."""

    document: dict[str, object]  # in the format of the written file
    exit_code: int | None  # of the command; None: it was stopped
    stopped: str | None  # why, where a limit stopped it
    last_command: str | None  # that its shell began
    output: str  # the end of what it printed

    @property
    def num_calls(self) -> int:
        """Return how many times stand-ins were called."""
        calls = self.document["calls"]
        return len(calls) if isinstance(calls, list) else 0


def capture(command: Sequence[str], *, max_seconds: float = MAX_SECONDS) -> Captured:
    """Run a command with stand-ins.

    Args:
        command: program and arguments, such as ``bash train.sh 8``.
        max_seconds: at most ``MAX_SECONDS``.

    Raises:
        InvalidProblemError: the program does not exist, or it starts nothing.
    """
    with tempfile.TemporaryDirectory(prefix="meshwright-capture-") as name:
        folder = Path(name)
        programs, calls, trace = folder / "bin", folder / "calls", folder / "trace"
        for made in (programs, calls):
            made.mkdir()
        _write_stand_ins(programs)
        trace.touch()
        with _heard():
            run = _Run(command, _environment(programs, calls), min(max_seconds, MAX_SECONDS))
            run.wait()
        document, too_big = _document(command, calls)
        return Captured(
            document=document,
            exit_code=run.exit_code,
            stopped=run.stopped or too_big,
            last_command=_last_line(trace),
            output=run.output.decode("utf-8", "replace")[-_TAIL:],
        )


def _write_stand_ins(folder: Path) -> None:
    """Write one program under all names."""
    text = Path(capture_stand_in.__file__).read_text("utf-8")
    first = folder / NAMES[0]
    first.write_text(f"#!{sys.executable} -SIB\n{text}", "utf-8")
    first.chmod(0o700)
    for name in NAMES[1:]:
        (folder / name).symlink_to(first.name)


def _environment(programs: Path, calls: Path) -> dict[str, str]:
    """Return the user's environment, with the stand-ins first and with bash tracing its start."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("MESHWRIGHT_CAPTURE")}
    names = ":".join(own.get("PATH", os.defpath).split(os.pathsep))
    functions = programs.parent / "functions"
    functions.write_text(_functions(programs), "utf-8")
    return {
        PACKAGE_CHECK: "0",  # of exported scripts: nothing is started that needs the packages
        **own,
        "PATH": f"{programs}:{names}",
        "BASH_ENV": str(functions),
        FOLDER: str(calls),
        f"{FOLDER}_ENVIRONMENT": json.dumps(sorted(own)),
        BEFORE: "[]",
    }


def _functions(programs: Path) -> str:
    """Return the functions that every bash of the command reads first: stand-ins, whatever PATH becomes."""
    lines = ["exec {MESHWRIGHT_TRACE}>>" + shlex.quote(str(programs.parent / "trace"))]
    lines += ["BASH_XTRACEFD=$MESHWRIGHT_TRACE", "PS4='+ '"]
    lines += [f'function {name} {{ {shlex.quote(str(programs / name))} "$@"; }}' for name in NAMES]
    lines += ["set -x"]
    return "\n".join(lines) + "\n"


class _Run:
    """One command with everything that it starts."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], limit: float) -> None:
        self.exit_code: int | None = None
        self.stopped: str | None = None
        self.output = b""
        self._ends = time.monotonic() + limit
        self._limit = limit
        self._printed = 0
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # what loses its parent becomes ours
        self._others = {child for child, parent in _parents().items() if parent == os.getpid()}
        read, write = os.pipe()
        stat = os.fstat(write)
        whole = {**environment, f"{FOLDER}_OUTPUT": f"{stat.st_dev}:{stat.st_ino}"}
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the user's own command
                list(command),
                env=whole,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                start_new_session=True,
                preexec_fn=_limit_itself,  # noqa: PLW1509 - this process has one thread here
            )
        except OSError as fault:
            os.close(read)
            raise InvalidProblemError.of("command", f"{shown(command[0])}: {fault.strerror}") from None
        finally:
            os.close(write)
        self._pipe = read
        os.set_blocking(read, False)

    def wait(self) -> None:
        """Wait until it ends or exceeds a limit; then end all of its processes."""
        grace: float | None = None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._pipe, selectors.EVENT_READ)
                pause_s = _PAUSE_S
                while self.stopped is None:
                    if selector.select(pause_s) and not self._drain():
                        time.sleep(pause_s)  # no process writes any more
                    begun_s = time.thread_time()
                    running = _descendants(self._others)
                    pause_s = max(_PAUSE_S, (time.thread_time() - begun_s) / _SHARE_OF_LOOKING)
                    if len(running) > MAX_PROCESSES:
                        self.stopped = f"more than {MAX_PROCESSES} processes"
                    elif time.monotonic() > self._ends:
                        self.stopped = f"longer than {self._limit:g} s"
                    elif self._printed > MAX_BYTES:
                        self.stopped = f"more than {MAX_BYTES // 10**6} MB of output"
                    elif self._process.poll() is not None:
                        self.exit_code = self._process.returncode
                        grace = grace or time.monotonic() + _GRACE_S
                        if not running or time.monotonic() > grace:
                            break
        finally:
            _end(self._process.pid, self._others)
            self._process.wait()
            self._drain()
            os.close(self._pipe)

    def _drain(self) -> bool:
        for _ in range(_READS):
            try:
                data = os.read(self._pipe, 65_536)
            except BlockingIOError:
                return True
            self._printed += len(data)
            self.output = (self.output + data)[-4 * _TAIL :]
            if not data:
                return False
        return True


@contextmanager
def _heard() -> Iterator[None]:
    """Run this process before thousands of others, where its user may: sessions outweigh nice."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, *before)


def _limit_itself() -> None:
    """Limit the child before it becomes the command: no big files or core dumps, few processes, low CPU.

    Linux holds no user with CAP_SYS_RESOURCE to a number of processes; such are counted from outside alone.
    """
    most = _threads_of_user() + MAX_PROCESSES
    for kind, limit in ((resource.RLIMIT_NPROC, most), (resource.RLIMIT_FSIZE, MAX_BYTES)):
        hard = resource.getrlimit(kind)[1]
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (least, least))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if _apart():
        _become_first()
    os.nice(_NICE)  # the command alone: who ends it must not wait behind all that it started


def _apart() -> bool:
    """Put the processes that follow into a PID namespace of their own, where Linux allows it.

    pid_namespaces(7): when its first process ends, the kernel ends all others at one stroke, those that
    left their group and session.
    """
    library, user, group = ctypes.CDLL(None), os.getuid(), os.getgid()
    if library.unshare(_NEW_PIDS) == 0:
        return True
    if library.unshare(_NEW_PIDS | _NEW_USERS) != 0:
        return False
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with suppress(OSError):
            Path(f"/proc/self/{name}").write_text(text, "utf-8")
    return True


def _become_first() -> None:
    """Fork this child into three: one waits outside, the namespace's first process, and the command's."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    first = os.fork()
    if first:
        os.closerange(3, _MAX_FILES_OPEN)
        _leave(os.waitpid(first, 0)[1])
    prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    command = os.fork()
    if not command:
        return
    os.closerange(3, _MAX_FILES_OPEN)
    status = None
    ends = float("inf")
    while time.monotonic() < ends:
        try:
            process, found = os.waitpid(-1, 0 if status is None else os.WNOHANG)
        except ChildProcessError:
            break
        if process == command:
            status, ends = found, time.monotonic() + _GRACE_S
        elif not process:
            time.sleep(_PAUSE_S)
    _leave(status or 0)


def _leave(status: int) -> None:
    os._exit(max(os.waitstatus_to_exitcode(status), 1) if status else 0)


def _threads_of_user() -> int:
    """Return the number of this user's threads, which Linux compares with RLIMIT_NPROC."""
    count = 0
    for name in os.listdir("/proc"):  # noqa: PTH208
        with suppress(OSError):
            if name.isdecimal() and os.stat(f"/proc/{name}").st_uid == os.getuid():  # noqa: PTH116
                count += len(os.listdir(f"/proc/{name}/task"))  # noqa: PTH208
    return count


def _parents(*, ended: bool = False) -> dict[int, int]:
    """Return the parent of every running process, or with ``ended`` of every zombie."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - names alone, a hundred times a second
        if name.isdecimal():
            try:
                text = Path(f"/proc/{name}/stat").read_text("utf-8", "replace")
            except OSError:
                continue
            state, parent = text.rpartition(")")[2].split()[:2]
            if (state == "Z") == ended:
                found[int(name)] = int(parent)
    return found


def _descendants(others: set[int]) -> list[int]:
    """Return everything that runs below this process, those aside that did before."""
    by_parent: dict[int, list[int]] = {}
    for process, parent in _parents().items():
        by_parent.setdefault(parent, []).append(process)
    found, queue = [], [one for one in by_parent.get(os.getpid(), []) if one not in others]
    while queue:
        process = queue.pop()
        found.append(process)
        queue += by_parent.get(process, [])
    return found


def _end(group: int, others: set[int]) -> None:
    """End everything: the command's own group at one stroke, then what left it, until nothing is left."""
    while True:
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
        left = [process for process in _descendants(others) if process != group]
        for process in left:
            with suppress(OSError):
                os.killpg(os.getpgid(process), signal.SIGKILL)
        _reap(others | {group})
        if not left:
            return


def _reap(others: set[int]) -> None:
    """Take the exit codes of those who lost their parent; the command's own belongs to its Popen."""
    for process, parent in _parents(ended=True).items():
        if parent == os.getpid() and process not in others:
            with suppress(OSError):
                os.waitpid(process, os.WNOHANG)


def _last_line(trace: Path) -> str | None:
    """Return the last command that a bash began; None: none did."""
    with trace.open("rb") as file:
        file.seek(max(trace.stat().st_size - 20_000, 0))
        lines = file.read().decode("utf-8", "replace").splitlines()
    begun = [line.lstrip("+").strip() for line in lines if line.startswith("+")]
    return begun[-1][:200] if begun else None


def _document(command: Sequence[str], folder: Path) -> tuple[dict[str, object], str | None]:
    """Return the calls in order, with the files that they name; without those beyond the limit."""
    calls: list[dict[str, object]] = []
    files: dict[str, str] = {}
    size, too_big = 0, None
    for path in sorted(folder.glob("*.json")):
        size += path.stat().st_size
        if size > MAX_BYTES or len(calls) >= _MAX_CALLS:
            too_big = f"more than {_MAX_CALLS} calls, or {MAX_BYTES // 10**6} MB of them"
            break
        call = json.loads(path.read_text("utf-8"))
        files |= call.pop("files")
        calls.append(call)
    return {FORM: VERSION, "command": list(command), "calls": calls, "files": files}, too_big
