"""Limits on size that the linter does not know: one idea a file, readable in one sitting."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
ROOMS = (
    "profiles",
    "solver",
    "service",
    "workers",
    "migrations",
    "client",
    "examples",
    "tests",
    "benchmarks",
)


def python_files() -> list[Path]:
    return [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def tracked_files() -> list[Path]:
    run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in run.stdout.splitlines()]


def test_no_file_is_longer_than_600_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}
    assert {name: length for name, length in lengths.items() if length > MAX_FILE_LINES} == {}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All that stand below it; expressions, where no function is defined, are not looked through."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def test_no_function_is_longer_than_60_lines() -> None:
    long = {}
    for path in python_files():
        text = path.read_text()
        for node in statements(ast.parse(text)) if text.count("\n") > MAX_FUNCTION_LINES else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                start = (
                    node.body[1].lineno if ast.get_docstring(node) and len(node.body) > 1 else node.lineno
                )
                length = (node.end_lineno or start) - start + 1
                if length > MAX_FUNCTION_LINES:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = length
    assert long == {}


def test_no_drawer_for_odds_and_ends() -> None:
    assert [path for path in python_files() if path.name in {"utils.py", "helpers.py", "misc.py"}] == []


def test_no_tracked_text_holds_a_path_of_somebodys_machine() -> None:
    marks = ("/" + "home/", "/" + "root/", "/" + "Users/", "/" + "work/")
    found = []
    for path in tracked_files():
        if (
            path.suffix in {".py", ".md", ".toml", ".yaml", ".yml", ".json", ".txt", ".sh", ".csv"}
            and path.exists()
        ):
            text = path.read_text()
            found += [f"{path.relative_to(ROOT)}: {mark}" for mark in marks if mark in text]
    assert found == []
