"""``meshwright tune`` trains the short list for real: two gloo processes, exported Megatron-LM files."""

import json
import sys
from pathlib import Path
from statistics import median

from examples.cpu_training.closed_loop import TINY, problem_of
from tests.processes.bounded import output_of

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples" / "cpu_training" / "train.py"


def meshwright(folder: Path, *words: str, timeout_s: float = 180.0) -> str:
    """The output of a command."""
    environment = {"XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "meshwright", *words]
    return output_of(command, timeout_s=timeout_s, environment=environment, cwd=folder)


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
