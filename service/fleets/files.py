"""The files of a planned fleet: launch files of each plan, and a start list for Slurm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from shlex import quote

from meshwright.launchers.export import SLURM_FILE
from meshwright.launchers.target import ExportBundle
from meshwright.profiles.errors import InvalidProblemError, RefusedExportError
from meshwright.service.fleets.job_plans import JobPlan
from meshwright.service.fleets.request import START_FILE, FleetRequest
from meshwright.solver.fleet.problem import FleetJob, PlannedRun, Schedule, pairs_apart

_HOUR_MIN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFleet:
    """A fleet with the schedule and the plans of its jobs."""

    request: FleetRequest
    schedule: Schedule
    plans: Mapping[str, JobPlan]  # by job


def fleet_files(fleet: ScheduledFleet) -> ExportBundle:
    """Return the launch files of each plan, in a folder by job, and the start list.

    A job without a launcher, or with a plan that its launcher refuses, has no files and is not started by
    the list: a warning names it.
    """
    files, warnings, started = dict[str, str](), list[str](), list[FleetJob]()
    for job in fleet.request.fleet.jobs:
        plan = fleet.plans[job.name]
        try:
            bundle = plan.files()
        except RefusedExportError as fault:
            warnings.append(f"{job.name}: {plan.launcher} refuses the plan ({fault})")
            continue
        if bundle is None:
            warnings.append(f"{job.name}: launcher none has no launch files")
            continue
        files |= {f"{job.name}/{name}": text for name, text in bundle.files.items()}
        warnings += [f"{job.name}: {text}" for text in bundle.warnings]
        if SLURM_FILE in bundle.files:
            started.append(job)
    files[START_FILE] = start_list(fleet, started)
    return ExportBundle(files=files, warnings=list(dict.fromkeys(warnings)))


def start_list(fleet: ScheduledFleet, jobs: list[FleetJob]) -> str:
    """Return the script that queues jobs with sbatch: when each may start, and what it waits for.

    Times are predictions, so a job waits for its nodes in the queue if an earlier one ends late.
    """
    return "\n".join(_lines(fleet, jobs)) + "\n"


def _lines(fleet: ScheduledFleet, jobs: list[FleetJob]) -> Iterator[str]:
    schedule = fleet.schedule
    waiting = sorted(
        (job for job in jobs if job.name not in fleet.request.running),
        key=lambda job: (schedule[job.name].start_min, job.name),
    )
    yield "#!/usr/bin/env bash"
    yield f"# Queues the jobs of {fleet.request.name} with Slurm, in the order of their starts."
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
            _begin(fleet.request, run),
        ]
        options += [*_switches(fleet.request, run), *_dependencies(fleet, job, number)]
        yield (
            f"# {job.name}: {run.choice.nodes} node{'s' * (run.choice.nodes > 1)}, "
            f"{run.start_min / _HOUR_MIN:.1f} to {run.end_min / _HOUR_MIN:.1f} h, "
            f"plan {fleet.plans[job.name].plan_id}"
        )
        yield f'{number[job.name]}="$(submit {quote(job.name)} {" ".join(options)} "$@")"'
        yield f'echo "{job.name} ${{{number[job.name]}}}"'


_TIME_LIMIT = 1.25  # of the predicted minutes: Slurm ends a job there


def _begin(request: FleetRequest, run: PlannedRun) -> str:
    if request.begin is None:
        return f"--begin=now+{run.start_min}minutes" if run.start_min else "--begin=now"
    try:
        begin = request.begin + timedelta(minutes=run.start_min)
    except OverflowError:
        raise InvalidProblemError.of(
            "/begin",
            f"a job would start {run.start_min / _HOUR_MIN:.3g} h later, after the year 9999",
            allowed="fewer steps, or no begin",
        ) from None
    return f"--begin={begin.strftime('%Y-%m-%dT%H:%M:%S')}"


def _switches(request: FleetRequest, run: PlannedRun) -> list[str]:
    """Return what keeps a job under its switches: their number, and the named hosts of others."""
    under = run.choice.switches
    if not under:
        return []
    links, found = request.cluster.group_named[run.choice.kind].links, [f"--switches={len(under)}"]
    if links is None or not links.hosts:
        return found
    each = links.levels[0].nodes
    others = [host for at, host in enumerate(links.hosts) if at // each not in under]
    return [*found, f"--exclude={','.join(others)}"] if others else found


def _dependencies(fleet: ScheduledFleet, job: FleetJob, number: Mapping[str, str]) -> list[str]:
    """Return what Slurm waits for: jobs before it have succeeded, jobs never with it have ended."""
    schedule = fleet.schedule
    others = [
        other
        for pair in pairs_apart(fleet.request.fleet)
        if job.name in pair
        for other in pair
        if other != job.name
    ]
    ended = [one for one in others if schedule[one].start_min < schedule[job.name].start_min]
    words = [f"afterok:${{{number[one]}}}" for one in job.after if one in number]
    words += [f"afterany:${{{number[one]}}}" for one in ended if one in number and one not in job.after]
    return [f'--dependency="{",".join(words)}"'] if words else []
