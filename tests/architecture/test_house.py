"""The shape of the product: folders, the one importable name, and no cycle of imports."""

import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import meshwright
from benchmarks.__main__ import BENCHMARKS
from benchmarks.house import (
    ROOMS,
    Figure,
    Module,
    figures,
    files_of_a_dimension,
    imports_of,
    longest_chain,
    modules,
)
from meshwright.profiles.errors import InvalidProblemError
from meshwright.service import library

ROOT = Path(__file__).parents[2]
LINKED = (*ROOMS, "migrations")


def test_no_modules_import_each_other_in_a_circle() -> None:
    found = [module for room in ROOMS for module in modules(room)]
    assert longest_chain(imports_of(found)) > 1


def test_the_chain_of_imports_counts_modules_and_refuses_a_circle() -> None:
    assert longest_chain({"a": ["b"], "b": ["c"], "c": [], "d": ["c"]}) == 3
    with pytest.raises(ValueError, match="cycle"):
        longest_chain({"a": ["b"], "b": ["a"]})


def test_the_figures_count_the_files_of_every_room() -> None:
    rooms = {room: modules(room) for room in ("shell", "workers")}
    found = {figure.name: figure.value for figure in figures(rooms, walk={"hops": 7}, dimension=[])}
    assert found["files"] == len(rooms["shell"]) + len(rooms["workers"]) > len(rooms["shell"]) > 1
    assert found["hops of one plan"] == 7


def test_a_figure_prints_its_name_value_and_place() -> None:
    assert Figure("files", 85).line().split() == ["files", "85"]
    assert Figure("hops", 74213, "of one plan").line().split() == ["hops", "74,213", "of", "one", "plan"]


def test_a_private_function_that_is_named_once_counts_as_used_once(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text("def _once(): pass\ndef _twice(): _once(); _never\ndef far(): _twice(); _twice()\n")
    module = Module("one", file)
    assert [one.name for one in module.functions] == ["_once", "_twice", "far"]
    assert module.statements == 3 + 1 + 2 + 2
    assert module.private_used_once == 1


def test_every_command_that_a_document_or_a_file_names_exists() -> None:
    targets = set(
        re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    kinds = {".md", ".py", ".toml", ".txt", ""}
    named, benchmarks = set[str](), set[str]()
    for path in (ROOT / line for line in listed.stdout.splitlines()):
        if path.suffix in kinds and path.is_file() and path != Path(__file__):
            text = path.read_text(encoding="utf-8")
            named |= set(re.findall(r"`make ([a-z-]+)", text))
            benchmarks |= set(re.findall(r"""make bench ARGS="?([a-z-]+)""", text))
    assert {"run", "test", "check", "bench"} <= named <= targets
    assert {"search", "cost"} <= benchmarks <= set(BENCHMARKS)
    assert len(targets) <= 18


def test_make_fuzz_runs_every_file_of_which_make_test_runs_a_part() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\nfuzz:")[2].partition("\n\n")[0]
    run = set[str]()
    for command in re.findall(r"\$\$\((grep [^)]*)\)", recipe):
        done = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=True)
        run |= set(done.stdout.split())
    drawing = re.compile(r"^(from|import) tests\.draws\b", re.MULTILINE)
    tests = (path for path in (ROOT / "tests").rglob("*.py") if drawing.search(path.read_text("utf-8")))
    assert {path.relative_to(ROOT).as_posix() for path in tests} == run


def test_the_guide_names_every_file_of_a_dimension() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    dimension = guide[guide.index("**A parallel dimension**") : guide.index("**A launcher**")]
    assert [name for name in files_of_a_dimension() if f"`{name}`" not in dimension] == []


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_a_module(name: str) -> None:
    assert find_spec(BENCHMARKS[name].module) is not None


def test_the_package_links_to_the_folders_at_the_root() -> None:
    package = ROOT / "src" / "meshwright"
    links = {path.name: path.readlink() for path in package.iterdir() if path.is_symlink()}
    assert links == {room: Path("..") / ".." / room for room in LINKED}


def test_the_linter_refuses_an_import_of_a_bare_folder() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    banned = project["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert set(banned) == set(LINKED)
    for line in ("from solver.problem import Problem", "import profiles.units", "import migrations"):
        command = [str(Path(sys.executable).parent / "ruff"), "check", "--select", "TID251", "-"]
        run = subprocess.run(command, input=line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.returncode == 1, line


def test_the_package_gives_the_interface_when_it_is_asked_for() -> None:
    assert meshwright.plan is library.plan
    assert meshwright.InvalidProblemError is InvalidProblemError
    assert set(meshwright.__all__) <= set(dir(meshwright))
    for name in meshwright.__all__:
        assert getattr(meshwright, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'plans'"):
        _ = meshwright.plans
