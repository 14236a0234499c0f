"""The shape of the code in figures: files, folders, imports, heads, and what one plan runs through.

``make house`` prints them beside the limits that they are held to. Run it from the root of a checkout.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from types import CodeType, FrameType

ROOT = Path(__file__).parents[1]
ROOMS = ("profiles", "solver", "service", "workers")
NAME = "meshwright"  # what the rooms are imported under
_ONE_FILE_A_THING = {"cli", "launchers", "reading", "importers"}  # folders that grow with the world outside
_A_DIMENSION = "expert_tensor_parallel_size"  # the parallel size that was added last
_PLAN = (
    "plan", "--model", "llama-3.1-8b", "--cluster", "dgx-h100", "--num-nodes", "4",
    "--global-batch-size", "256", "--seq-length", "8192",
)  # fmt: skip


@dataclass(frozen=True)
class Room:
    """One package of the product."""

    name: str

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        """Every module by its dotted name within the product; empty ``__init__`` files do not count."""
        found = {}
        for path in sorted((ROOT / self.name).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if path.name == "__init__.py" and not text.strip():
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = ast.parse(text)
        return found

    @cached_property
    def lines(self) -> Mapping[str, int]:
        """Lines of every module."""
        return {name: len(_path(name).read_text(encoding="utf-8").splitlines()) for name in self.trees}

    @cached_property
    def imports(self) -> Mapping[str, set[str]]:
        """Modules of the same room that each module imports, inside functions too."""
        return {name: set(_imported(tree)) & set(self.trees) - {name} for name, tree in self.trees.items()}

    @cached_property
    def longest_chain(self) -> list[str]:
        """The longest chain of modules of which each imports the next; a cycle is an error."""
        best: dict[str, list[str]] = {}

        def chain(name: str, above: tuple[str, ...]) -> list[str]:
            if name in above:
                raise SystemExit(f"import cycle: {' -> '.join([*above[above.index(name) :], name])}")
            if name not in best:
                below = (chain(other, (*above, name)) for other in sorted(self.imports[name]))
                best[name] = [name, *max(below, key=len, default=[])]
            return best[name]

        return max((chain(name, ()) for name in self.imports), key=len)

    def heads(self) -> int:
        """Lines of module docstrings and import statements."""
        return sum(_head_lines(tree) for tree in self.trees.values())

    def folders(self) -> Counter[str]:
        """Files directly in each folder."""
        return Counter(str(_path(name).parent.relative_to(ROOT)) for name in self.trees)


def _path(module: str) -> Path:
    """The file of a module."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _imported(tree: ast.Module) -> Iterator[str]:
    """Names that a module imports, at its top or inside functions, as modules and as names inside one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (name.removeprefix(f"{NAME}.") for name in names)


def _head_lines(tree: ast.Module) -> int:
    """Lines from the top of a file to its last import, blank ones counted."""
    heads = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return max((node.end_lineno or node.lineno for node in heads), default=1)


def private_once(rooms: list[Room]) -> float:
    """The share of functions that are private and named once beside their definition."""
    functions, named = list[str](), defaultdict[str, int](int)
    for room in rooms:
        for module, tree in room.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef):
                    functions.append(f"{module}:{node.name}")
                elif isinstance(node, ast.Name):
                    named[f"{module}:{node.id}"] += 1
                elif isinstance(node, ast.Attribute):
                    named[f"{module}:{node.attr}"] += 1
    once = [
        f for f in functions if f.split(":")[1].startswith("_") and not f.endswith("__") and named[f] == 1
    ]
    return len(once) / len(functions)


def executed_files() -> list[str]:
    """Product files of which one plain ``meshwright plan`` runs a function, in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--traced"], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return list(json.loads(done.stdout.splitlines()[-1]))


def _traced() -> None:
    """Run a plan and print the files whose functions ran (not those that ran to import), as JSON."""
    seen = set[CodeType]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code not in seen and not _imports(frame):
            seen.add(frame.f_code)

    sys.setprofile(note)
    try:
        _run_plan()
    finally:
        sys.setprofile(None)
    files = {code.co_filename for code in seen}
    product = {str(Path(name).resolve().relative_to(ROOT)) for name in files if _is_product(name)}
    print(json.dumps(sorted(product)))


def _imports(frame: FrameType | None) -> bool:
    """Whether a call happens while a module is imported."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename != __file__:
            return True
        frame = frame.f_back
    return False


def _run_plan() -> None:
    """The command, as the console script calls it."""
    from importlib import import_module  # noqa: PLC0415
    from importlib.metadata import entry_points  # noqa: PLC0415

    (script,) = entry_points(group="console_scripts", name=NAME)
    sys.argv = [NAME, *_PLAN]
    try:
        getattr(import_module(script.module), script.attr)()
    except SystemExit as ended:
        if ended.code:
            raise


def _is_product(name: str) -> bool:
    """Whether a file belongs to a room of this checkout."""
    path = Path(name).resolve()
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS


def opened_by_a_dimension(rooms: list[Room]) -> list[str]:
    """Product files that name the parallel size that was added last."""
    return [
        str(_path(module).relative_to(ROOT))
        for room in rooms
        for module in room.trees
        if _A_DIMENSION in _path(module).read_text(encoding="utf-8")
    ]


def figures(*, plan: bool) -> dict[str, tuple[str, str]]:
    """Every figure with its limit; an empty limit is information alone."""
    rooms = [Room(name) for name in ROOMS]
    profiles, solver, service, _ = rooms
    heads = sum(room.heads() for room in rooms)
    lengths = [length for room in rooms for length in room.lines.values()]
    crowded = {
        folder: count
        for room in rooms
        for folder, count in room.folders().items()
        if Path(folder).name not in _ONE_FILE_A_THING
    }
    fullest = max((f for f in crowded if f.startswith("solver")), key=lambda f: crowded[f])
    dimension = opened_by_a_dimension(rooms)
    found = {
        "solver: files": (str(len(solver.trees)), "<= 85"),
        "solver: most files in a folder": (f"{crowded[fullest]} ({fullest})", "<= 15"),
        "solver: longest import chain": (str(len(solver.longest_chain)), "<= 22"),
        "solver: internal imports": (str(sum(map(len, solver.imports.values()))), "<= 600"),
        "service: files": (str(len(service.trees)), "<= 180"),
        "service: files directly in it": (str(service.folders()["service"]), "<= 8"),
        "service: longest import chain": (str(len(service.longest_chain)), ""),
        "profiles: files": (str(len(profiles.trees)), "<= 55"),
        "profiles: files directly in it": (str(profiles.folders()["profiles"]), ""),
        "product: files / lines": (f"{len(lengths)} / {sum(lengths)}", ""),
        "product: median / longest file": (f"{median(lengths):.0f} / {max(lengths)}", ""),
        "product: lines in file heads": (
            f"{heads / sum(lengths):.1%}",
            "<= 9 %",
        ),
        "product: private functions used once": (f"{private_once(rooms):.1%}", ""),
        "product files that a parallel dimension opens": (str(len(dimension)), "<= 14"),
    }
    if plan:
        found["product files that one plan runs"] = (str(len(executed_files())), "<= 110")
    return found


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traced", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--no-plan", action="store_true", help="leave out the plan, which takes seconds")
    parser.add_argument("--list", action="store_true", help="name the files behind the last two figures")
    wish = parser.parse_args()
    if wish.traced:
        _traced()
        return
    for name, (value, limit) in figures(plan=not wish.no_plan).items():
        print(f"{name:<48} {value:>24}  {limit}")
    if wish.list:
        print("\n".join(["", *opened_by_a_dimension([Room(name) for name in ROOMS])]))
        print("\n".join(["", *executed_files()]))


if __name__ == "__main__":
    main()
