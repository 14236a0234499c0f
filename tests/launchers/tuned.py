"""What ``meshwright tune`` chooses beside a full sweep, with launchers that train on this machine's CPU.

    make bench ARGS="tune"
    make bench ARGS="tune --only torchtitan --processes 8 --plans 4"

The sweep runs every plan of the answer three times, in turns, so that whatever else the machine does meets
all of them; it is the judge. Then ``tune`` gets a quarter of what the sweep has cost in GPU minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from meshwright.launchers.registry import export
from meshwright.service.requests.parse import parse_problem
from meshwright.service.tuning.runs import RunOptions, RunResult, run_plan
from meshwright.solver.answer import plan_from_json
from tests.launchers.cpu_training import MEGATRON_LM, TORCHTITAN, OnCpu

ROOT = Path(__file__).parents[2]
LAUNCHERS = {one.launcher: one for one in (MEGATRON_LM, TORCHTITAN)}
REPEATS, STEPS, SHARE, LIMIT_S = 3, 16, 0.25, 300.0


@dataclass(frozen=True)
class Found:
    """A tuning beside its sweep."""

    launcher: str
    processes: int
    swept: dict[str, list[float]]  # step times of every plan that runs, by its id
    swept_gpu_minutes: float
    tuned: dict[str, Any]  # what ``tune --json`` prints

    @property
    def tuned_gpu_minutes(self) -> float:
        """What the tuning cost."""
        return float(sum(one["gpu_minutes"] for one in self.tuned["runs"]))

    @property
    def excess(self) -> float:
        """By how much the chosen plan is slower than the best one of the sweep, by the sweep's medians."""
        taken = {plan: median(times) for plan, times in self.swept.items()}
        return taken[self.tuned["best"]] / min(taken.values()) - 1.0

    @property
    def noise(self) -> float:
        """By how much the slowest repeat of a plan is beyond the fastest, on the mean over all plans."""
        return fmean(max(times) / min(times) - 1.0 for times in self.swept.values())

    def row(self) -> str:
        """A line of the table."""
        share = self.tuned_gpu_minutes / self.swept_gpu_minutes
        return (
            f"| {self.launcher} | {self.processes} | {len(self.swept)} | {self.swept_gpu_minutes:.1f} "
            f"| {len(self.tuned['runs'])} | {self.tuned_gpu_minutes:.1f} ({100 * share:.0f} %) "
            f"| {100 * self.excess:.1f} % | {100 * self.noise:.0f} % |"
        )


def found_of(launcher: OnCpu, processes: int, plans: int, out: Path) -> Found:
    """The sweep, then the tuning."""
    out.mkdir(parents=True, exist_ok=True)
    own = launcher.variables(out)
    os.environ.update(own)  # which the runs of the sweep take over
    (out / "problem.json").write_text(json.dumps(launcher.problem(processes, plans)))
    answer = out / "answer.json"
    answer.write_text(_printed(out, "plan", "problem.json", "--json"))
    swept = sweep(launcher, json.loads(answer.read_text()), out / "sweep")
    times: dict[str, list[float]] = {}
    for one in swept:
        if one.step_time_s:
            times.setdefault(one.plan_id, []).append(one.step_time_s)
    cost = sum(one.gpu_minutes for one in swept)
    line = ["tune", "--from", "answer.json", "--save-dir", "tuning", "--json", "--steps", str(STEPS),
            "--top", str(plans // 2), "--run-limit-s", str(LIMIT_S),
            "--budget-gpu-minutes", str(SHARE * cost)]  # fmt: skip
    tuned = _printed(out, *line, *(["--", *launcher.command] if launcher.command else []))
    return Found(launcher.launcher, processes, times, cost, json.loads(tuned))


def sweep(launcher: OnCpu, answer: dict[str, Any], out: Path) -> list[RunResult]:
    """Every plan of an answer three times, in turns."""
    problem = parse_problem(answer["problem"])
    plans = [plan_from_json(one) for one in answer["plans"]]
    start = RunOptions(command=launcher.command, steps=STEPS, limit_s=LIMIT_S)
    runs = []
    for plan in plans:
        folder = out / plan.plan_id
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in export(plan, problem, launcher.launcher).files.items():
            (folder / name).write_text(text)
    for turn in range(REPEATS):
        for plan in plans:
            runs.append(run_plan(plan.plan_id, plan.config, out / plan.plan_id, start))
            print(f"{turn + 1}: {plan.plan_id} {runs[-1].outcome} {runs[-1].step_time_s}", flush=True)
    return runs


def _printed(folder: Path, *words: str) -> str:
    """The output of a command."""
    known = {**os.environ, "XDG_STATE_HOME": str(folder)}
    known["PYTHONPATH"] = f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "meshwright", *words]
    done = subprocess.run(command, cwd=folder, env=known, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def table(found: list[Found]) -> str:
    """All of them as Markdown."""
    head = (
        "| launcher | processes | plans swept | GPU minutes of the sweep | runs of `tune` "
        "| GPU minutes of `tune` | chosen plan slower than the best | repeats differ by |"
    )
    return "\n".join([head, "|---|---:|---:|---:|---:|---:|---:|---:|", *(one.row() for one in found)])


def main() -> int:
    """Sweep and tune; 1 where a choice is worse than 3 % and than repeats differ, or costs too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(LAUNCHERS), help="one launcher")
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4], help="of a run")
    parser.add_argument("--plans", type=int, default=8, help="that are swept")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "tune")
    options = parser.parse_args()
    found = []
    for name in [options.only] if options.only else sorted(LAUNCHERS):
        for processes in options.processes:
            folder = options.out.resolve() / f"{name}-{processes}"
            found.append(found_of(LAUNCHERS[name], processes, options.plans, folder))
            print(found[-1].row(), flush=True)
    print(table(found))
    good = [
        one.excess <= max(0.03, one.noise) and one.tuned_gpu_minutes <= SHARE * one.swept_gpu_minutes
        for one in found
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
