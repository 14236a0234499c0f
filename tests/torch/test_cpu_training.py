"""The closed loop on this machine, in its smallest form: it closes, and exported plans train."""

import re
import subprocess
from pathlib import Path

from tests.processes.warm_python import python

ROOT = Path(__file__).parents[2]
LOOP = "examples/cpu_training/closed_loop.py"


def test_exported_plans_train_and_what_they_took_teaches(tmp_path: Path) -> None:
    done = subprocess.run(
        [python(), LOOP, "--tiny", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    # times of milliseconds on a shared machine are no figures: that calibration helps is not asked here
    assert done.returncode in (0, 1), done.stderr
    trained = re.findall(r"^(\w+) 2, .*loss \[([\d.]+), ([\d.]+)\]$", done.stdout, re.MULTILINE)
    assert {kind for kind, *_losses in trained} == {"data", "tensor", "pipeline"}
    assert all(float(last) < float(first) for _kind, first, last in trained), done.stdout
    assert "calibrated: held-out step times" in done.stdout
    assert "| **mean error, step time** |" in (tmp_path / "section.md").read_text()
