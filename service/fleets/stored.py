"""Fleets that the service has answered, as the files of their plans need them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwright.service.fleets.files import ScheduledFleet
from meshwright.service.fleets.question import read_question
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.answer import plan_from_json
from meshwright.solver.fleet.problem import Fleet, NodeChoice, Run


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
    fleet = read_question(request).fleet
    jobs = tuple(job for job in fleet.fleet.jobs if job.name in parts)
    return ScheduledFleet(
        request=replace(fleet, fleet=Fleet(kinds=fleet.fleet.kinds, jobs=jobs)),
        schedule={job["name"]: _run(job) for job in document["jobs"]},
        plans={name: (plan_from_json(plan), parse_problem(own)) for name, (own, plan) in parts.items()},
    )


def _run(job: Mapping[str, Any]) -> Run:
    start, end = (round(job[name] * 60) for name in ("start_hours", "end_hours"))
    return Run(choice=NodeChoice(job["kind"], job["nodes"]), start_min=start, end_min=end)
