"""A fleet that runs already, planned again: nodes were lost, or jobs have ended, failed, grown or arrived.

The state names the hour of the plan that it is now, the nodes that are gone, and the jobs that have begun.
A running job keeps its nodes and goes on from its steps; a failed one waits again with the steps that it
has left. A job that has grown states its new number of steps, and new jobs are listed as in a fleet; their
hours count from now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import ceil

from meshwright.profiles.documents import pointer, require_plain
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.reading import FieldReader
from meshwright.service.fleets.request import (
    MAX_HOURS,
    MAX_JOBS,
    MAX_STEPS,
    FleetRequest,
    Parse,
    read_jobs,
)
from meshwright.service.requests.parse import parse_problem
from meshwright.solver.fleet.problem import FleetJob, NodeKind, PlannedJob, choices_of, faults_of

_ROUNDED = 0.005 + 1e-9  # of all uplinks: tables state whole per cents
STATES = ("running", "failed", "done", "waiting")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job that has begun, or that has grown."""

    state: str
    steps_done: int
    steps: int  # in total, from the beginning of the plan
    nodes: int | None = None
    kind: str | None = None
    under: Mapping[int, int] = field(default_factory=dict)  # nodes of a running job by switch
    uplinks: int | None = None  # its share of those of each, in nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """State of a running fleet."""

    now_min: int
    lost: Mapping[str, int]  # nodes, by kind
    lost_under: Mapping[int, int]  # of these, by switch
    jobs: Mapping[str, JobState]
    arrived: Mapping[str, tuple[FleetJob, PlannedJob]] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)  # pointers to jobs that have arrived


def read_state(
    raw: Mapping[str, object], request: FleetRequest, parse: Parse = parse_problem
) -> FleetState:
    """Return the state of the request's fleet; ``parse`` reads the problem of a job that has arrived.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    reader = FieldReader(require_plain(raw), "")
    now_min = ceil(reader.number("now_hours", low=0.0, high=MAX_HOURS) * 60)
    under = _lost_under(reader, request)
    lost = _lost(reader, request) if under is None else {request.fleet.kinds[0].name: sum(under.values())}
    jobs = dict[str, JobState]()
    own = reader.child("jobs")
    known = [job.name for job in request.fleet.jobs]
    for name in own.names() if own is not None else ():
        if name not in known:
            reader.faults += UnknownNameError.among(pointer("jobs", name), name, known).errors
            continue
        one = own.child(name) if own is not None else None
        if one is not None:
            jobs[name] = _job_state(one, request, name)
    arrived = _arrived(reader, request, parse)
    reader.refuse_unknown()
    reader.finish()
    places = {job.name: pointer("arrived", at) for at, (job, _) in enumerate(arrived)}
    return FleetState(
        now_min=now_min, lost=lost, lost_under=under or {}, jobs=jobs, places=places,
        arrived={job.name: (job, planned) for job, planned in arrived},
    )  # fmt: skip


def _arrived(reader: FieldReader, request: FleetRequest, parse: Parse) -> list[tuple[FleetJob, PlannedJob]]:
    if not reader.has("arrived"):
        return []
    read, faults = read_jobs(reader.children("arrived", high=MAX_JOBS), request.cluster, parse)
    reader.faults += [error for errors in faults.values() for error in errors]
    for at, (job, _) in enumerate(read):
        if job.name in request.problems:
            reader.faults.append(
                FieldError(
                    pointer=pointer("arrived", at, "name"),
                    message=f"{job.name} is a job of the fleet already",
                )
            )
    return [(job, planned) for job, planned in read if planned is not None]


def _job_state(reader: FieldReader, request: FleetRequest, name: str) -> JobState:
    state = reader.choice("state", STATES, default="running")
    steps = request.problems[name].steps
    steps = reader.integer("steps", low=1, high=MAX_STEPS, default=steps)
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
    under, uplinks = _under(reader, request, nodes or 0) if state == "running" else ({}, None)
    reader.refuse_unknown()
    return JobState(
        state=state, steps_done=done, steps=steps, nodes=nodes, kind=kind, under=under,
        uplinks=uplinks,
    )  # fmt: skip


def _under(reader: FieldReader, request: FleetRequest, nodes: int) -> tuple[dict[int, int], int | None]:
    """Return a running job's nodes by switch, and its share of uplinks, where these are short."""
    kind = request.fleet.kinds[0]
    if not kind.switches:
        return {}, None
    own = reader.child("switches") if reader.has("switches") else None
    every = range(len(kind.switches))
    allowed = f'{{"0": …}}: 0 to {every[-1]}, as many under each, or all of some and the rest'
    found = {
        at: own.integer(str(at), low=1, high=kind.switches[at])
        for at in every
        if own is not None and own.has(str(at))
    }
    if own is not None:
        own.refuse_unknown()
    if not found:
        reader.fault(
            "switches", f"must say how many of the {nodes} nodes are under each switch", allowed=allowed
        )
        return {}, None
    placed = choices_of(request.fleet, FleetJob(name="", node_counts=(nodes,), under=found))
    shares = sorted({one.uplinks for one in placed})
    if not shares:
        words = ", ".join(f"{count} under switch {at}" for at, count in found.items())
        reader.fault("switches", f"{words}: no plan has {nodes} nodes so", allowed=allowed)
        return {}, None
    if not reader.has("uplinks"):
        return found, None
    stated = reader.number("uplinks", low=0.0, high=1.0)
    nearest = min(shares, key=lambda one: abs(one / kind.switch_nodes - stated))
    if abs(nearest / kind.switch_nodes - stated) > _ROUNDED:
        allowed = ", ".join(f"{one / kind.switch_nodes:g}" for one in shares)
        reader.fault("uplinks", "is no share that such a job can have", allowed=allowed)
    return found, nearest


def _lost_under(reader: FieldReader, request: FleetRequest) -> dict[int, int] | None:
    """Return the lost nodes by their switch; None: uplinks are not short, or none is lost."""
    switches = request.fleet.kinds[0].switches
    if not switches or not reader.has("lost_nodes"):
        return None
    if not isinstance(reader.value("lost_nodes"), Mapping):
        reader.fault(
            "lost_nodes",
            "must say under which switch they are",
            allowed='{"0": 1}: nodes by switch, from 0',
        )
        return {}
    own = reader.child("lost_nodes")
    if own is None:
        return {}
    found = {at: own.integer(str(at), low=0, high=room, default=0) for at, room in enumerate(switches)}
    own.refuse_unknown()
    if sum(found.values()) >= sum(switches):
        reader.fault("lost_nodes", "no node is left", allowed=f"{sum(switches) - 1} nodes at most")
    return found


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
        replace(
            kind, nodes=kind.nodes - state.lost.get(kind.name, 0),
            switches=tuple(room - state.lost_under.get(at, 0) for at, room in enumerate(kind.switches)),
        )
        for kind in request.fleet.kinds
    )  # fmt: skip
    for kind in kinds:
        held = {
            name: one.nodes or 0
            for name, one in state.jobs.items()
            if one.state == "running" and one.kind == kind.name
        }
        if sum(held.values()) > kind.nodes:
            words = ", ".join(f"{name} {nodes}" for name, nodes in held.items())
            raise InvalidProblemError.of(
                "/jobs",
                f"running jobs hold {sum(held.values())} of {kind.nodes} nodes ({words})",
                allowed="state: failed for the job that lost its nodes",
            )
        _require_under(kind, state)
    done = {name for name, one in state.jobs.items() if one.state == "done"}
    jobs = tuple(_from_now(job, state, done) for job in request.fleet.jobs if job.name not in done)
    jobs += tuple(job for job, _ in state.arrived.values())
    if not jobs:
        raise InvalidProblemError.of(
            "/jobs", "every job of the fleet is done", allowed="a job that is left"
        )
    groups = tuple(
        replace(group, num_nodes=group.num_nodes - state.lost.get(kind, 0))
        for kind, group in request.cluster.group_named.items()
    )
    problems = {
        name: replace(one, steps=_left(one.steps, state.jobs.get(name)))
        for name, one in request.problems.items()
    }
    problems |= {name: planned for name, (_, planned) in state.arrived.items()}
    begin = None if request.begin is None else request.begin + timedelta(minutes=state.now_min)
    return _checked(
        replace(
            request, fleet=replace(request.fleet, kinds=kinds, jobs=jobs), problems=problems, begin=begin,
            cluster=replace(request.cluster, groups=groups), places={**request.places, **state.places},
            running=frozenset(name for name, one in state.jobs.items() if one.state == "running"),
        ),
        state.arrived,
    )  # fmt: skip


def _require_under(kind: NodeKind, state: FleetState) -> None:
    """Refuse running jobs that hold more nodes under a switch than are left there.

    Raises:
        InvalidProblemError: with the switch and what they hold.
    """
    for at, room in enumerate(kind.switches):
        held = sum(one.under.get(at, 0) for one in state.jobs.values())
        if held > room:
            raise InvalidProblemError.of(
                "/jobs", f"running jobs hold {held} of {room} nodes under switch {at}",
                allowed="state: failed for the job that lost its nodes",
            )  # fmt: skip


def _left(steps: int, state: JobState | None) -> int:
    return steps if state is None else max(1, state.steps - state.steps_done)


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
        node_counts=(own.nodes,), least_nodes=own.nodes, most_nodes=own.nodes, under=own.under,
        uplinks=own.uplinks,
    )  # fmt: skip


def _checked(request: FleetRequest, arrived: Mapping[str, object]) -> FleetRequest:
    """Refuse a job that needs more nodes than are left, and faults of jobs that have arrived."""
    of = faults_of(request.fleet, request.at) if arrived else {}
    faults = [error for name in arrived for error in of.get(name, ())]
    for job in (job for job in request.fleet.jobs if job.name not in arrived):
        most = max(kind.nodes for kind in request.fleet.kinds if not job.kinds or kind.name in job.kinds)
        if job.least_nodes > most:
            message = f"{job.least_nodes} nodes are more than are left"
            faults.append(
                FieldError(
                    pointer=request.at(job.name, job.least_nodes_field), message=message,
                    allowed=f"1 to {most}",
                    nearest=str(most),
                )
            )  # fmt: skip
    if faults:
        raise InvalidProblemError(faults)
    return request
