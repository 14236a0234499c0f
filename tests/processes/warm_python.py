"""``python`` of any environment as a program whose processes have torch loaded: forks of one process.

Loading torch takes two CPU seconds, and a trainer five; ``torchrun`` does so itself and in every rank.
``python`` writes the program. What it runs is a process with its own arguments, folder, environment,
streams and signals, for which the program stands: it passes signals on, ends as the process does, and takes
it along where it is killed. What that process starts by ``sys.executable`` comes from here as well.
``python -m tests.processes.warm_python SOCKET PROGRAM MODULE…`` is the process that is forked, of an
environment that may have nothing else of this repository's.
"""

import importlib
import io
import os
import random
import runpy
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from tests.processes.forks import ended, serve, start, write_program

ROOT = Path(__file__).parents[2]
RANKS = (  # what trainers load in each
    "torch", "torch.distributed.run", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor",
    "torch.distributed.checkpoint", "torch.distributed.pipelining",
)  # fmt: skip
SETTLED = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}  # torch reads them as it is loaded


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
    write_program(program, address)
    ours = {**os.environ, "PYTHONPATH": path, **SETTLED}
    module = "tests.processes.warm_python"
    start(
        [interpreter, "-m", module, address, str(program), *(modules or RANKS)], address, env=ours, cwd=ROOT
    )
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
    return serve(address, partial(begun, own), kills=True)


def begun(own: Sequence[str], asked: Sequence[object]) -> Callable[[], object]:
    """Become the process that is asked for: all but what it runs."""
    words, folder, environment = asked
    assert isinstance(words, list)
    assert isinstance(folder, str)
    assert isinstance(environment, dict)
    os.setsid()
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


if __name__ == "__main__":
    ended(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
