"""The shape of the product: folders, the one importable name, and no cycle of imports."""

import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import meshwright
from benchmarks.house import ROOMS, longest_chain, modules
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service import library

ROOT = Path(__file__).parents[2]
LINKED = (*ROOMS, "migrations")
MOST_IN_SOLVER, MOST_ELSEWHERE = 15, 20
ONE_FILE_FOR_EACH = {  # a command, a launcher or a foreign format
    "service/cli",
    "service/launchers",
    "service/launchers/reading",
    "profiles/importers",
    "service/report",  # one file for each section of the report
}


@pytest.mark.parametrize("room", ROOMS)
def test_folders_hold_as_many_files_as_a_reader_takes_in(room: str) -> None:
    most = MOST_IN_SOLVER if room == "solver" else MOST_ELSEWHERE
    counts = Counter(str(module.path.parent.relative_to(ROOT)) for module in modules(room))
    assert {name: n for name, n in counts.items() if n > most and name not in ONE_FILE_FOR_EACH} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = [module for room in ROOMS for module in modules(room)]
    names = frozenset(module.name for module in found)
    assert longest_chain({module.name: module.imported(names) for module in found}) > 1


def test_the_chain_of_imports_counts_modules_and_refuses_a_circle() -> None:
    assert longest_chain({"a": ["b"], "b": ["c"], "c": [], "d": ["c"]}) == 3
    with pytest.raises(ValueError, match="cycle"):
        longest_chain({"a": ["b"], "b": ["a"]})


def test_the_package_links_to_the_folders_at_the_root() -> None:
    package = ROOT / "src" / "meshwright"
    links = {path.name: path.readlink() for path in package.iterdir() if path.is_symlink()}
    assert links == {room: Path("..") / ".." / room for room in LINKED}


def test_our_code_never_imports_the_bare_folders() -> None:
    """From the root ``import solver`` would work as well, and make every class twice."""
    names = [
        module.name
        for room in ROOMS
        for module in modules(room)
        if not module.name.endswith(("__main__", "placement_model", "split_model", "certify.child"))
        and ".measure." not in module.name  # torch is no dependency
    ]
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        f"print(*sorted({{name.split('.')[0] for name in sys.modules}} & set({LINKED!r})))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_the_linter_refuses_an_import_of_a_bare_folder() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    banned = project["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == set(LINKED)
    for line in ("from solver.problem import Problem", "import profiles.units", "import migrations"):
        command = [str(Path(sys.executable).parent / "ruff"), "check", "--select", "TID251", "-"]
        run = subprocess.run(command, input=line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.returncode == 1, line


def test_importing_the_package_loads_no_solver() -> None:
    code = "import meshwright, meshwright.profiles, sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert loaded.isdisjoint({"meshwright.solver", "numpy", "pydantic", "ortools", "yaml"})


def test_the_package_gives_the_interface_when_it_is_asked_for() -> None:
    assert meshwright.plan is library.plan
    assert meshwright.InvalidProblemError is InvalidProblemError
    assert set(meshwright.__all__) <= set(dir(meshwright))
    for name in meshwright.__all__:
        assert getattr(meshwright, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'plans'"):
        _ = meshwright.plans
