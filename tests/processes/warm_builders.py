"""Builders of ``meshwright verify`` that begin with torch and their launcher loaded: forks of one process.

A builder loads torch and its launcher for four CPU seconds, and builds a small plan in one.
``output`` takes the place of the function that starts it. A fork is a process with its own input, limits,
streams and session. The forked process also loads what earlier forks have loaded while they built.
``python warm_builders.py SCRIPT`` is that process: it runs in the launcher's environment, reads a folder a
line, and answers when the fork for it has ended.
"""

import atexit
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NoReturn

_STREAMS = {"given": os.O_RDONLY, "said": os.O_WRONLY | os.O_CREAT, "errors": os.O_WRONLY | os.O_CREAT}


def output(
    command: Sequence[str],
    given: str,
    environment: Mapping[str, str],
    _time_s: float,
    _stop: Callable[[], bool],
) -> tuple[str, str]:
    """Return the output of a builder, and its errors; its own limit of CPU seconds ends it."""
    server = _server(*command, environment["PYTHONPATH"])
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "given").write_text(given)
        server.stdin.write(f"{folder}\n")
        server.stdin.flush()
        assert server.stdout.readline() == "ended\n"
        return (Path(folder) / "said").read_text(), (Path(folder) / "errors").read_text()


@cache
def _server(python: str, script: str, path: str) -> "subprocess.Popen[str]":
    """The process that is forked for a builder; it ends with this one."""
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    server = subprocess.Popen(
        [python, __file__, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    atexit.register(_end, server)
    return server


def _end(server: "subprocess.Popen[str]") -> None:
    """End it at once: it has nothing to put in order, and takes a second to unload torch."""
    with server:
        server.kill()


# --------------------------------------------------------------------------------------------------
# The process that is forked.


def main(script: str) -> None:
    """Fork for every folder that is read, and say when the fork has ended."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path[0] = str(Path(script).parent)
    module = importlib.import_module(Path(script).stem)
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        child = os.fork()
        if child == 0:
            _build(module.build, folder)
        os.waitpid(child, 0)
        for name in (folder / "loaded").read_text().split():
            with suppress(Exception):  # what only a builder can load
                importlib.import_module(name)
        told.write("ended\n")
        told.flush()


def _build(build: Callable[..., object], folder: Path) -> NoReturn:
    """Answer the case of a folder, and note what was loaded, in processes of ranks too."""
    os.setsid()
    known, leave = set(sys.modules), os._exit

    def noted(status: int) -> NoReturn:
        with (folder / "loaded").open("a") as loaded:
            loaded.writelines(f"{name}\n" for name in sys.modules if name not in known)
        leave(status)

    os._exit = noted
    (folder / "loaded").touch()
    for number, (name, how) in enumerate(_STREAMS.items()):
        os.dup2(os.open(folder / name, how), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - the lines of the other are not its input
    importlib.import_module("building").answer(build)
    raise AssertionError


if __name__ == "__main__":
    main(sys.argv[1])
