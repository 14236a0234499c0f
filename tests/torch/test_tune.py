"""``meshwright tune`` with launchers that train for real: Megatron-LM and torchtitan on gloo processes."""

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
from meshwright.service.tuning.runs import end_leftovers
from tests.launchers.cpu_training import MEGATRON_LM, TORCHTITAN, OnCpu
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


def test_megatron_lm_trains_the_short_list_and_a_killed_tuning_goes_on(tmp_path: Path) -> None:
    own = asked(MEGATRON_LM, tmp_path)
    options = ("--top", "1", "--steps", "12", "--confidence", "0.8", "--budget-gpu-minutes", "12")
    with subprocess.Popen(
        [*MESHWRIGHT, *words(MEGATRON_LM, *options)], cwd=tmp_path, start_new_session=True,
        env={**os.environ, **home(tmp_path), **own}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as killed:  # fmt: skip
        until = time.monotonic() + PATIENCE_S
        while not state(tmp_path)["running"]:
            assert time.monotonic() < until
            time.sleep(0.1)
        time.sleep(2.0)  # the ranks of the first run load Megatron-LM
        killed.send_signal(signal.SIGKILL)
    found = json.loads(meshwright(tmp_path, *words(MEGATRON_LM, *options), environment=own))
    assert end_leftovers(tmp_path) == 0  # nobody else's ranks disturbed what was measured since

    first, *more = found["runs"]
    assert first["outcome"] == "interrupted"
    assert first["gpu_minutes"] >= 2.0 * 2 / 60  # it counts: two ranks for two seconds and more
    times: dict[str, list[float]] = {}
    for one in more:
        assert one["outcome"] == "measured", one
        assert one["peak_memory_bytes"] > 0
        times.setdefault(one["plan_id"], []).append(one["step_time_s"])
    assert all(len(some) <= 3 for some in times.values())
    assert found["best"] in times
    learnt = json.loads((tmp_path / "tuning" / "profile.json").read_text())
    assert learnt["num_runs"] == len(more)
    assert sum(one["gpu_minutes"] for one in found["runs"]) <= 12
    again = json.loads(meshwright(tmp_path, *words(MEGATRON_LM, *options), environment=own))
    assert again["runs"] == found["runs"], "what is measured is not measured twice"


def test_torchtitan_out_of_memory_is_told_and_a_hung_run_leaves_no_rank_behind(tmp_path: Path) -> None:
    # The logits of one sequence alone: 4096 * 131072 * 4 bytes = 2 GiB. Whatever else a rank maps while it
    # trains (threads' stacks, libraries) is far from the limit: what does not fit is a tensor.
    own = asked(TORCHTITAN, tmp_path, top_k=2, vocab_size=131072, seq_length=4096)
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
