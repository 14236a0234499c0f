"""The answer of a fleet as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from meshwright.profiles.errors import FieldError
from meshwright.service.fleets.files import ScheduledFleet
from meshwright.service.fleets.job_plans import JobPlan, job_plan
from meshwright.service.fleets.planning import FleetResult
from meshwright.service.fleets.request import CENTS, KW, FleetRequest
from meshwright.solver.fleet.problem import FleetJob, NodeChoice, sharing

_HOUR_MIN = 60


def plan_of(result: FleetResult, job: str) -> JobPlan:
    """Return the plan of a job."""
    choice = result.answer.schedule[job].choice
    return job_plan(result.durations.problem(job, choice), result.durations.answer(job, choice))


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
        **({} if request.fleet.most_w is None else {"max_power_kw": request.fleet.most_w / KW}),
        **_switches_document(result),
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


def _switches_document(result: FleetResult) -> dict[str, Any]:
    """Return the switches with short uplinks, and which jobs share uplinks; nothing without such."""
    fleet = result.request.fleet
    kinds = [kind for kind in fleet.kinds if kind.switches]
    if not kinds:
        return {}
    (kind,) = kinds  # the only one of its cluster
    return {
        "switches": {
            "nodes": list(kind.switches),
            "oversubscription": kind.oversubscription,
            "shared_by": [list(some) for some in sharing(fleet, result.answer.schedule)],
        }
    }


def _under(result: FleetResult, choice: NodeChoice) -> dict[str, Any]:
    """Return a job's nodes by switch, and the share of the uplinks of each that its plan is priced at."""
    kind = next(one for one in result.request.fleet.kinds if one.name == choice.kind)
    if not kind.switches:
        return {}
    return {
        "switches": {str(at): nodes for at, nodes in choice.under.items()},
        "uplinks": choice.uplinks / kind.switch_nodes,
    }


def fault_document(error: FieldError) -> dict[str, str | None]:
    """Return a fault as plain values."""
    return {
        "field": error.pointer, "message": error.message, "allowed": error.allowed, "nearest": error.nearest
    }  # fmt: skip


def _job_document(result: FleetResult, job: FleetJob) -> dict[str, Any]:
    run, fleet = result.answer.schedule[job.name], result.request.fleet
    plan = plan_of(result, job.name)
    late = 0 if job.due_min is None else max(0, run.end_min - job.due_min)
    return {
        "name": job.name,
        "start_hours": run.start_min / _HOUR_MIN,
        "end_hours": run.end_min / _HOUR_MIN,
        "due_hours": None if job.due_min is None else job.due_min / _HOUR_MIN,
        "late_hours": late / _HOUR_MIN,
        "nodes": run.choice.nodes,
        "kind": run.choice.kind,
        **(
            {}
            if fleet.most_w is None
            else {
                "power_limit_w": run.choice.limit_w,
                "power_kw": fleet.draw_w(run.choice) / KW,
            }
        ),
        **_under(result, run.choice),
        "steps": result.request.problems[job.name].steps,
        "plan_id": plan.plan_id,
        "step_time_s": plan.step_time_s,
        "launcher": plan.launcher,
        "layout": plan.layout,
        "config": asdict(plan.config),
        **({} if plan.mode is None else {"mode": plan.mode}),
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


def scheduled(result: FleetResult) -> ScheduledFleet:
    """Return the schedule and the plans of an answer."""
    return ScheduledFleet(
        request=result.request,
        schedule=result.answer.schedule,
        plans={job.name: plan_of(result, job.name) for job in result.request.fleet.jobs},
    )
