"""The answer of a fleet as JSON, and its files: launch files of each plan, a start list for Slurm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from math import ceil
from shlex import quote
from typing import Any

from meshwright.launchers.export import SLURM_FILE
from meshwright.launchers.registry import export
from meshwright.profiles.errors import FieldError, InvalidProblemError, RefusedExportError
from meshwright.service.fleets.request import CENTS, START_FILE, FleetRequest, FleetResult
from meshwright.service.report.formatting import configuration_words
from meshwright.solver.answer import Plan
from meshwright.solver.fleet.problem import FleetJob, Run, pairs_apart
from meshwright.solver.problem import Problem

_HOUR_MIN = 60


def plan_of(result: FleetResult, job: str) -> tuple[Plan, Problem]:
    """Return the plan of a job, and the problem that it answers."""
    choice = result.answer.schedule[job].choice
    plan = result.durations.answer(job, choice).plans[0]
    return plan, result.durations.problem(job, choice)


def fleet_document(result: FleetResult) -> dict[str, Any]:
    """Return the answer as plain JSON values."""
    answer, request = result.answer, result.request
    return {
        "name": request.name,
        "status": answer.status,
        "decided_by": answer.decided_by,
        "gap": answer.gap,
        "objectives": [
            {"name": name, "value": value, "bound": bound, "gap": gap}
            for name, value, bound, gap in objectives_of(result)
        ],
        "nodes": dict(request.fleet.nodes()),
        "jobs": [_job_document(result, job) for job in request.fleet.jobs],
        "rules": [
            {
                "rule": one.rule,
                "weighted_lateness_hours": one.value.lateness / _HOUR_MIN,
                "last_end_hours": one.value.last_end_min / _HOUR_MIN,
                cost_name(request): one.value.cost * cost_unit(request),
            }
            for one in answer.rules
        ],
        "searched": answer.searched,
        "choices": answer.choices,
        "rounds": answer.rounds,
        "left_out": {
            name: [fault_document(error) for error in errors] for name, errors in request.left_out.items()
        },
    }


def fault_document(error: FieldError) -> dict[str, str | None]:
    """Return a fault as plain values."""
    return {
        "field": error.pointer, "message": error.message, "allowed": error.allowed, "nearest": error.nearest
    }  # fmt: skip


def _job_document(result: FleetResult, job: FleetJob) -> dict[str, Any]:
    run = result.answer.schedule[job.name]
    plan, problem = plan_of(result, job.name)
    late = 0 if job.due_min is None else max(0, run.end_min - job.due_min)
    return {
        "name": job.name,
        "start_hours": run.start_min / _HOUR_MIN,
        "end_hours": run.end_min / _HOUR_MIN,
        "due_hours": None if job.due_min is None else job.due_min / _HOUR_MIN,
        "late_hours": late / _HOUR_MIN,
        "nodes": run.choice.nodes,
        "kind": run.choice.kind,
        "steps": result.request.problems[job.name].steps,
        "plan_id": plan.plan_id,
        "step_time_s": plan.prediction.step_time_s,
        "launcher": problem.launcher,
        "layout": configuration_words(plan.config),
        "config": asdict(plan.config),
    }


def cost_name(request: FleetRequest) -> str:
    """Return the name of the third objective."""
    return "cost" if request.priced else "node_hours"


def cost_unit(request: FleetRequest) -> float:
    """Return what one unit of the third objective is worth in ``cost_name``."""
    return 1.0 / _HOUR_MIN / (CENTS if request.priced else 1)


def objectives_of(result: FleetResult) -> list[tuple[str, float, float, float]]:
    """Return name, value, bound and gap of each objective, in hours or money."""
    names = ("weighted_lateness_hours", "last_end_hours", cost_name(result.request))
    units = (1 / _HOUR_MIN, 1 / _HOUR_MIN, cost_unit(result.request))
    return [
        (name, one.value * unit, one.bound * unit, one.gap)
        for name, unit, one in zip(names, units, result.answer.objectives, strict=True)
    ]


# --------------------------------------------------------------------------------------------------
# Files.


@dataclass(frozen=True, slots=True)
class FleetFiles:
    """Files of a fleet by their path in its folder, and notes on them."""

    files: Mapping[str, str]
    warnings: tuple[str, ...]


def fleet_files(result: FleetResult) -> FleetFiles:
    """Return the launch files of each plan, in a folder by job, and the start list.

    A job without a launcher, or with a plan that its launcher refuses, has no files and is not started by
    the list: a warning names it.
    """
    files, warnings, started = dict[str, str](), list[str](), list[FleetJob]()
    for job in result.request.fleet.jobs:
        plan, problem = plan_of(result, job.name)
        if problem.launcher == "none":
            warnings.append(f"{job.name}: launcher none has no launch files")
            continue
        launcher = plan.launchers[0] if problem.launcher == "any" and plan.launchers else problem.launcher
        try:
            bundle = export(plan, problem, launcher)
        except RefusedExportError as fault:
            warnings.append(f"{job.name}: {launcher} refuses the plan ({fault})")
            continue
        files |= {f"{job.name}/{name}": text for name, text in bundle.files.items()}
        warnings += [f"{job.name}: {text}" for text in bundle.warnings]
        if SLURM_FILE in bundle.files:
            started.append(job)
    files[START_FILE] = start_list(result, started)
    return FleetFiles(files, tuple(dict.fromkeys(warnings)))


def start_list(result: FleetResult, jobs: list[FleetJob]) -> str:
    """Return the script that queues jobs with sbatch: when each may start, and what it waits for.

    Times are predictions, so a job waits for its nodes in the queue if an earlier one ends late.
    """
    return "\n".join(_lines(result, jobs)) + "\n"


def _lines(result: FleetResult, jobs: list[FleetJob]) -> Iterator[str]:
    schedule = result.answer.schedule
    waiting = sorted(
        (job for job in jobs if job.name not in result.request.running),
        key=lambda job: (schedule[job.name].start_min, job.name),
    )
    yield "#!/usr/bin/env bash"
    yield f"# Queues the jobs of {result.request.name} with Slurm, in the order of their starts."
    yield "# Set what the launch scripts ask for (DATA_PATH, …) in the environment."
    yield "# Arguments are further options of sbatch (--account=…). Time limits are 1.25 of the prediction."
    yield "set -euo pipefail"
    yield 'cd "$(dirname "${BASH_SOURCE[0]}")"'
    yield "submit() {  # FOLDER OPTION…: print the number of the queued job"
    yield f'    (cd "$1" && sbatch --parsable "${{@:2}}" {SLURM_FILE} | cut -d";" -f1)'
    yield "}"
    number = {job.name: f"job_{at}" for at, job in enumerate(waiting)}
    for job in waiting:
        run = schedule[job.name]
        options = [
            f"--job-name={quote(job.name)}",
            f"--nodes={run.choice.nodes}",
            f"--time={ceil(run.minutes * _TIME_LIMIT)}",
            _begin(result.request, run),
        ]
        options += _dependencies(result, job, number)
        yield (
            f"# {job.name}: {run.choice.nodes} nodes, {run.start_min / _HOUR_MIN:.1f} to "
            f"{run.end_min / _HOUR_MIN:.1f} h, plan {plan_of(result, job.name)[0].plan_id}"
        )
        yield f'{number[job.name]}="$(submit {quote(job.name)} {" ".join(options)} "$@")"'
        yield f'echo "{job.name} ${{{number[job.name]}}}"'


_TIME_LIMIT = 1.25  # of the predicted minutes: Slurm ends a job there


def _begin(request: FleetRequest, run: Run) -> str:
    if request.begin is None:
        return f"--begin=now+{run.start_min}minutes" if run.start_min else "--begin=now"
    try:
        begin = request.begin + timedelta(minutes=run.start_min)
    except OverflowError:
        message = f"a job would start {run.start_min / _HOUR_MIN:.3g} h later, after the year 9999"
        raise InvalidProblemError.of("/begin", message, allowed="fewer steps, or no begin") from None
    return f"--begin={begin.strftime('%Y-%m-%dT%H:%M:%S')}"


def _dependencies(result: FleetResult, job: FleetJob, number: Mapping[str, str]) -> list[str]:
    """Return what Slurm waits for: jobs before it have succeeded, jobs never with it have ended."""
    schedule = result.answer.schedule
    others = [
        other
        for pair in pairs_apart(result.request.fleet)
        if job.name in pair
        for other in pair
        if other != job.name
    ]
    ended = [one for one in others if schedule[one].start_min < schedule[job.name].start_min]
    words = [f"afterok:${{{number[one]}}}" for one in job.after if one in number]
    words += [f"afterany:${{{number[one]}}}" for one in ended if one in number and one not in job.after]
    return [f'--dependency="{",".join(words)}"'] if words else []
