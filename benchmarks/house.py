"""``make house``: describe the shape of the product in figures.

``--list`` names the files behind the last two figures.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("profiles", "solver", "service", "workers")
DIMENSION = "expert_tensor_parallel_size"  # the parallel size that was added last
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
    def text(self) -> str:
        """Its source."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def lines(self) -> int:
        """How long it is."""
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        """What Python reads in it."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of that."""
        return list(ast.walk(self.tree))

    @cached_property
    def head(self) -> int:
        """Lines of its docstring and of its imports at the top."""
        return sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for at, node in enumerate(self.tree.body)
            if isinstance(node, ast.Import | ast.ImportFrom)
            or (at == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        )

    def imported(self, names: frozenset[str]) -> set[str]:
        """The modules among ``names`` that it imports, inside functions too."""
        found = set()
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names} & names
                found |= inner or ({node.module} & names)
        return found

    @cached_property
    def functions(self) -> list[str]:
        """Names of its functions and methods."""
        return [node.name for node in self.nodes if isinstance(node, ast.FunctionDef)]

    @cached_property
    def private_used_once(self) -> int:
        """Private functions that the file names once beside their definition."""
        named = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in self.nodes
            if isinstance(node, ast.Name | ast.Attribute)
        )
        return sum(
            name.startswith("_") and not name.endswith("__") and named[name] == 1 for name in self.functions
        )


@dataclass(frozen=True)
class Figure:
    """One measure of the product."""

    name: str
    value: float
    unit: str = ""
    where: str = ""  # what the value belongs to

    def line(self) -> str:
        """Return the name, the value with its unit, and what it belongs to."""
        value = f"{self.value:.1f} {self.unit}" if self.unit else f"{self.value:.0f}"
        return f"{self.name:<52}{value:>9}  {self.where}".rstrip()


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


def in_folder(found: Sequence[Module]) -> Counter[str]:
    """Files directly in each folder, by its path from the root."""
    return Counter(str(module.path.parent.relative_to(ROOT)) for module in found)


def files_of_a_dimension() -> list[str]:
    """Return product files that name the parallel size that was added last: code, templates and data.

    Tables that ``benchmarks.catalog.launcher_flags`` writes are not edited by hand.
    """
    return [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*"))
        if path.suffix in {".py", ".yaml", ".html", ".js"}
        and path.parent != ROOT / "profiles" / "catalog" / "flags"
        and DIMENSION in path.read_text(encoding="utf-8")
    ]


def files_of_one_plan() -> list[str]:
    """Product files of which a function runs in one plain ``plan``."""
    code = f"ROOMS = {ROOMS!r}\n{TRACED}"
    command = [sys.executable, "-c", code, *PLAN.split()]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [str(Path(line).relative_to(ROOT)) for line in run.stdout.split()]


def figures(
    rooms: Mapping[str, Sequence[Module]], plan: Sequence[str], dimension: Sequence[str]
) -> list[Figure]:
    """Every figure, given the files of each room, of one plan and of a parallel dimension."""
    product = [module for found in rooms.values() for module in found]
    lengths = [module.lines for module in product]
    total, heads = sum(lengths), sum(module.head for module in product)
    chains = {room: imports_of(rooms[room]) for room in ("solver", "service")}
    fullest, count = in_folder(rooms["solver"]).most_common(1)[0]
    functions = sum(len(module.functions) for module in product)
    once = sum(module.private_used_once for module in product)
    by_room = ", ".join(f"{room} {sum(file.startswith(room) for file in plan)}" for room in ROOMS)
    return [
        Figure("solver: files", len(rooms["solver"])),
        Figure("solver: most files in a folder", count, where=fullest),
        Figure("solver: longest chain of imports", longest_chain(chains["solver"])),
        Figure("solver: imports of its own modules", sum(map(len, chains["solver"].values()))),
        Figure("service: files", len(rooms["service"])),
        Figure("service: files directly in it", in_folder(rooms["service"])["service"]),
        Figure("service: longest chain of imports", longest_chain(chains["service"])),
        Figure("service: imports of its own modules", sum(map(len, chains["service"].values()))),
        Figure("profiles: files", len(rooms["profiles"])),
        Figure("profiles: files directly in it", in_folder(rooms["profiles"])["profiles"]),
        Figure("product: files", len(product)),
        Figure("product: lines", total),
        Figure("product: median file", statistics.median(lengths), unit="lines"),
        Figure("product: longest file", max(lengths)),
        Figure("product: lines in docstrings and imports of files", 100 * heads / total, unit="%"),
        Figure("product: private functions used once", 100 * once / functions, unit="%"),
        Figure("product files that one plan runs", len(plan), where=by_room),
        Figure(
            "product files that a parallel dimension opens", len(dimension), where=f"naming {DIMENSION}"
        ),
    ]


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the files behind the last two figures")
    asked = parser.parse_args()
    plan, dimension = files_of_one_plan(), files_of_a_dimension()
    found = figures({room: modules(room) for room in ROOMS}, plan, dimension)
    print("\n".join(figure.line() for figure in found))
    if asked.list:
        print("", "files that one plan runs:", *plan, sep="\n")
        print("", "files that a parallel dimension opens:", *dimension, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
