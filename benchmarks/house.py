"""``make house``: describe the shape of the product in figures; nothing fails by them.

``--list`` names the files that a parallel dimension opens, and the places that ask for node groups.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.tests_of import module_of_its_name

ROOT = Path(__file__).parents[1]
ROOMS = ("profiles", "solver", "shell", "launchers", "service", "workers")
DIMENSION = "expert_weight_shard_size"  # the parallel size that was added last
ASKS = re.compile(r"\.is_placed\b|\.unplaced\b|\bplaces_stages\b(?! =)")  # for stages on node groups
PLAN = (
    "plan --model llama-3.1-8b --cluster dgx-h100 --num-nodes 4"
    " --global-batch-size 256 --seq-length 8192 --json"
)
# Runs the command under a profile hook and counts what happens in the product's own functions: calls, calls
# from one file into another (hops), the deepest stack, and the files and functions that ran. The clock is
# stopped: on a busy machine less would be explained in time, and more reported.
TRACED = """
import json, sys, threading, time
from inspect import CO_OPTIMIZED
from pathlib import Path
from meshwright.service.cli.main import main
rooms = tuple(str(Path(sys.modules["meshwright"].__file__).resolve().parents[2] / room) for room in ROOMS)
known, functions, count = {}, set(), {"calls": 0, "hops": 0, "depth": 0}
def own(frame):
    name = frame.f_code.co_filename
    if name not in known:
        path = str(Path(name).resolve())
        known[name] = path if path.startswith(rooms) else None
    return known[name]
def look(frame, event, _):
    code = frame.f_code
    if event != "call" or not code.co_flags & CO_OPTIMIZED or code.co_name[0] == "<" or not own(frame):
        return
    count["calls"] += 1
    functions.add((own(frame), code.co_qualname))
    callers, outer = [], frame.f_back
    while outer is not None:
        if own(outer):
            callers.append(own(outer))
        outer = outer.f_back
    count["hops"] += bool(callers) and callers[0] != own(frame)
    count["depth"] = max(count["depth"], 1 + len(callers))
sys.argv[0] = "meshwright"
time.monotonic = lambda: 0.0
out = sys.stdout
sys.stdout = open("/dev/null", "w")
threading.setprofile(look)
sys.setprofile(look)
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
files = len({name for name, _ in functions})
print(json.dumps({**count, "files": files, "functions": len(functions)}), file=out)
"""


@dataclass(frozen=True)
class Module:
    """One file of the product."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        """Its source."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def lines(self) -> int:
        """How long it is."""
        return len(self.text.splitlines())

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Its syntax tree, every node."""
        return list(ast.walk(ast.parse(self.text)))

    @property
    def statements(self) -> int:
        """Its statements."""
        return sum(isinstance(node, ast.stmt) for node in self.nodes)

    def imported(self, names: frozenset[str]) -> set[str]:
        """The modules among ``names`` that it imports when it runs, inside functions too."""
        found = set()
        for_types = {
            id(inner)
            for node in self.nodes
            if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module and id(node) not in for_types:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & names
                found |= inner or ({node.module} & names)
        return found

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Its functions and methods."""
        return [node for node in self.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    @cached_property
    def private(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Its private functions."""
        return [one for one in self.functions if one.name.startswith("_") and not one.name.endswith("__")]

    @cached_property
    def private_used_once(self) -> int:
        """Private functions that the file names once, apart from their definition."""
        named = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in self.nodes
            if isinstance(node, ast.Name | ast.Attribute)
        )
        return sum(named[one.name] == 1 for one in self.private)

    @property
    def classes(self) -> list[str]:
        """Names of its classes."""
        return [node.name for node in self.nodes if isinstance(node, ast.ClassDef)]


@dataclass(frozen=True)
class Figure:
    """One measure of the product."""

    name: str
    value: int
    where: str = ""  # what the value belongs to

    def line(self) -> str:
        """Return the name, the value, and what it belongs to."""
        return f"{self.name:<52}{self.value:>9,}  {self.where}".rstrip()


def modules(room: str) -> list[Module]:
    """The files of a room that hold something."""
    files = sorted((ROOT / room).rglob("*.py"))
    names = [".".join(("meshwright", *file.relative_to(ROOT).with_suffix("").parts)) for file in files]
    found = [Module(name.removesuffix(".__init__"), file) for name, file in zip(names, files, strict=True)]
    return [module for module in found if module.lines]


def imports_of(found: Sequence[Module]) -> dict[str, set[str]]:
    """The modules among ``found`` that each of them imports."""
    names = frozenset(module.name for module in found)
    return {module.name: module.imported(names) for module in found}


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


def files_of_a_dimension() -> list[str]:
    """Return product files that name the parallel size that was added last: code, templates and data.

    Tables that ``benchmarks.catalog.launcher_flags`` writes are not edited by hand.
    """
    return [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*"))
        if path.suffix in {".py", ".yaml", ".html", ".js"}
        and path.name != "flags.yaml"
        and DIMENSION in path.read_text(encoding="utf-8")
    ]


def walk_of_one_plan() -> dict[str, int]:
    """Return ``calls``, ``hops``, ``depth``, ``files`` and ``functions`` of one plain ``plan``."""
    code = f"ROOMS = {ROOMS!r}\n{TRACED}"
    command = [sys.executable, "-c", code, *PLAN.split()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(run.stdout)
    return found


def asks_of(found: Sequence[Module]) -> list[str]:
    """Return the lines that ask whether stages are on node groups, with their place."""
    return [
        f"{module.path.relative_to(ROOT)}:{number}: {line.strip()}"
        for module in found
        for number, line in enumerate(module.text.splitlines(), 1)
        if ASKS.search(line) and not line.lstrip().startswith("def ")
    ]


def figures(
    rooms: Mapping[str, Sequence[Module]], walk: Mapping[str, int], dimension: Sequence[str]
) -> list[Figure]:
    """Every figure, given the files of each room, the walk of one plan, and a parallel dimension."""
    product = [module for found in rooms.values() for module in found]
    asks, files_of_class = asks_of(product), defaultdict[str, set[str]](set)
    for module in product:
        for name in module.classes:
            files_of_class[name].add(module.name)
    documented = sum(ast.get_docstring(one) is not None for module in product for one in module.private)
    by_room = ", ".join(f"{room} {sum(one.statements for one in rooms[room]):,}" for room in rooms)
    return [
        Figure("statements", sum(module.statements for module in product), by_room),
        Figure("files", len(product), ", ".join(f"{room} {len(rooms[room])}" for room in rooms)),
        Figure("lines", sum(module.lines for module in product)),
        Figure("functions", sum(len(module.functions) for module in product)),
        Figure("private functions that are used once", sum(one.private_used_once for one in product)),
        Figure("private functions with a docstring", documented),
        Figure("files without a test module of their name", len(_without_own_tests(product))),
        Figure("class names in more than one file", sum(len(of) > 1 for of in files_of_class.values())),
        Figure("longest chain of imports", longest_chain(imports_of(product))),
        *(Figure(f"{name} of one plan", value) for name, value in walk.items()),
        Figure("places that ask for stages on node groups", len(asks), f"in {_files(asks)} files"),
        Figure("files that a parallel dimension opens", len(dimension), f"naming {DIMENSION}"),
    ]


def _without_own_tests(product: Sequence[Module]) -> list[Path]:
    files = [one.path.relative_to(ROOT) for one in product if one.path.name != "__init__.py"]
    return [file for file in files if not (ROOT / module_of_its_name(file)).exists()]


def _files(places: Sequence[str]) -> int:
    return len({place.partition(":")[0] for place in places})


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the files behind the last two figures")
    asked = parser.parse_args()
    rooms, dimension = {room: modules(room) for room in ROOMS}, files_of_a_dimension()
    print("\n".join(figure.line() for figure in figures(rooms, walk_of_one_plan(), dimension)))
    if asked.list:
        asks = asks_of([module for found in rooms.values() for module in found])
        print("", "asking for stages on node groups:", *asks, sep="\n")
        print("", "files that a parallel dimension opens:", *dimension, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
