"""``meshwright tune`` with torchtitan on gloo processes, which run out of memory and hang for real.

Megatron-LM's runs are tuned, and killed, in ``test_closed_loop.py``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.service.cli.terminal import NO_PLAN
from meshwright.service.tuning.runs import LOG_FILE, end_leftovers
from tests.launchers.cpu_training import TORCHTITAN, OnCpu
from tests.processes.bounded import output_of

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples" / "cpu_training" / "train.py"
MESHWRIGHT = (sys.executable, "-m", "meshwright")
PATIENCE_S = 240.0


def meshwright(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> str:
    """The output of a command."""
    known = {**home(folder), **(environment or {})}
    return output_of([*MESHWRIGHT, *words], timeout_s=PATIENCE_S, environment=known, cwd=folder)


def home(folder: Path) -> dict[str, str]:
    """Where commands keep what they found, and find us."""
    return {"XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT / "src")}


def asked(
    launcher: OnCpu, folder: Path, *, top_k: int = 8, vocab_size: int = 512, seq_length: int = 32
) -> dict[str, str]:
    """``answer.json`` of two processes in the folder; what the processes of runs find."""
    problem = launcher.problem(2, top_k)
    problem["model"]["vocab_size"], problem["workload"]["seq_length"] = vocab_size, seq_length
    (folder / "problem.json").write_text(json.dumps(problem))
    (folder / "answer.json").write_text(meshwright(folder, "plan", "problem.json", "--json"))
    own = launcher.variables(folder)
    return {**own, "PYTHONPATH": f"{ROOT / 'src'}:{own['PYTHONPATH']}"}


def words(launcher: OnCpu, *options: str) -> list[str]:
    """The command line of a tuning."""
    line = ["tune", "--from", "answer.json", "--save-dir", "tuning", "--json", *options]
    return [*line, "--", *launcher.command] if launcher.command else line


def state(folder: Path) -> dict[str, Any]:
    """What a tuning has kept so far."""
    path = folder / "tuning" / "tuning.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": [], "running": None}
    return found


def begun_and_killed(folder: Path, line: list[str], environment: Mapping[str, str]) -> float:
    """Start a tuning, and kill it once a rank of its first run has written a line.

    Returns the seconds from the start of that run to its last line before the kill.
    """
    with subprocess.Popen(
        [*MESHWRIGHT, *line], cwd=folder, start_new_session=True,
        env={**os.environ, **home(folder), **environment}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as killed:  # fmt: skip
        until = time.monotonic() + PATIENCE_S
        while (held_s := _said_after_s(folder)) is None:
            assert time.monotonic() < until
            time.sleep(0.1)
        killed.send_signal(signal.SIGKILL)
    return held_s


def _said_after_s(folder: Path) -> float | None:
    """Seconds from the start of the current run to its last line; None: it has written none."""
    running = state(folder)["running"]
    log = folder / "tuning" / running["plan_id"] / LOG_FILE if running else None
    if log is None or not log.exists() or not log.stat().st_size:
        return None
    begun_s, last_s = float(running["at_s"]), float(log.stat().st_mtime)
    return last_s - begun_s


def test_torchtitan_out_of_memory_is_told_and_a_hung_run_leaves_no_rank_behind(tmp_path: Path) -> None:
    # The logits of one sequence alone: 4096 * 131072 * 4 bytes = 2 GiB. Whatever else a rank maps while it
    # trains (threads' stacks, libraries) is far from the limit: what does not fit is a tensor.
    own = asked(TORCHTITAN, tmp_path, top_k=1, vocab_size=131072, seq_length=4096)
    little = {"DEVICE_MEMORY_BYTES": str(1920 * 2**20)}
    short = ("--top", "1", "--steps", "6", "--budget-gpu-minutes", "8")
    found = run_out(tmp_path, words(TORCHTITAN, *short), own | little)
    assert {one["outcome"] for one in found["runs"]} == {"out of memory"}, found["runs"]
    # whatever other ranks said after it
    assert "can't allocate memory" in found["runs"][0]["said"].splitlines()[-1]
    assert (found["best"], found["chance"]) == (None, 0.0)

    (tmp_path / "tuning" / "tuning.json").unlink()
    found = run_out(tmp_path, words(TORCHTITAN, *short, "--run-limit-s", "3"), own)
    assert {one["outcome"] for one in found["runs"]} == {"hung"}
    assert end_leftovers(tmp_path) == 0


def run_out(folder: Path, line: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """What a tuning prints that measures nothing."""
    done = subprocess.run(
        [*MESHWRIGHT, *line], cwd=folder, env={**os.environ, **home(folder), **environment},
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == NO_PLAN, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
