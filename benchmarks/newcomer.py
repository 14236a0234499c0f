"""A newcomer's path, timed: clone, install, the README's first command, the first ranked table.

Needs a package registry. ``python -m benchmarks.newcomer`` prints docs/quickstart.md's table, ``--write``
puts it there.
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
    clone = folder / "meshwright"
    home = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": ""}
    plan = [str(clone / ".venv" / "bin" / "meshwright"), *found[1].split()[1:]]
    return {
        "`git clone`": timed(["git", "clone", "--quiet", str(ROOT), str(clone)], folder, home),
        "`make setup`": timed(["make", "setup"], clone, home),
        "the README's first command, to its ranked table": timed(plan, clone, home),
        "the same command again": timed(plan, clone, home),
    }


def table(steps: Mapping[str, float]) -> str:
    """The steps and their sum, as Markdown."""
    rows = [f"| {name} | {seconds:.1f} s |" for name, seconds in steps.items()]
    until = sum(list(steps.values())[:-1])
    return "\n".join(
        ["| step | takes |", "|---|---:|", *rows, f"| clone to first ranked table | {until:.0f} s |", ""]
    )


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/quickstart.md")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = table(measured(Path(folder)))
    print(text)
    if wanted.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(BLOCK.sub(lambda block: f"{block[1]}{text}{block[2]}", page), encoding="utf-8")


if __name__ == "__main__":
    main()
