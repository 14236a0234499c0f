"""Peaks of memory that runs report, beside the cost model's and those that ``meshwright verify`` traces.

Runs of the catalog whose peak is what torch's allocator held, under Megatron-LM's code: its own
functional tests, SimuMax's validation runs, Megatron-Bridge's measured evidence. Runs that cannot be
exported, built or traced are counted with the reason.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.profiles.errors import PlannerError
from meshwright.profiles.frameworks import framework_facts
from meshwright.profiles.profile import default_profile
from meshwright.profiles.units import GIB
from meshwright.service.launchers.target import Target
from meshwright.service.verify.priced import rank_bytes
from meshwright.service.verify.verify import Verification, verify
from meshwright.solver.accuracy import peak_as_measured
from meshwright.solver.answer import Plan
from meshwright.solver.predict import predict
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


def chosen(runs: Sequence[Run], every: int) -> list[Run]:
    """Runs with an allocated peak, or every so many-th of them."""
    with_peak = [
        run for run in runs
        if run.shape and run.measured.peak_memory_bytes and run.measured.memory_kind == "allocated"
    ]  # fmt: skip
    return with_peak[::every]


def traced(run: Run, shape: RunShape, time_s: float) -> Peak:
    """Build a run's own layout with Megatron-LM's code.

    Raises:
        PlannerError: it cannot be exported or built, or no step of it is traced.
    """
    facts, options = framework_facts(shape.framework), shape.problem.workload.framework_options
    workload = replace(shape.problem.workload, framework_options={"dropout": facts.dropout, **options})
    problem = replace(shape.problem, launcher=LAUNCHER, workload=workload)
    profile = default_profile(problem.cluster, shape.framework)
    prediction = predict(shape.problem, profile, shape.configuration)
    plan = Plan(
        plan_id=run.run_id, rank=1, config=shape.configuration, prediction=prediction, objective_s=0.0
    )
    found = verify(plan, problem, LAUNCHER, profile=profile, time_s=time_s)
    stages = stage_peaks(found)
    if not stages:
        raise PlannerError("; ".join(found.reasons) or found.verdict)
    target = Target(plan=plan, problem=problem)
    beside = [terms["rest"] - terms["context"] - terms["reserve"] for terms in rank_bytes(target, profile)]
    whole = {stage: peak + beside[stage] for stage, peak in stages.items()}
    kept = {"first": min(whole), "last": max(whole)}.get(run.measured.memory_rank)
    measured = run.measured
    return Peak(
        run_id=run.run_id, source=run.source, measured=measured.peak_memory_bytes or 0.0,
        priced=peak_as_measured(prediction, measured.memory_kind, measured.memory_rank),
        traced=whole[kept] if kept is not None else max(whole.values()),
    )  # fmt: skip


def stage_peaks(found: Verification) -> dict[int, float]:
    """Traced peaks by stage."""
    return {one.stage: one.built for one in found.quantities if one.name == "peak_bytes"}


def lines_of(peaks: Sequence[Peak], reasons: Counter[str]) -> Iterator[str]:
    """The table by source, and why runs are missing."""
    yield "| runs | number | error of our model | error of `verify` |"
    yield "|---|---|---|---|"
    names = sorted({one.source for one in peaks})
    groups = [(name, [one for one in peaks if one.source == name]) for name in names]
    for name, mine in [*groups, ("all", list(peaks))]:
        priced = _mean([one.priced / one.measured for one in mine])
        built = _mean([one.traced / one.measured for one in mine])
        yield f"| {name} | {len(mine)} | {priced:.1f} % | {built:.1f} % |"
    yield ""
    yield f"{sum(reasons.values())} more runs have such a peak and no trace: " + "; ".join(
        f"{count} × {reason}" for reason, count in reasons.most_common()
    )


def _mean(ratios: Sequence[float]) -> float:
    """The mean of ``|ratio - 1|`` in per cent."""
    return 100.0 * sum(abs(ratio - 1.0) for ratio in ratios) / max(len(ratios), 1)


def main() -> None:
    """Trace and print."""
    parser = argparse.ArgumentParser(description="Measured, priced and traced peaks of memory.")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th run")
    parser.add_argument("--time-limit", type=float, default=300.0, help="of each launcher's process")
    asked = parser.parse_args()
    peaks, reasons = [], Counter[str]()
    for run in chosen(read_runs(CATALOG_RUNS), asked.every):
        if run.shape is None:
            continue
        try:
            one = traced(run, run.shape, asked.time_limit)
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
