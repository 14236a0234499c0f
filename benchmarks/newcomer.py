"""A newcomer's path, timed: clone, install, the README's first command, the first ranked table.

Needs a package registry, for packages that are fetched first and timed apart: their time is the network's.
``python -m benchmarks.newcomer`` prints docs/quickstart.md's table, ``--write`` puts it there; it fails
where the rest takes more than a minute.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "quickstart.md"
BLOCK = re.compile(r"(<!-- newcomer -->\n).*?(<!-- end -->)", re.DOTALL)
DOWNLOAD = "the download of its packages, not counted"
AGAIN = "the same command again"
MOST_S = 60
FIRST = re.compile(r"^\$ (meshwright plan .*)$", re.MULTILINE)


def timed(command: list[str], folder: Path, environment: Mapping[str, str]) -> float:
    """Seconds of one command; what it printed is shown where it fails."""
    began_s = time.monotonic()
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}\n{run.stdout}{run.stderr}")
    return time.monotonic() - began_s


def measured(folder: Path) -> dict[str, float]:
    """Seconds of each step, in an empty home."""
    found = FIRST.search((ROOT / "README.md").read_text(encoding="utf-8"))
    if found is None:
        sys.exit("README.md shows no command")
    clone, packages = folder / "meshwright", folder / "packages"
    home = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": ""}
    home.pop("PYTHONDONTWRITEBYTECODE", None)
    alone = {**home, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages), "PIP_NO_CACHE_DIR": "1"}
    python, pinned = str(clone / ".venv/bin/python"), ["--constraint", "constraints.txt"]
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    plan = [str(clone / ".venv/bin/meshwright"), *found[1].split()[1:]]
    fetch = ["download", "--dest", str(packages), *pinned, ".", "setuptools"]
    return {
        "`git clone`": timed(["git", "clone", "--quiet", str(ROOT), str(clone)], folder, home),
        "`python3.11 -m venv .venv`": timed([sys.executable, "-m", "venv", ".venv"], clone, home),
        DOWNLOAD: timed([*pip, *fetch], clone, home),
        "`.venv/bin/pip install .`": timed([*pip, "install", *pinned, "."], clone, alone),
        "the README's first command, to its ranked table": timed(plan, clone, home),
        AGAIN: timed(plan, clone, home),
    }


def without_download_s(steps: Mapping[str, float]) -> float:
    """Seconds from the clone to the first table."""
    return sum(seconds for name, seconds in steps.items() if name not in (DOWNLOAD, AGAIN))


def table(steps: Mapping[str, float]) -> str:
    """The steps and their sum, as Markdown."""
    rows = [f"| {name} | {seconds:.1f} s |" for name, seconds in steps.items()]
    until = f"| clone to first ranked table, without the download | {without_download_s(steps):.0f} s |"
    return "\n".join(["| step | takes |", "|---|---:|", *rows, until, ""])


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/quickstart.md")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        steps = measured(Path(folder))
    text = table(steps)
    print(text)
    if wanted.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(BLOCK.sub(lambda block: f"{block[1]}{text}{block[2]}", page), encoding="utf-8")
    if without_download_s(steps) > MOST_S:
        sys.exit(f"more than {MOST_S} s")


if __name__ == "__main__":
    main()
