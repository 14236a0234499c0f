"""What no tracked file may be or hold."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = (
    "profiles",
    "solver",
    "shell",
    "launchers",
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


def test_no_module_is_named_utils_helpers_or_misc() -> None:
    assert [path for path in python_files() if path.name in {"utils.py", "helpers.py", "misc.py"}] == []


def test_no_tracked_text_holds_an_absolute_machine_path() -> None:
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
