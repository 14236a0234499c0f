"""Fleets that the service has answered: their files, and what is left of them as a new question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import floor
from typing import Any

from meshwright.profiles.documents import pointer, require_plain
from meshwright.profiles.errors import FieldError, faults_as
from meshwright.service.fleets.files import ScheduledFleet
from meshwright.service.fleets.job_plans import stored_job_plan
from meshwright.service.fleets.question import FleetQuestion, read_question
from meshwright.service.fleets.request import Parse
from meshwright.service.requests.parts import is_post_training
from meshwright.solver.configuration import configuration_from_json
from meshwright.solver.fleet.problem import NodeChoice, PlannedRun


def scheduled_again(
    request: Mapping[str, Any],
    document: Mapping[str, Any],
    parts: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]],
) -> ScheduledFleet:
    """Return the schedule and the plans of a stored answer.

    Args:
        request: the canonical question.
        document: its answer.
        parts: problem and plan of each job, by its name.
    """
    fleet = read_question(_as_answered(request, document)).fleet
    jobs = tuple(job for job in fleet.fleet.jobs if job.name in parts)
    return ScheduledFleet(
        request=replace(fleet, fleet=replace(fleet.fleet, jobs=jobs)),
        schedule={job["name"]: _run(job) for job in document["jobs"]},
        plans={name: stored_job_plan(own, plan) for name, (own, plan) in parts.items()},
    )


def question_again(
    request: Mapping[str, Any], document: Mapping[str, Any], state: Mapping[str, Any], parse: Parse
) -> FleetQuestion:
    """Return what is left of a planned fleet as a question; jobs run as planned where ``state`` is silent.

    Raises:
        InvalidProblemError: with pointers into ``state``; those into the fleet begin with ``/request``.
    """
    plain, request = require_plain(state), _as_answered(request, document)
    states = [*request.get("states", ()), {**plain, "jobs": _as_planned(document, plain)}]
    mine = pointer("states", len(states) - 1)

    def at_its_source(fault: FieldError) -> FieldError:
        of_state = fault.pointer.startswith(f"{mine}/")
        where = fault.pointer.removeprefix(mine) if of_state else f"/request{fault.pointer}"
        return replace(fault, pointer=where)

    with faults_as(at_its_source):
        return read_question({**request, "states": states}, parse)


def _as_answered(request: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored question with each job's batch of its plan: earlier releases took several sizes."""
    batches = {
        job["name"]: configuration_from_json(job["config"]).global_batch_size
        for job in document.get("jobs", ())
    }

    def with_batch(job: dict[str, Any]) -> dict[str, Any]:
        problem = job.get("problem")
        if job.get("name") not in batches or not isinstance(problem, Mapping):
            return job
        if is_post_training(problem):
            return job
        return {
            **job,
            "problem": {
                **problem,
                "workload": {**problem["workload"], "global_batch_size": batches[job["name"]]},
            },
        }

    states = [
        {**state, "arrived": [*map(with_batch, state["arrived"])]} if "arrived" in state else state
        for state in request.get("states", ())
    ]
    whole = {**request, "jobs": [*map(with_batch, request["jobs"])]}
    return {**whole, "states": states} if states else whole


def _as_planned(document: Mapping[str, Any], state: Mapping[str, Any]) -> object:
    stated, now = state.get("jobs", {}), state.get("now_hours")
    if not isinstance(stated, Mapping) or isinstance(now, bool) or not isinstance(now, int | float):
        return stated  # refused when it is read
    planned = {job["name"]: _state(job, now) for job in document["jobs"]}
    whole = {name: _merged(one, stated.get(name, {})) for name, one in planned.items()}
    return {**whole, **{name: one for name, one in stated.items() if name not in planned}}


def _state(job: Mapping[str, Any], now: float) -> dict[str, Any]:
    start, end, steps = job["start_hours"], job["end_hours"], job["steps"]
    nodes = {name: job[name] for name in ("nodes", "kind", "switches", "uplinks") if name in job}
    if end <= now:
        return {"state": "done", "nodes": job["nodes"], "kind": job["kind"]}
    if start >= now:
        return {"state": "waiting"}
    done = floor(steps * (now - start) / (end - start))
    return {"state": "running", "steps_done": min(done, steps - 1), **nodes}


def _merged(planned: dict[str, Any], stated: object) -> object:
    if not isinstance(stated, Mapping):
        return stated
    if stated.get("state", planned["state"]) == planned["state"]:
        return {**planned, **stated}
    return {**{name: planned[name] for name in ("nodes", "kind") if name in planned}, **stated}


def _run(job: Mapping[str, Any]) -> PlannedRun:
    start, end = (round(job[name] * 60) for name in ("start_hours", "end_hours"))
    return PlannedRun(
        choice=NodeChoice(
            job["kind"], job["nodes"], job.get("power_limit_w", 0), tuple(map(int, job.get("switches", ())))
        ),
        start_min=start,
        end_min=end,
    )
