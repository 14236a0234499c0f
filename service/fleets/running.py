"""A fleet that runs already, planned again: nodes were lost, or jobs have ended, failed, grown or arrived.

The state names the hour of the plan that it is now, the nodes that are gone, and the jobs that have begun.
A running job keeps its nodes and goes on from its steps; a failed one waits again with the steps that it
has left. A job that has grown, or a new one, is written in the fleet itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil

from meshwright.profiles.documents import pointer, require_plain
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.reading import FieldReader
from meshwright.service.fleets.request import MAX_HOURS, MAX_STEPS, FleetRequest
from meshwright.solver.fleet.durations import PlannedJob
from meshwright.solver.fleet.problem import Fleet, FleetJob

STATES = ("running", "failed", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job that has begun."""

    state: str
    steps_done: int
    nodes: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """State of a running fleet."""

    now_min: int
    lost: Mapping[str, int]  # nodes, by kind
    jobs: Mapping[str, JobState]


def read_state(raw: Mapping[str, object], request: FleetRequest) -> FleetState:
    """Return the state of the request's fleet.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    reader = FieldReader(require_plain(raw), "")
    now_min = ceil(reader.number("now_hours", low=0.0, high=MAX_HOURS) * 60)
    lost, jobs = _lost(reader, request), dict[str, JobState]()
    own = reader.child("jobs")
    known = [job.name for job in request.fleet.jobs]
    for name in own.names() if own is not None else ():
        if name not in known:
            reader.faults += UnknownNameError.among(pointer("jobs", name), name, known).errors
            continue
        one = own.child(name) if own is not None else None
        if one is not None:
            jobs[name] = _job_state(one, request, name)
    reader.refuse_unknown()
    reader.finish()
    return FleetState(now_min=now_min, lost=lost, jobs=jobs)


def _job_state(reader: FieldReader, request: FleetRequest, name: str) -> JobState:
    state = reader.choice("state", STATES, default="running")
    steps = request.problems[name].steps
    done = reader.integer("steps_done", low=0, high=MAX_STEPS, default=0)
    if state != "done" and done >= steps:
        reader.fault(
            "steps_done", f"{done} of {steps} steps leave none", allowed=f"0 to {steps - 1}, or state: done"
        )
    kinds = list(request.cluster.group_named)
    kind = (
        reader.choice("kind", kinds, default=kinds[0]) if reader.has("kind") or len(kinds) > 1 else kinds[0]
    )
    nodes = None
    if state == "running":
        nodes = reader.integer("nodes", low=1, high=request.cluster.group_named[kind].num_nodes)
    elif reader.has("nodes"):
        nodes = reader.optional_integer("nodes")
    reader.refuse_unknown()
    return JobState(state=state, steps_done=done, nodes=nodes, kind=kind)


def _lost(reader: FieldReader, request: FleetRequest) -> dict[str, int]:
    groups = request.cluster.group_named
    if not reader.has("lost_nodes"):
        return {}
    if len(groups) == 1:
        (kind,) = groups
        return {kind: reader.integer("lost_nodes", low=0, high=groups[kind].num_nodes - 1)}
    own = reader.child("lost_nodes")
    if own is None:
        return {}
    found = {
        kind: own.integer(kind, low=0, high=group.num_nodes - 1, default=0)
        for kind, group in groups.items()
    }
    own.refuse_unknown()
    return found


def planned_again(request: FleetRequest, state: FleetState) -> FleetRequest:
    """Return what is left of the fleet, from now on.

    Raises:
        InvalidProblemError: the running jobs hold more nodes than are left.
    """
    kinds = tuple(
        replace(kind, nodes=kind.nodes - state.lost.get(kind.name, 0)) for kind in request.fleet.kinds
    )
    for kind in kinds:
        held = {
            name: one.nodes or 0
            for name, one in state.jobs.items()
            if one.state == "running" and one.kind == kind.name
        }
        if sum(held.values()) > kind.nodes:
            words = ", ".join(f"{name} {nodes}" for name, nodes in held.items())
            message = f"running jobs hold {sum(held.values())} of {kind.nodes} nodes ({words})"
            allowed = "state: failed for the job that lost its nodes"
            raise InvalidProblemError.of("/jobs", message, allowed=allowed)
    done = {name for name, one in state.jobs.items() if one.state == "done"}
    jobs = tuple(_from_now(job, state, done) for job in request.fleet.jobs if job.name not in done)
    if not jobs:
        raise InvalidProblemError.of(
            "/jobs", "every job of the fleet is done", allowed="a job that is left"
        )
    groups = tuple(
        replace(group, num_nodes=group.num_nodes - state.lost.get(kind, 0))
        for kind, group in request.cluster.group_named.items()
    )
    problems = {
        name: PlannedJob(problem=one.problem, steps=_left(one.steps, state.jobs.get(name)))
        for name, one in request.problems.items()
    }
    begin = None if request.begin is None else request.begin + timedelta(minutes=state.now_min)
    return _checked(
        replace(
            request, fleet=Fleet(kinds=kinds, jobs=jobs), problems=problems, begin=begin,
            cluster=replace(request.cluster, groups=groups),
            running=frozenset(name for name, one in state.jobs.items() if one.state == "running"),
        )
    )  # fmt: skip


def _left(steps: int, state: JobState | None) -> int:
    return steps if state is None else max(1, steps - state.steps_done)


def _from_now(job: FleetJob, state: FleetState, done: set[str]) -> FleetJob:
    """Return a job with hours that count from now; a running one is pinned."""
    own, now = state.jobs.get(job.name), state.now_min
    moved = replace(
        job,
        release_min=max(0, job.release_min - now),
        due_min=None if job.due_min is None else job.due_min - now,
        after=tuple(one for one in job.after if one not in done),
        never_with=tuple(one for one in job.never_with if one not in done),
        start_min=None if job.start_min is None else max(0, job.start_min - now),
    )
    if job.as_many_nodes_as in done:
        nodes = state.jobs[job.as_many_nodes_as].nodes
        moved = replace(moved, as_many_nodes_as=None, node_counts=(nodes,) if nodes else moved.node_counts)
    if own is None or own.state != "running" or own.nodes is None:
        return moved if own is None else replace(moved, start_min=None)
    return replace(
        moved, release_min=0, start_min=0, after=(), kinds=(own.kind,) if own.kind else (),
        node_counts=(own.nodes,), least_nodes=own.nodes, most_nodes=own.nodes,
    )  # fmt: skip


def _checked(request: FleetRequest) -> FleetRequest:
    """Refuse a job that needs more nodes than are left."""
    faults = []
    for job in request.fleet.jobs:
        most = max(kind.nodes for kind in request.fleet.kinds if not job.kinds or kind.name in job.kinds)
        if job.least_nodes > most:
            message = f"{job.least_nodes} nodes are more than are left"
            faults.append(
                FieldError(
                    pointer=request.at(job.name, "least_nodes"), message=message, allowed=f"1 to {most}",
                    nearest=str(most),
                )
            )  # fmt: skip
    if faults:
        raise InvalidProblemError(faults)
    return request
