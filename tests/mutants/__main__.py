"""``python -m tests.mutants``: put each fault into a copy of the code, and see the suite turn red.

Exits with 1 when a mutant survives; names it.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants.mutants import MUTANTS, Mutant
from tests.processes.servers import environment
from tests.processes.warm import ROOT

ROOMS = ("profiles", "solver", "service", "workers", "migrations", "src", "tests")
SUITE = [
    f"tests/unit/{name}.py"
    for name in (
        "service/jobs/test_engine",
        "service/jobs/test_claiming",
        "service/jobs/test_sweeps",
        "service/jobs/test_joining",
        "workers/test_runner",
        "service/jobs/test_engine_machine",
    )
]
TIMEOUT_S = 180


def main() -> int:
    """Try the whole suite once without a fault, then with each."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for room in ROOMS:
            shutil.copytree(
                ROOT / room, copy / room, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", copy)
        if _turns_red(copy):
            _say("the suite is red without any mutant")
            return 1
        alive = [mutant.name for mutant in MUTANTS if not _is_killed(copy, mutant)]
    _say(f"mutants={len(MUTANTS)} killed={len(MUTANTS) - len(alive)}")
    return 1 if alive else 0


def _is_killed(copy: Path, mutant: Mutant) -> bool:
    file = copy / mutant.file
    healthy = file.read_text()
    file.write_text(healthy.replace(mutant.old, mutant.new))
    killed = _turns_red(copy)
    file.write_text(healthy)
    _say(f"{'killed  ' if killed else 'SURVIVED'} {mutant.name}")
    return killed


def _turns_red(copy: Path) -> bool:
    """Whether a test fails; stops at the first."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *SUITE]
    there = {**environment({}), "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        run = subprocess.run(
            command, cwd=copy, env=there, capture_output=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return True
    return run.returncode == 1  # a test failed; anything else is not what was meant


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
