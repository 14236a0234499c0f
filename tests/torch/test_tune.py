"""``meshwright tune`` trains the short list for real: two gloo processes, exported Megatron-LM files."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from statistics import median

from examples.cpu_training.closed_loop import TINY, problem_of

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples" / "cpu_training" / "train.py"


def meshwright(folder: Path, *words: str, timeout_s: float = 180.0) -> str:
    """The output of a command, which is killed with all its processes where it takes too long."""
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder),
        "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    command = [sys.executable, "-m", "meshwright", *words]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        start_new_session=True,
    ) as running:  # fmt: skip
        try:
            out, said = running.communicate(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 0, said[-3000:]
    return out


def test_the_short_list_is_trained_and_the_fastest_measured_plan_wins(tmp_path: Path) -> None:
    problem = problem_of(TINY)
    problem["search"]["top_k"] = 8
    problem["search"]["pin"]["recompute_granularity"] = "none"
    problem["search"]["constraints"] = ["num_gpus == 2"]
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    (tmp_path / "answer.json").write_text(meshwright(tmp_path, "plan", "problem.json", "--json"))
    train = ("torchrun", "--standalone", "--nproc-per-node=2", str(TRAIN), "{save_dir}/megatron_args.sh")
    out = meshwright(
        tmp_path, "tune", "--from", "answer.json", "--save-dir", "tuning", "--top", "2", "--json",
        "--confidence", "0.8", "--budget-gpu-minutes", "8", "--", sys.executable, "-m",
        "torch.distributed.run", *train[1:], "--steps", "{steps}",
    )  # fmt: skip
    found = json.loads(out)
    times: dict[str, list[float]] = {}
    for one in found["runs"]:
        assert one["outcome"] == "measured", one
        times.setdefault(one["plan_id"], []).append(one["step_time_s"])
    assert found["best"] in times
    taken = {plan: median(some) for plan, some in times.items()}
    assert taken[found["best"]] <= 1.03 * min(taken.values())  # of those that ran, within 3 % of the best
    assert json.loads((tmp_path / "tuning" / "profile.json").read_text())["num_runs"] == len(found["runs"])
