"""Peaks of memory that runs report, beside the cost model's and those that ``meshwright verify`` traces.

Runs of the catalog whose peak is what torch's allocator held, under Megatron-LM's code: its own
functional tests, SimuMax's validation runs, Megatron-Bridge's measured evidence. Runs that cannot be
exported, built or traced are counted with the reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean

from meshwright.launchers.registry import export
from meshwright.launchers.target import Target
from meshwright.profiles.errors import PlannerError
from meshwright.profiles.frameworks import framework_facts, with_options
from meshwright.profiles.profile import Profile, default_profile
from meshwright.profiles.units import GIB
from meshwright.service.verify.priced import rank_bytes
from meshwright.service.verify.verify import Verification, verify
from meshwright.solver.accuracy import peak_as_measured
from meshwright.solver.answer import Plan
from meshwright.solver.calibration.observations import Observation
from meshwright.solver.predict import predict
from meshwright.solver.problem import Problem
from meshwright.solver.runs.table import CATALOG_RUNS, Run, RunShape, read_runs

LAUNCHER = "megatron-lm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """One run's peak three times, bytes."""

    run_id: str
    source: str
    measured: float
    priced: float
    traced: float


def chosen(runs: Sequence[Run], every: int, only: str = "") -> list[Run]:
    """Runs with an allocated peak, or every so many-th of them, those first that are built soonest."""
    with_peak = [
        run for run in runs
        if run.shape and run.measured.peak_memory_bytes and run.measured.memory_kind == "allocated"
        and re.search(only, run.run_id)
    ]  # fmt: skip
    return sorted(with_peak, key=_layers_built)[::every]


def _layers_built(run: Run) -> int:
    """Layers times micro-batches that a run's trace takes."""
    if run.shape is None:
        return 0
    config, model = run.shape.configuration, run.shape.problem.model
    return model.num_layers * min(config.num_microbatches, 2 * config.pipeline_parallel_size)


class Builds:
    """What Megatron-LM's code built, once for all runs whose launch files are equal."""

    def __init__(self, time_s: float) -> None:
        self.time_s = time_s
        self.found: dict[str, Verification] = {}

    def of(self, plan: Plan, problem: Problem, profile: Profile) -> Verification:
        """The verification of a plan.

        Raises:
            PlannerError: it cannot be exported.
        """
        given = json.dumps(dict(export(plan, problem, LAUNCHER).files), sort_keys=True).replace(
            plan.plan_id, ""
        )
        if given not in self.found:
            self.found[given] = verify(plan, problem, LAUNCHER, profile=profile, time_s=self.time_s)
        return self.found[given]


def traced(run: Run, shape: RunShape, builds: Builds) -> Peak:
    """Build a run's own layout with Megatron-LM's code.

    Raises:
        PlannerError: it cannot be exported or built, or no step of it is traced.
    """
    options = shape.problem.workload.framework_options
    facts = with_options(framework_facts(shape.framework), options)  # said in the files
    kernel = {} if facts.flash else {"attention_kernel": facts.attention_kernel}
    own = {"dropout": facts.dropout, **kernel, **options}
    workload = replace(shape.problem.workload, framework_options=own)
    problem = replace(shape.problem, launcher=LAUNCHER, workload=workload)
    profile = default_profile(problem.cluster, shape.framework)
    prediction = predict(shape.problem, profile, shape.configuration)
    plan = Plan(
        plan_id=run.run_id, rank=1, config=shape.configuration, prediction=prediction, objective_s=0.0
    )
    found = builds.of(plan, problem, profile)
    stages = stage_peaks(found)
    if not stages:
        raise PlannerError("; ".join(found.reasons) or found.verdict)
    target = Target(plan=plan, problem=problem)
    beside = [terms["rest"] - terms["context"] - terms["reserve"] for terms in rank_bytes(target, profile)]
    whole = {stage: peak + beside[stage] for stage, peak in stages.items()}
    kept = {"first": min(whole), "last": max(whole)}.get(run.measured.memory_rank)
    measured = run.measured
    seen = replace(Observation.of_shape(shape), memory_kind="allocated", memory_rank=measured.memory_rank)
    return Peak(
        run_id=run.run_id, source=run.source, measured=measured.peak_memory_bytes or 0.0,
        priced=peak_as_measured(prediction, seen),
        traced=whole[kept] if kept is not None else max(whole.values()),
    )  # fmt: skip


def stage_peaks(found: Verification) -> dict[int, float]:
    """Traced peaks by stage."""
    return {one.stage: one.built for one in found.quantities if one.name == "peak_bytes"}


def lines_of(peaks: Sequence[Peak], reasons: Counter[str]) -> Iterator[str]:
    """The table by source, and why runs are missing."""
    yield "| runs | number | layouts | error of our model: mean, worst | error of `verify`: mean, worst |"
    yield "|---|---|---|---|---|"
    names = sorted({one.source for one in peaks})
    groups = [(name, [one for one in peaks if one.source == name]) for name in names]
    for name, mine in [*groups, ("all", list(peaks))]:
        priced = _errors([one.priced / one.measured for one in mine])
        built = _errors([one.traced / one.measured for one in mine])
        layouts = len({(one.priced, one.traced) for one in mine})
        yield f"| {name} | {len(mine)} | {layouts} | {priced} | {built} |"
    yield ""
    yield f"{sum(reasons.values())} more runs have such a peak and no trace: " + "; ".join(
        f"{count} × {reason}" for reason, count in reasons.most_common()
    )


def _errors(ratios: Sequence[float]) -> str:
    """The mean and the worst of ``|ratio - 1|`` in per cent."""
    errors = [100.0 * abs(ratio - 1.0) for ratio in ratios] or [0.0]
    return f"{fmean(errors):.1f}, {max(errors):.1f} %"


def main() -> None:
    """Trace and print."""
    parser = argparse.ArgumentParser(description="Measured, priced and traced peaks of memory.")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th run")
    parser.add_argument("--only", default="", help="runs whose id matches this pattern")
    parser.add_argument("--minutes", type=float, default=inf, help="start no run after so long")
    parser.add_argument("--time-limit", type=float, default=300.0, help="of each launcher's process")
    asked = parser.parse_args()
    peaks, reasons, builds = [], Counter[str](), Builds(asked.time_limit)
    ends_s = time.monotonic() + 60.0 * asked.minutes
    for run in chosen(read_runs(CATALOG_RUNS), asked.every, asked.only):
        if run.shape is None:
            continue
        if time.monotonic() > ends_s:
            reasons["not reached in time"] += 1
            continue
        if run.shape.configuration.context_parallel_size > 1:
            reasons["cp > 1: no step is traced"] += 1
            continue
        try:
            one = traced(run, run.shape, builds)
        except PlannerError as fault:
            reasons[re.sub(r"\d+", "…", str(fault).partition(":")[0])[:80]] += 1
            print(run.run_id, str(fault)[:200], file=sys.stderr, flush=True)
            continue
        peaks.append(one)
        errors = (f"{peak / one.measured - 1:+.1%}" for peak in (one.priced, one.traced))
        print(one.run_id, f"{one.measured / GIB:.2f} GiB", *errors, file=sys.stderr, flush=True)
    print("\n".join(lines_of(peaks, reasons)))


if __name__ == "__main__":
    main()
