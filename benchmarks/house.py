"""``make house``: the shape of the product in figures, and the files that one plain ``plan`` runs."""

import argparse
import ast
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("profiles", "solver", "service", "workers")
PLAN = (
    "plan --model llama-3.1-8b --cluster dgx-h100 --num-nodes 4"
    " --global-batch-size 256 --seq-length 8192 --json"
)
# Runs the command under a profile hook and prints every product file of which a function ran.
TRACED = """
import sys, threading
from inspect import CO_OPTIMIZED as OPTIMIZED
from pathlib import Path
ran = set()
def look(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_flags & OPTIMIZED and code.co_name[0] != "<":  # no class bodies
        ran.add(code.co_filename)
from meshwright.service.cli.main import main
sys.argv[0] = "meshwright"
out = sys.stdout
sys.stdout = open("/dev/null", "w")
threading.setprofile(look)
sys.setprofile(look)
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
rooms = [str(Path(sys.modules["meshwright"].__file__).resolve().parents[2] / room) for room in ROOMS]
files = {str(Path(name).resolve()) for name in ran}
print(*sorted(file for file in files if file.startswith(tuple(rooms))), sep="\\n", file=out)
"""


@dataclass(frozen=True)
class Module:
    """One file of the product."""

    name: str
    path: Path

    @cached_property
    def lines(self) -> int:
        """How long it is."""
        return len(self.path.read_text().splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        """What Python reads in it."""
        return ast.parse(self.path.read_text())

    @cached_property
    def head(self) -> int:
        """Lines of its docstring and of its imports at the top."""
        spans = [
            (node.end_lineno or node.lineno) - node.lineno + 1
            for at, node in enumerate(self.tree.body)
            if isinstance(node, ast.Import | ast.ImportFrom)
            or (at == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        ]
        return sum(spans)

    def imported(self, names: frozenset[str]) -> set[str]:
        """The modules among ``names`` that its top level imports."""
        found = set()
        for node in self.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & names
                found |= inner or ({node.module} & names)
        return found


def modules(room: str) -> list[Module]:
    """The files of a room that hold something."""
    files = sorted((ROOT / room).rglob("*.py"))
    found = [
        Module(".".join(("meshwright", *file.relative_to(ROOT).with_suffix("").parts)), file)
        for file in files
    ]
    return [module for module in found if module.lines]


def longest_chain(graph: Mapping[str, Iterable[str]]) -> int:
    """Modules on the longest chain of imports.

    Raises:
        ValueError: a module imports itself through others.
    """
    depth: dict[str, int] = {}
    open_now: set[str] = set()

    def visit(name: str) -> int:
        if name in open_now:
            raise ValueError(f"a cycle of imports through {name}")
        if name not in depth:
            open_now.add(name)
            depth[name] = 1 + max((visit(other) for other in graph[name]), default=0)
            open_now.remove(name)
        return depth[name]

    return max((visit(name) for name in graph), default=0)


def shape(found: list[Module]) -> dict[str, str]:
    """The figures of some modules."""
    names = frozenset(module.name for module in found)
    graph = {module.name: module.imported(names) for module in found}
    folders = [module.path.parent for module in found]
    lines = sorted(module.lines for module in found)
    full = max(set(folders), key=folders.count)
    return {
        "files": str(len(found)),
        "lines": str(sum(lines)),
        "median": str(round(statistics.median(lines))),
        "p95": str(lines[int(0.95 * (len(lines) - 1))]),
        "longest": str(lines[-1]),
        "heads": f"{sum(module.head for module in found) / sum(lines):.1%}",
        "imports": str(sum(map(len, graph.values()))),
        "chain": str(longest_chain(graph)),
        "fullest folder": f"{full.relative_to(ROOT)} {folders.count(full)}",
    }


def files_of_one_plan() -> list[str]:
    """Product files of which a function runs in one plain ``plan``."""
    code = f"ROOMS = {ROOMS!r}\n{TRACED}"
    run = subprocess.run(
        [sys.executable, "-c", code, *PLAN.split()],
        cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [str(Path(line).relative_to(ROOT)) for line in run.stdout.split()]


def main() -> None:
    """Print the table, then the files of one plan by room."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="name the files that one plan runs")
    arguments = parser.parse_args()
    rooms = {room: modules(room) for room in ROOMS}
    table = {room: shape(found) for room, found in rooms.items()}
    table["product"] = shape([module for found in rooms.values() for module in found])
    columns = list(table["product"])
    print(" " * 10 + "".join(f"{column:>10}" for column in columns[:-1]) + f"  {columns[-1]}")
    for name, figures in table.items():
        cells = "".join(f"{figures[column]:>10}" for column in columns[:-1])
        print(f"{name:10}{cells}  {figures[columns[-1]]}")
    ran = files_of_one_plan()
    shares = ", ".join(f"{room} {sum(file.startswith(room) for file in ran)}" for room in ROOMS)
    print(f"one plan runs functions of {len(ran)} files: {shares}")
    if arguments.files:
        print(*ran, sep="\n")


if __name__ == "__main__":
    main()
