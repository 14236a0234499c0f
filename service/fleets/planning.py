"""From a fleet as it was asked for to its schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.profiles.errors import FieldError, InvalidProblemError
from meshwright.service.fleets.request import FleetRequest
from meshwright.solver.fleet.durations import PlannedDurations
from meshwright.solver.fleet.plan import FleetAnswer, Limits, jobs_without_plan, plan_fleet
from meshwright.solver.fleet.problem import choices_of


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetResult:
    """The answer of a fleet, with the request and the plans that it was made from."""

    request: FleetRequest
    answer: FleetAnswer
    durations: PlannedDurations


def answered(
    request: FleetRequest, durations: PlannedDurations, limits: Limits, *, skip_impossible: bool = False
) -> FleetResult:
    """Return the best schedule of a fleet with the durations of its jobs.

    Raises:
        InvalidProblemError: a job has no plan on any number of nodes, or no schedule is possible; with
            ``skip_impossible`` only if no job is left.
        StoppedError: the searches were stopped before every job had a plan.
    """
    while True:
        least, found = jobs_without_plan(request.fleet, durations, request.at)
        faults = {name: _explained(request, durations, name, error) for name, error in found.items()}
        without_plan: dict[str, tuple[FieldError, ...]] = {name: (error,) for name, error in faults.items()}
        if not without_plan:
            try:
                _require_jobs(request)
                return FleetResult(
                    request=request,
                    answer=plan_fleet(request.fleet, least, durations, request.at, limits),
                    durations=durations,
                )
            except InvalidProblemError as fault:
                without_plan = _by_job(request, fault)
                if not skip_impossible or not without_plan:
                    raise
        if not skip_impossible:
            raise InvalidProblemError(faults.values())
        request = request.without(without_plan)


def _explained(
    request: FleetRequest, durations: PlannedDurations, job: str, fault: FieldError
) -> FieldError:
    """Return the fault of a job without a plan, with what its roles lack on the most nodes."""
    own = next(one for one in request.fleet.jobs if one.name == job)
    choices = choices_of(request.fleet, own)
    why = durations.why_none(job, choices[-1]) if choices else None
    if why is None:
        return fault
    return replace(
        fault, message=f"{fault.message}: {why.message}", allowed=why.allowed or fault.allowed,
        nearest=why.nearest,
    )  # fmt: skip


def _require_jobs(request: FleetRequest) -> None:
    if not request.fleet.jobs:
        raise InvalidProblemError(
            dict.fromkeys(error for errors in request.left_out.values() for error in errors)
        )


def _by_job(request: FleetRequest, fault: InvalidProblemError) -> dict[str, tuple[FieldError, ...]]:
    found = dict[str, tuple[FieldError, ...]]()
    for job in request.fleet.jobs:
        own = tuple(one for one in fault.errors if one.pointer.startswith(request.at(job.name, "")))
        if own:
            found[job.name] = own
    return found
