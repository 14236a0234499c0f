"""Which plan of a short list is run next, and when the best one is known well enough.

Every run teaches: after each the cluster is calibrated on all of them, the list is priced anew, and the
chances of each plan to be the fastest follow from what the calibration leaves open. A plan that ran out
of memory, hung or failed is out. The plan that is likeliest the fastest must have run before it wins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.documents import shown_path
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile, framework_of
from meshwright.service.files import write_text
from meshwright.service.launchers.target import settled_problem
from meshwright.service.tuning.runs import Measured
from meshwright.solver.answer import Odds, Plan
from meshwright.solver.calibration.calibrate import calibrate
from meshwright.solver.calibration.fit import TIME_PROCESS
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.explain.certainty import log_covariance, odds_of, runs_to_measure
from meshwright.solver.predict import predict_all
from meshwright.solver.problem import Problem, problem_digest

FORMAT = "meshwright-tuning-1"
STATE_FILE = "tuning.json"
REPEATS = 3  # runs of one plan at most
_LIMIT = 2.0  # times the dearest run so far that the next one may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known after some runs."""

    plans: tuple[Plan, ...]  # those still in the race, likeliest the fastest first
    calibration: Calibration | None  # None: no run has taught anything yet
    runs: tuple[Measured, ...]

    @property
    def best(self) -> Plan | None:
        """The plan that is likeliest the fastest."""
        return self.plans[0] if self.plans else None

    def chance(self) -> float:
        """That the first plan is the fastest of those that can run."""
        best = self.best
        return 0.0 if best is None or best.odds is None else best.odds.best_probability

    def times_of(self, plan_id: str) -> list[float]:
        """Measured step times of a plan."""
        return [one.step_time_s for one in self.runs if one.plan_id == plan_id and one.step_time_s]


def short_list(problem: Problem, profile: Profile, plans: Sequence[Plan], most: int) -> tuple[Plan, ...]:
    """The best plans, and those whose runs would decide most, as ``plan --measure-next`` names them."""
    first = list(plans[:most])
    named = [plan for plan, _ in runs_to_measure(problem, profile, plans, most)]
    return (*first, *(plan for plan in named if plan not in first))


def standing(
    problem: Problem, profile: Profile, plans: Sequence[Plan], runs: Sequence[Measured]
) -> Standing:
    """The list after some runs: calibrated, priced and ranked anew.

    Args:
        problem: the question.
        profile: the costs that nothing here has taught.
        plans: the short list.
        runs: of its plans.
    """
    by_id = {plan.plan_id: plan for plan in plans}
    taught = [_observation(problem, by_id[one.plan_id], one) for one in runs if _teaches(one)]
    found, costs = None, profile
    if any(one.step_time_s for one in taught):
        found = calibrate(taught, cluster=problem.cluster.name)
        costs = found.applied(profile)
    out = {one.plan_id for one in runs if one.outcome != "measured"}
    left = [plan for plan in plans if plan.plan_id not in out]
    seen = predict_all(problem, costs, [plan.config for plan in left])
    priced = [replace(plan, prediction=one) for plan, one in zip(left, seen, strict=True)]
    now = Standing(plans=tuple(priced), calibration=found, runs=tuple(runs))
    return replace(now, plans=_ranked(problem, costs, now))


def _ranked(problem: Problem, costs: Profile, now: Standing) -> tuple[Plan, ...]:
    """The plans with their chances, likeliest first.

    A plan that was run is as fast as it was, but for the noise of runs; of the others the calibrated
    model and what it leaves open decide.
    """
    if not now.plans:
        return ()
    means = np.log([plan.prediction.step_time_s for plan in now.plans])
    together = log_covariance(problem, costs, now.plans)
    for at, plan in enumerate(now.plans):
        times = now.times_of(plan.plan_id)
        if times:
            means[at] = log(median(times))
            together[at, :] = together[:, at] = 0.0
            together[at, at] = TIME_PROCESS.noise**2 / len(times)
    chances, regrets = odds_of(means, together, problem.options.seed)
    found = [
        replace(plan, odds=Odds(best_probability=float(chance), regret_p90=float(regret)))
        for plan, chance, regret in zip(now.plans, chances, regrets, strict=True)
    ]
    order = sorted(range(len(found)), key=lambda at: (-chances[at], means[at]))
    return tuple(found[at] for at in order)


def next_plan(problem: Problem, profile: Profile, now: Standing, confidence: float) -> Plan | None:
    """The plan to run next; None: the best is decided, or no run can tell more.

    The likeliest is run before any other; then the one whose run would decide most, as often as
    ``REPEATS``; those that were never run go before repeats.
    """
    best = now.best
    if best is None:
        return None
    times = {plan.plan_id: len(now.times_of(plan.plan_id)) for plan in now.plans}
    if not times[best.plan_id]:
        return best
    if now.chance() >= confidence:
        return None
    open_ones = [plan for plan in now.plans if times[plan.plan_id] < REPEATS]
    if not open_ones:
        return None
    costs = profile if now.calibration is None else now.calibration.applied(profile)
    wanted = [plan for plan, _ in runs_to_measure(problem, costs, now.plans, len(now.plans))]
    order = [plan for plan in wanted if plan in open_ones] or open_ones
    fresh = [plan for plan in order if not times[plan.plan_id]]
    return (fresh or order)[0]


def likely_gpu_minutes(now: Standing) -> float:
    """What the next run may cost: the dearest so far; 0 before the first."""
    return max((one.gpu_minutes for one in now.runs), default=0.0)


def _teaches(one: Measured) -> bool:
    """Whether calibration learns from a run: a step time, or that memory ran out."""
    return one.outcome in ("measured", "out of memory")


def _observation(problem: Problem, plan: Plan, one: Measured) -> Observation:
    """A run as calibration sees it."""
    settled = settled_problem(plan, problem)
    return Observation(
        name=one.plan_id, problem=settled, configuration=plan.config,
        framework=framework_of(settled.launcher), step_time_s=one.step_time_s,
        peak_memory_bytes=one.peak_memory_bytes, memory_kind=one.memory_kind,
        memory_rank=one.memory_rank, out_of_memory=one.outcome == "out of memory",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# The tuning in its folder: written after every run, taken up again by the next start.


def kept_runs(folder: Path, problem: Problem) -> list[Measured]:
    """Runs of an earlier start of the same question; none where the folder is new.

    Raises:
        InvalidProblemError: the folder holds the tuning of another question, or none that can be read.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return []
    try:
        state: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        same = (state["format"], state["problem"]) == (FORMAT, problem_digest(problem))
        runs = [Measured(**one) for one in state["runs"]]
    except (OSError, ValueError, LookupError, TypeError):
        raise InvalidProblemError.of("--save-dir", f"{shown_path(path)} cannot be read") from None
    if not same:
        message = f"{shown_path(folder)} holds the tuning of another question; choose another folder"
        raise InvalidProblemError.of("--save-dir", message)
    return runs


def keep_runs(folder: Path, problem: Problem, runs: Sequence[Measured]) -> None:
    """Write all runs; a reader sees those before or all of them."""
    state = {"format": FORMAT, "problem": problem_digest(problem), "runs": [asdict(one) for one in runs]}
    write_text(folder / STATE_FILE, json.dumps(state, indent=1, allow_nan=False) + "\n")


def report_of(now: Standing, names: Mapping[str, str], why: str) -> str:
    """What was learnt, as Markdown: every plan with what it took, and what the calibration found."""
    best, spent = now.best, sum(one.gpu_minutes for one in now.runs)
    lines = ["# Tuning", "", f"{why} {len(now.runs)} runs, {spent:.1f} GPU minutes.", ""]
    if best is not None:
        times = now.times_of(best.plan_id)
        took = f"{median(times):.3f} s measured" if times else "not measured"
        sure = f"{100 * now.chance():.0f} % that it is the fastest of those below that can run"
        lines += [f"Best: plan {best.plan_id} ({names[best.plan_id]}), {took}; {sure}.", ""]
    lines += [
        "| plan | layout | runs | step measured | step predicted now | chance |",
        "|---|---|---|---|---|---|",
    ]
    for plan in now.plans:
        times = now.times_of(plan.plan_id)
        took = f"{median(times):.3f} s" if times else "–"
        chance = 100 * plan.odds.best_probability if plan.odds else 0.0
        lines.append(
            f"| {plan.plan_id} | {names[plan.plan_id]} | {len(times)} | {took} "
            f"| {plan.prediction.step_time_s:.3f} s | {chance:.0f} % |"
        )
    for one in now.runs:
        if one.outcome != "measured":
            lines.append(f"| {one.plan_id} | {names[one.plan_id]} | 1 | {one.outcome} | – | 0 % |")
    found = now.calibration.findings if now.calibration else ()
    lines += ["", *(f"- {text}" for text in found)] if found else []
    return "\n".join([*lines, ""])
