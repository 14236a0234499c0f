"""Fleets next to simple rules: ``python -m benchmarks.fleet [--jobs 30] [--first-seed 1] [--seeds 3]``.

First the ten jobs of ``examples/fleet-ten-jobs.yaml`` on 32 nodes: CPU seconds of the master and of the
planner (bounds and searches) apart, the share of a full sweep that was searched, and what that sweep takes.
Then fleets that are
overloaded: jobs drawn from the plans of three models, with due dates that cannot be met together. The rival
there is the local search alone, with the CPU seconds that our answer took.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from meshwright.profiles.profile import Profile, default_profile
from meshwright.service.fleets.planning import answered
from meshwright.service.fleets.request import FleetRequest, read_fleet
from meshwright.service.requests.documents import read_problem_file
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.fleet.durations import PlannedDurations
from meshwright.solver.fleet.plan import FleetAnswer, Limits, jobs_without_plan, plan_fleet
from meshwright.solver.fleet.problem import Fleet, FleetJob, NodeChoice, NodeKind, Score, choices_of
from meshwright.solver.fleet.rules import Builder, by_rules, local_search
from meshwright.solver.planner.plan import ask
from meshwright.solver.problem import Problem

TEN = Path(__file__).parents[1] / "examples" / "fleet-ten-jobs.yaml"
NODES, KIND = 32, "h100-sxm-80gb"
COUNTS = (1, 2, 4, 8, 16, 32)
MODELS = (("llama-3.1-8b", 512, 8192), ("llama-3.1-70b", 512, 4096), ("qwen3-30b-a3b", 512, 4096))
LOOSE = 0.05  # bounds of drawn fleets are up to that share below the durations
_MANY_ORDERS = 10**7


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--effort", type=float, default=10.0)
    asked = parser.parse_args()
    print(_ten_jobs(asked.effort), flush=True)
    curves = _curves()
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        print(_drawn(curves, 10, seed, asked.effort), flush=True)
    for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
        print(_drawn(curves, asked.jobs, seed, asked.effort), flush=True)
    return 0


Minutes = Callable[[PlannedDurations, str, NodeChoice], int | None]


@dataclass(slots=True)
class _Spent:
    """CPU seconds of the planner."""

    cpu_s: float = 0.0

    def timed(self, method: Minutes) -> Minutes:
        """Return the method, with its CPU seconds added up."""

        def call(durations: PlannedDurations, job: str, choice: NodeChoice) -> int | None:
            start_s = time.process_time()
            try:
                return method(durations, job, choice)
            finally:
                self.cpu_s += time.process_time() - start_s

        return call


def _profile_of(problem: Problem) -> Profile:
    return default_profile(problem.cluster, problem.priced_as)


def _ten_jobs(effort: float) -> str:
    spent = _Spent()
    request, start_s = read_fleet(read_problem_file(TEN)), time.process_time()
    with (
        patch.object(PlannedDurations, "least_min", spent.timed(PlannedDurations.least_min)),
        patch.object(PlannedDurations, "exact_min", spent.timed(PlannedDurations.exact_min)),
    ):
        durations = PlannedDurations(
            jobs=request.problems, groups=request.cluster.group_named, profile_of=_profile_of
        )
        answer = answered(request, durations, Limits(effort=effort)).answer
    whole_s = time.process_time() - start_s
    words = f"ten jobs of examples/fleet-ten-jobs.yaml: {_words(answer)}"
    cpu = f"CPU {whole_s - spent.cpu_s:.2f} s, and {spent.cpu_s:.1f} s of bounds and searches"
    return f"{words}; {cpu} (a full sweep: {_sweep_s(request):.1f} s)"


def _sweep_s(request: FleetRequest) -> float:
    """Return the CPU seconds of a search for every job and number of nodes."""
    durations = PlannedDurations(
        jobs=request.problems, groups=request.cluster.group_named, profile_of=_profile_of
    )
    start_s = time.process_time()
    for job in request.fleet.jobs:
        for choice in choices_of(request.fleet, job):
            durations.exact_min(job.name, choice)
    return time.process_time() - start_s


def _words(answer: FleetAnswer) -> str:
    late, last, cost = (one.value for one in answer.objectives)
    rules = ", ".join(f"{one.rule} {one.value.lateness}" for one in answer.rules)
    share = answer.searched / answer.choices
    return (
        f"{answer.status}, weighted lateness {late} min (at least {answer.objectives[0].bound}, "
        f"gap {answer.objectives[0].gap:.1%}; {rules}), last end {last}, node-minutes {cost}; "
        f"searched {answer.searched} of {answer.choices} ({share:.0%}), rounds: {answer.rounds}"
    )


def _curves() -> dict[str, dict[int, float]]:
    """Return the seconds of our best plan's step by the number of nodes, of every model."""
    found = dict[str, dict[int, float]]()
    for model, batch, length in MODELS:
        for nodes in COUNTS:
            problem = parse_problem({
                "model": {"name": model}, "cluster": {"name": "dgx-h100", "num_nodes": nodes},
                "workload": {"global_batch_size": batch, "seq_length": length}, "launcher": "megatron-lm",
                "search": {"top_k": 1, "certify": "none"},
            })  # fmt: skip
            plans = ask(problem, default_profile(problem.cluster, problem.priced_as)).plans
            if plans:
                found.setdefault(model, {})[nodes] = plans[0].prediction.step_time_s
    return found


@dataclass(slots=True)
class _Drawn:
    """A drawn fleet with its durations."""

    fleet: Fleet
    exact: dict[str, dict[NodeChoice, int]] = field(default_factory=dict)
    least: dict[str, dict[NodeChoice, int]] = field(default_factory=dict)

    def least_min(self, job: str, choice: NodeChoice) -> int | None:
        return self.least[job].get(choice)

    def exact_min(self, job: str, choice: NodeChoice) -> int | None:
        return self.exact[job].get(choice)


def drawn_fleet(curves: dict[str, dict[int, float]], jobs: int, seed: int) -> _Drawn:
    """Return so many jobs: model, steps, release, due date and weight are drawn."""
    draw = random.Random(seed)  # noqa: S311 - it keeps no secret
    found, made = _Drawn(Fleet(kinds=(), jobs=())), list[FleetJob]()
    for at in range(jobs):
        name, curve = f"job-{at}", curves[draw.choice(sorted(curves))]
        steps = draw.choice([2000, 5000, 10000])
        minutes = {
            NodeChoice(KIND, nodes): max(1, round(step_s * steps / 60 * draw.uniform(0.95, 1.05)))
            for nodes, step_s in curve.items()
        }
        release = draw.choice([0, 0, 0, 600, 1440])
        due = release + round(min(minutes.values()) * draw.uniform(1.5, 6.0))
        made.append(
            FleetJob(
                name=name, release_min=release, due_min=due, weight=draw.choice([1, 1, 2, 5]),
                node_counts=tuple(choice.nodes for choice in minutes),
            )
        )  # fmt: skip
        found.exact[name] = minutes
        found.least[name] = {
            one: int(took / (1.0 + draw.uniform(0.0, LOOSE))) for one, took in minutes.items()
        }
    found.fleet = Fleet(kinds=(NodeKind(name=KIND, nodes=NODES),), jobs=tuple(made))
    return found


def _drawn(curves: dict[str, dict[int, float]], jobs: int, seed: int, effort: float) -> str:
    drawn = drawn_fleet(curves, jobs, seed)

    def at(job: str, name: str) -> str:
        return f"/{job}/{name}"

    start_s = time.process_time()
    least, _ = jobs_without_plan(drawn.fleet, drawn, at)
    answer = plan_fleet(drawn.fleet, least, drawn, at, Limits(effort=effort, seed=seed))
    took_s = time.process_time() - start_s
    ends_s = time.process_time() + took_s

    def ended() -> bool:
        return time.process_time() >= ends_s

    builder = Builder(drawn.fleet, drawn.exact)
    first = min(by_rules(drawn.fleet, drawn.exact, orders=0), key=lambda one: one.value)
    rival = local_search(builder, first.schedule, orders=_MANY_ORDERS, seed=seed, ended=ended)
    late = Score.of(drawn.fleet, rival).lateness
    words = f"{jobs} drawn jobs, seed {seed}: {_words(answer)}; CPU {took_s:.2f} s"
    return f"{words}; local search alone with all durations and the same CPU: {late}"


if __name__ == "__main__":
    raise SystemExit(main())
