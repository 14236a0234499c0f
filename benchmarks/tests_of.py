"""``make test ARGS="--of solver/cost/price.py"``: the test modules that execute a file.

The module of its name comes first, then those that execute most of its lines. ``--names`` prints each
test, as pytest takes it. Which test executes which line is measured once, in twice the time of all tests,
and kept in ``out/tests``. ``--renew`` measures it anew: do that after tests or modules have moved.
``--tests`` measures fewer. What processes of their own execute (servers, workers) isn't seen.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "out" / "tests"
LINES = KEPT / "lines.coverage"


@dataclass(frozen=True, slots=True)
class Executed:
    """What one test module executes of a file."""

    module: str
    tests: tuple[str, ...]
    lines: int

    def shown(self, *, own: bool, names: bool) -> str:
        """Return its line, or one for each test."""
        if names:
            return "\n".join(self.tests)
        return f"{len(self.tests):5} tests {self.lines:5} lines  {self.module}{'  (of its name)' * own}"


def by_module(contexts: Mapping[int, Sequence[str]], own: str) -> list[Executed]:
    """Return what test modules execute, the one named ``own`` first, then those of the most lines.

    Args:
        contexts: By line, the tests that execute it, as pytest-cov names them; "" is the import.
        own: The test module of the file's name.
    """
    tests, lines = dict[str, set[str]](), dict[str, set[int]]()
    for line, names in contexts.items():
        for name in filter(None, (name.split("|")[0] for name in names)):
            module = name.partition("::")[0]
            tests.setdefault(module, set()).add(name)
            lines.setdefault(module, set()).add(line)
    found = [Executed(module, tuple(sorted(tests[module])), len(lines[module])) for module in tests]
    return sorted(found, key=lambda one: (one.module != own, -one.lines, one.module))


def module_of_its_name(file: Path) -> str:
    """Return the test module that mirrors a product file, whether or not it exists."""
    folder = Path("client") if file.parts[0] == "client" else file.parent  # its only package
    return f"tests/unit/{(folder / f'test_{file.stem}.py').as_posix()}"


def _measure(tests: Sequence[str]) -> None:
    """Record with pytest-cov which test executes which line of which file."""
    from benchmarks.mutation.__main__ import measure  # noqa: PLC0415 - its packages are needed only here

    KEPT.mkdir(parents=True, exist_ok=True)
    measure(ROOT, KEPT, tests, os.cpu_count() or 1)


def _contexts(file: Path) -> dict[int, list[str]]:
    """Return by line of a file the tests that execute it."""
    from coverage import CoverageData  # noqa: PLC0415 - in an environment of its own

    data = CoverageData(str(LINES))
    data.read()
    paths = [path for path in data.measured_files() if path.endswith(f"/{file.as_posix()}")]
    return dict(data.contexts_by_lineno(min(paths, key=len))) if paths else {}


def main() -> int:
    """Print the test modules, or the tests; 1 where none executes the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--of", type=Path, required=True, metavar="FILE", help="such as solver/cost/price.py"
    )
    parser.add_argument("--names", action="store_true", help="print each test")
    parser.add_argument("--renew", action="store_true", help="measure anew")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="measure these [default: tests]")
    told = parser.parse_args()
    file = told.of.resolve().relative_to(ROOT) if told.of.is_absolute() else told.of
    if not (ROOT / file).is_file():
        print(f"error: --of: no file {file} below {ROOT}", file=sys.stderr)
        return 2
    if told.renew or not LINES.exists():
        _measure(told.tests)
    own = module_of_its_name(file)
    found = by_module(_contexts(file), own)
    print("\n".join(one.shown(own=one.module == own, names=told.names) for one in found))
    if not found:
        print(f"no measured test executes {file}", file=sys.stderr)
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
