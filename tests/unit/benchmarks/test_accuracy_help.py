"""The accuracy benchmark's options."""

import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "benchmarks.accuracy"]


def test_asking_for_help_runs_no_benchmark_and_an_unknown_option_is_refused() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    shown = subprocess.run([*COMMAND, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "--quick" in shown.stdout
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10.0  # all runs: over 100 CPU s
    wrong = subprocess.run([*COMMAND, "--quik"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "--quik" in wrong.stderr
