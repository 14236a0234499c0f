"""The choice of the plan to run next from a short list, and of when to stop.

Every run teaches: after each the cluster is calibrated on all of them, the list is priced anew, and the
chances of each plan to be the fastest follow from what the calibration leaves open. A plan that ran out
of memory, hung or failed is out. The plan that is likeliest the fastest must have run before it wins.
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from math import log, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from meshwright.profiles.calibration import Calibration
from meshwright.profiles.documents import document_text, shown_path, without_version
from meshwright.profiles.errors import InvalidProblemError
from meshwright.profiles.profile import Profile, framework_of
from meshwright.service.files import write_text
from meshwright.service.tuning.runs import LOG_FILE, OUT, RunResult, end_leftovers
from meshwright.solver.answer import Odds, Plan, ranked_plans, settled_problem
from meshwright.solver.calibration.calibrate import calibrate, default_profile_of, impossible
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.calibration.priors import TIME_PROCESS
from meshwright.solver.explain.certainty import log_covariance, odds_of, runs_to_measure
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem, problem_digest

FORMAT = "meshwright-tuning-1"
STATE_FILE, _LOCK_FILE = "tuning.json", ".lock"
REPEATS = 3  # runs of one plan at most
_EXPECTED = 2.0  # repeats that weigh as much as what is known of noise beforehand


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A run that has not ended yet."""

    plan_id: str
    num_gpus: int
    at_s: float  # of the system's clock, since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningState:
    """The state of knowledge after some runs."""

    plans: tuple[Plan, ...]  # those still in the race, likeliest the fastest first
    calibration: Calibration | None  # None: no run has taught anything yet
    runs: tuple[RunResult, ...]

    @property
    def likeliest(self) -> Plan | None:
        """Return the plan that is likeliest the fastest, whether it was run or not."""
        return self.plans[0] if self.plans else None

    @property
    def best(self) -> Plan | None:
        """Return the plan to go on with: the likeliest of those run, before any run that of all."""
        ran = [plan for plan in self.plans if self.times_of(plan.plan_id)]
        return ran[0] if ran else self.likeliest

    def chance(self) -> float:
        """Return the chance that the best plan is the fastest of those that can run."""
        best = self.best
        return 0.0 if best is None or best.odds is None else best.odds.best_probability

    def times_of(self, plan_id: str) -> list[float]:
        """Return measured step times of a plan."""
        return [one.step_time_s for one in self.runs if one.plan_id == plan_id and one.step_time_s]


def short_list(problem: Problem, profile: Profile, plans: Sequence[Plan], most: int) -> tuple[Plan, ...]:
    """Return the best plans, and those with the most decisive runs, as ``plan --measure-next`` does."""
    plans = ranked_plans(plans)
    first = list(plans[:most])
    named = [plan for plan, _ in runs_to_measure(problem, profile, plans, most)]
    return (*first, *(plan for plan in named if plan not in first))


def standing(
    problem: Problem, profile: Profile, plans: Sequence[Plan], runs: Sequence[RunResult]
) -> TuningState:
    """Return the list after some runs: calibrated, priced and ranked anew.

    Args:
        problem: the question.
        profile: the costs that nothing here has taught.
        plans: the short list.
        runs: of its plans.
    """
    by_id = {plan.plan_id: plan for plan in plans}
    learning = [one for one in runs if one.outcome in ("measured", "out of memory")]
    taught = [_observation(problem, by_id[one.plan_id], one) for one in learning]
    found, costs = None, profile
    if any(one.step_time_s for one in taught):
        found = calibrate(taught, cluster=problem.cluster.name)
        costs = found.applied(profile)
    out = {one.plan_id for one in runs if one.outcome in OUT}
    left = [plan for plan in plans if plan.plan_id not in out]
    seen = [predict(settled_problem(plan, problem), costs, plan.config) for plan in left]
    priced = [replace(plan, prediction=one) for plan, one in zip(left, seen, strict=True)]
    now = TuningState(plans=tuple(priced), calibration=found, runs=tuple(runs))
    return replace(now, plans=_ranked(problem, costs, now))


def _ranked(problem: Problem, costs: Profile, now: TuningState) -> tuple[Plan, ...]:
    """Return the plans with their chances, likeliest first.

    A plan that was run is as fast as it was, but for the noise of runs; of the others the calibrated
    model and what it leaves open decide.
    """
    if not now.plans:
        return ()
    means = np.log([plan.prediction.step_time_s for plan in now.plans])
    together, noise = log_covariance(problem, costs, now.plans), noise_of(now.runs)
    for at, plan in enumerate(now.plans):
        times = now.times_of(plan.plan_id)
        if times:
            means[at] = log(median(times))
            together[at, :] = together[:, at] = 0.0
            together[at, at] = noise**2 / len(times)
    chances, regrets = odds_of(means, together, problem.options.seed)
    found = [
        replace(plan, odds=Odds(best_probability=float(chance), regret_p90=float(regret)))
        for plan, chance, regret in zip(now.plans, chances, regrets, strict=True)
    ]
    order = sorted(range(len(found)), key=lambda at: (-chances[at], means[at]))
    return tuple(found[at] for at in order)


def noise_of(runs: Sequence[RunResult]) -> float:
    """Return the spread of runs of one plan, as a share of the step time (deviation of its logarithm).

    What runs elsewhere showed, or what the steps of these runs let expect where that is more, and what
    repeats of a plan have shown; the expectation counts as much as ``_EXPECTED`` repeats.
    """
    logs: dict[str, list[float]] = {}
    for one in runs:
        if one.step_time_s:
            logs.setdefault(one.plan_id, []).append(log(one.step_time_s))
    inside = [one.noise for one in runs if one.step_time_s]
    expected = max(TIME_PROCESS.noise, median(inside) if inside else 0.0)
    squares = sum((one - fmean(some)) ** 2 for some in logs.values() for one in some)
    repeats = sum(len(some) - 1 for some in logs.values())
    return sqrt((_EXPECTED * expected**2 + squares) / (_EXPECTED + repeats))


def next_plan(problem: Problem, profile: Profile, now: TuningState, confidence: float) -> Plan | None:
    """Return the plan to run next; None: the best is decided, or no run can add information.

    The likeliest is run before any other; then the one with the most decisive run, as often as
    ``REPEATS``; those that were never run go before repeats.
    """
    first = now.likeliest
    if first is None:
        return None
    times = {plan.plan_id: len(now.times_of(plan.plan_id)) for plan in now.plans}
    if not times[first.plan_id]:
        return first
    if now.chance() >= confidence:
        return None
    open_ones = [plan for plan in now.plans if times[plan.plan_id] < REPEATS]
    if not open_ones:
        return None
    costs = profile if now.calibration is None else now.calibration.applied(profile)
    wanted = [plan for plan, _ in runs_to_measure(problem, costs, now.plans, len(now.plans))]
    order = [plan for plan in wanted if plan in open_ones] or open_ones
    return ([plan for plan in order if not times[plan.plan_id]] or order)[0]


def likely_gpu_minutes(now: TuningState) -> float:
    """Return the possible cost of the next run: the most so far; 0 before the first."""
    return max((one.gpu_minutes for one in now.runs), default=0.0)


def believed(problem: Problem, plan: Plan, one: RunResult) -> RunResult:
    """The run; refused where its step cannot have been, without its peak where that cannot; and why."""
    if one.outcome != "measured":
        return one
    if one.step_time_s is not None and one.step_time_s > one.seconds:
        whole_s = round(one.seconds, 1)
        return replace(
            one,
            outcome="refused",
            said=f"a step of {one.step_time_s:g} s is longer than its whole run of {whole_s:g} s",
            step_time_s=None,
            peak_memory_bytes=None,
        )
    seen = _observation(problem, plan, one)
    profile = default_profile_of(seen)
    why = impossible(seen, profile)
    if why is None:
        return one
    if impossible(replace(seen, peak_memory_bytes=None), profile) is None:
        return replace(
            one, said=f"its peak is left out: {why.partition(' is left out: ')[2]}", peak_memory_bytes=None
        )
    return replace(one, outcome="refused", said=why, step_time_s=None, peak_memory_bytes=None)


def _observation(problem: Problem, plan: Plan, one: RunResult) -> Observation:
    settled = settled_problem(plan, problem)
    return Observation(
        name=one.plan_id, problem=settled, configuration=plan.config,
        framework=framework_of(settled.launcher), step_time_s=one.step_time_s,
        peak_memory_bytes=one.peak_memory_bytes, memory_kind=one.memory_kind,
        memory_rank=one.memory_rank, out_of_memory=one.outcome == "out of memory",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------
# The tuning in its folder: written after every run, taken up again by the next start.


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder for this tuning alone; end what a killed one has left running in it.

    Raises:
        InvalidProblemError: another tuning works in it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / _LOCK_FILE).open("w")
    except OSError as fault:
        raise InvalidProblemError.of("--save-dir", fault.strerror or "cannot be written") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go of when the process ends, however
        except OSError:
            raise InvalidProblemError.of(
                "--save-dir",
                f"another tuning is running in {shown_path(folder)}; wait for it, or choose another folder",
            ) from None
        yield


def kept_runs(folder: Path, problem: Problem) -> list[RunResult]:
    """Return the runs of an earlier start of the same question; none where the folder is new.

    A run during which the tuning was killed counts against the budget, and is ended if it still runs.

    Raises:
        InvalidProblemError: the folder holds the tuning of another question, or none that can be read.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return []
    try:
        state: Mapping[str, Any] = without_version(json.loads(path.read_text(encoding="utf-8")))
        same = (state["format"], state["problem"]) == (FORMAT, problem_digest(problem))
        runs = [RunResult(**one) for one in state["runs"]]
        begun = None if state.get("running") is None else Begun(**state["running"])
    except (OSError, ValueError, LookupError, TypeError):
        raise InvalidProblemError.of("--save-dir", f"{shown_path(path)} cannot be read") from None
    if not same:
        raise InvalidProblemError.of(
            "--save-dir",
            f"{shown_path(folder)} holds the tuning of another question; choose another folder",
        )
    return runs if begun is None else [*runs, _interrupted(folder, begun)]


def _interrupted(folder: Path, begun: Begun) -> RunResult:
    """Return a run that was cut off: the machines were held until its last line, or until now."""
    log_file = folder / begun.plan_id / LOG_FILE
    ended_s = time.time() if end_leftovers(folder) or not log_file.exists() else log_file.stat().st_mtime
    seconds = max(ended_s - begun.at_s, 0.0)
    return RunResult(
        plan_id=begun.plan_id, outcome="interrupted", seconds=seconds,
        gpu_minutes=seconds * begun.num_gpus / 60.0,
    )  # fmt: skip


def keep_runs(
    folder: Path, problem: Problem, runs: Sequence[RunResult], begun: Begun | None = None
) -> None:
    """Write all runs, and which one begins now; a reader sees those before or all of them."""
    state = {
        "format": FORMAT, "problem": problem_digest(problem), "runs": [asdict(one) for one in runs],
        "running": None if begun is None else asdict(begun),
    }  # fmt: skip
    write_text(folder / STATE_FILE, document_text(state))


def report_of(now: TuningState, names: Mapping[str, str], why: str) -> str:
    """Return the findings as Markdown: every plan with its measurements, and the calibration."""
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
    ended = [one for one in now.runs if one.outcome in OUT]
    lines += [f"| {one.plan_id} | {names[one.plan_id]} | 1 | {one.outcome} | – | 0 % |" for one in ended]
    found = now.calibration.findings if now.calibration else ()
    noise = f"Runs of one plan are taken to differ by {100 * noise_of(now.runs):.1f} %."
    last_words = dict.fromkeys(  # repeats may have the same
        f"plan {one.plan_id}: {one.outcome}: `{one.last_words}`" for one in now.runs if one.is_faulty
    )
    lines += ["", noise, "", *(f"- {text}" for text in (*last_words, *found))]
    return "\n".join([*lines, ""])
