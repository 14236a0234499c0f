"""Console and Python blocks of a page: read, run in one shell, compared with the page, or written anew.

Blocks of the language ``console`` run in order, in one empty folder. A block of another language with a
title (``yaml title="a.yaml"``) is a file of that folder. Blocks of ``python`` run in order, in one process;
a block of ``text`` behind one is what it prints. Stdout is compared, and the message of a command that
prints nothing there: progress on stderr depends on the machine. In what is shown ``…`` stands for any text,
a line of it alone for any number of lines; times, addresses and random names may differ.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.processes.warm import program

ROOT = Path(__file__).parents[2]
PORT = "8420"  # what pages say; while tests run, a free one
COLUMNS = 120
BLOCK = re.compile(r"^(?P<mark>```console *\n)(?P<body>.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r'^```\w+ title="(?P<name>[^"]+)"\n(?P<body>.*?)^```', re.DOTALL | re.MULTILINE)
PYTHON = re.compile(
    r"^```python *\n(?P<code>.*?)^```\n(?:\n```text *\n(?P<shown>.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
VARYING = [
    (re.compile(r"\b(in|after|elapsed) \d+(\.\d+)? (s|ms)\b"), r"\1 … s"),
    (re.compile(r"([·;]) \d+(\.\d+)? (s|ms)(\.?)$"), r"\1 … s\4"),  # how long a search or a sweep took
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:8420"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "…"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*"), "…"),
]
_END, _ERRORS = "\x1e", "\x1f"


@dataclass(frozen=True)
class Exchange:
    """One command as it is shown, with its output."""

    typed: str  # the lines of the command as they stand on the page
    shown: tuple[str, ...]

    @property
    def command(self) -> str:
        """What a shell is given."""
        return self.typed.removeprefix("$ ")


def exchanges(body: str) -> list[Exchange]:
    """The commands of one block; a line that ends with a backslash goes on in the next."""
    found: list[tuple[list[str], list[str]]] = []
    for line in body.splitlines():
        if found and found[-1][0][-1].endswith("\\") and not found[-1][1]:
            found[-1][0].append(line)
        elif line.startswith("$ "):
            found.append(([line], []))
        else:
            found[-1][1].append(line)
    return [Exchange("\n".join(typed), tuple(shown)) for typed, shown in found]


def run_page(text: str, folder: Path) -> Iterator[tuple[Exchange, list[str]]]:
    """Every command of a page with the lines that it printed."""
    every = [one for block in BLOCK.finditer(text) for one in exchanges(block["body"])]
    _lay_out(text, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said = folder / "stderr"
    lines = ["trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT", f"exec 2>'{said}'"]
    for one in every:
        shown = f"printf '{_ERRORS}'; cat '{said}'; printf '{_END}'; exec 2>'{said}'"
        lines += [one.command.replace(PORT, port), f"code=$?; {shown}; (exit $code)"]
    run = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(lines)],
        cwd=folder / "page", env=_environment(folder, port), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    outputs = run.stdout.replace(port, PORT).split(_END)
    assert len(outputs) > len(every), f"the shell ended early: {outputs[-1]}"
    for one, output in zip(every, outputs, strict=False):
        printed, _, message = output.partition(_ERRORS)
        yield one, [line.rstrip() for line in (printed.strip("\n") or message.rstrip("\n")).splitlines()]


def run_python(text: str, folder: Path) -> list[list[str]]:
    """The lines that each block of ``python`` of a page printed.

    Raises:
        CalledProcessError: one of them failed.
    """
    _lay_out(text, folder)
    code = [f"{block['code']}\nprint({_END!r}, end='')" for block in PYTHON.finditer(text)]
    program = folder / "page.py"
    program.write_text("\n".join(code), encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder / "page", env=_environment(folder, PORT), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return [[line.rstrip() for line in output.splitlines()] for output in run.stdout.split(_END)[:-1]]


def with_outputs(text: str, printed: list[list[str]]) -> str:
    """The page with what its blocks of ``python`` printed, where it shows that."""
    remaining = iter(printed)

    def anew(block: re.Match[str]) -> str:
        lines = next(remaining)
        if block["shown"] is None:
            return block[0]
        return (
            f"```python\n{block['code']}```\n\n```text\n" + "".join(f"{line}\n" for line in lines) + "```\n"
        )

    return PYTHON.sub(anew, text)


def _lay_out(text: str, folder: Path) -> None:
    """The page's own files, and the product as a command."""
    for name in ("page", "bin", "home"):
        (folder / name).mkdir(exist_ok=True)
    for file in FILE.finditer(text):
        (folder / "page" / file["name"]).parent.mkdir(parents=True, exist_ok=True)
        (folder / "page" / file["name"]).write_text(file["body"])
    program(folder / "bin" / "meshwright")


def _environment(folder: Path, port: str) -> dict[str, str]:
    """That of a reader whose home is empty and whose terminal is ``COLUMNS`` wide."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MESHWRIGHT_")}
    return {
        **kept,
        "HOME": str(folder / "home"),
        "XDG_CONFIG_HOME": str(folder / "home" / ".config"),
        "XDG_STATE_HOME": str(folder / "home"),
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "MESHWRIGHT_PORT": port,
        "MESHWRIGHT_URL": f"http://127.0.0.1:{port}",
        "COLUMNS": str(COLUMNS),
        "NO_COLOR": "1",
    }


def agrees(shown: tuple[str, ...], printed: list[str]) -> bool:
    """Whether a page shows what was printed."""
    lines = [
        r"(?s:.+?)" if line == "…" else re.escape(_steady(line)).replace("…", ".*")
        for line in _without_blank_ends(shown)
    ]
    return re.fullmatch("\n".join(lines), "\n".join(map(_steady, _without_blank_ends(printed)))) is not None


def _without_blank_ends(lines: tuple[str, ...] | list[str]) -> list[str]:
    """Lines without empty ones before and after."""
    return "\n".join(lines).strip("\n").splitlines()


def _steady(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, instead in VARYING:
        line = pattern.sub(instead, line)
    return line


def rewritten(text: str, results: list[tuple[Exchange, list[str]]]) -> str:
    """The page with what was printed; lines that ``…`` stands for stay left out."""
    remaining = iter(results)

    def anew(block: re.Match[str]) -> str:
        parts = []
        for one in exchanges(block["body"]):
            _, printed = next(remaining)
            kept = list(one.shown) if agrees(one.shown, printed) else _elided(one.shown, printed)
            parts.append("\n".join([one.typed, *kept]))
        return block["mark"] + "\n".join(parts) + "\n```"

    return BLOCK.sub(anew, text)


def _elided(shown: tuple[str, ...], printed: list[str]) -> list[str]:
    """As many lines from the begin and from the end as the page had around its ``…``."""
    if "…" not in shown:
        return printed
    head = shown.index("…")
    tail = len(shown) - head - 1
    return [*printed[:head], "…", *printed[len(printed) - tail :]]
