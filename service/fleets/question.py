"""A fleet as a question to the service: read from a request, stored with every figure, and read back.

Next to the fleet a request states how much work is done, and the states of a fleet that runs already: each
plans anew what the ones before it left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from meshwright.profiles.documents import pointer, require_plain
from meshwright.profiles.errors import FieldError, InvalidProblemError, faults_as
from meshwright.profiles.inline import cluster_to_mapping
from meshwright.profiles.reading import FieldReader
from meshwright.service.fleets.request import OTHER_QUESTIONS, FleetRequest, Parse, read_fleet
from meshwright.service.fleets.running import planned_again, read_state
from meshwright.service.jobs.answers import versions_of
from meshwright.service.requests.parse import parse_problem, problem_to_mapping
from meshwright.service.requests.parts import without_schema
from meshwright.solver.fleet.problem import PlannedJob, choices_of
from meshwright.solver.post_training.problem import PostTraining
from meshwright.solver.problem import Problem

EFFORT, MAX_EFFORT = 10.0, 3600.0  # deterministic seconds of CP-SAT
TIME_LIMIT_S, MAX_TIME_LIMIT_S = 600.0, 86_400.0
MAX_STATES = 100
_OPTIONS = ("effort", "seed", "skip_impossible", "time_limit_s")
_OF_THE_FLEET = ("begin", "node_hour_price", "max_power_kw")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetQuestion:
    """A fleet, and how much work its answer may take."""

    fleet: FleetRequest
    request: Mapping[str, object]  # canonical: what the service stores
    effort: float = EFFORT
    seed: int = 0
    skip_impossible: bool = False
    time_limit_s: float = TIME_LIMIT_S


def read_question(raw: Mapping[str, object], parse: Parse = parse_problem) -> FleetQuestion:
    """Return the question in ``raw``; ``parse`` reads a job's problem.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    plain = without_schema(require_plain(raw))
    reader = FieldReader({name: plain[name] for name in _OPTIONS if name in plain}, "")
    effort = reader.number("effort", low=0.01, high=MAX_EFFORT, default=EFFORT)
    seed = reader.integer("seed", low=0, high=2**31 - 1, default=0)
    skip = reader.flag("skip_impossible", default=False)
    time_limit_s = reader.number("time_limit_s", low=0.1, high=MAX_TIME_LIMIT_S, default=TIME_LIMIT_S)
    reader.finish()
    rest = {name: value for name, value in plain.items() if name not in {*_OPTIONS, "states"}}
    fleet = read_fleet(rest, skip_impossible=skip, parse=parse)
    options = dict(zip(_OPTIONS, (effort, seed, skip, time_limit_s), strict=True))
    request: dict[str, object] = {**_canonical(rest, fleet), **options}
    states = _states(plain)
    for at, state in enumerate(states):
        with faults_as(partial(_in_state, at)):
            read = read_state(state, fleet, parse)
            fleet = planned_again(fleet, read)
        if "arrived" in state:
            arrived = {name: one for name, (_, one) in read.arrived.items()}
            states[at] = {**state, "arrived": _with_problems(state["arrived"], arrived)}
    if states:
        request["states"] = states
    return FleetQuestion(
        fleet=fleet, request=request, effort=effort, seed=seed, skip_impossible=skip,
        time_limit_s=time_limit_s,
    )  # fmt: skip


def versions_of_fleet(fleet: FleetRequest) -> dict[str, str]:
    """Return the versions of the code and of the measured costs that would answer a fleet here."""
    found = [versions_of(problem) for problem in _distinct(fleet)]
    profiles = sorted({one["profile"] for one in found})
    return {**(found[0] if found else {}), "profile": " ".join(profiles)}


def _distinct(fleet: FleetRequest) -> Iterable[Problem]:
    seen = set[tuple[str, str]]()
    for problem in (planned.training for planned in fleet.problems.values()):
        for kind, group in fleet.cluster.group_named.items():
            if (kind, problem.launcher) not in seen:
                seen.add((kind, problem.launcher))
                yield replace(
                    problem, cluster=replace(problem.cluster, groups=(group,), between_groups=None)
                )


def num_choices(fleet: FleetRequest) -> int:
    """Return the number of pairs of a job and a number of nodes."""
    return sum(len(choices_of(fleet.fleet, job)) for job in fleet.fleet.jobs)


def _in_state(state: int, fault: FieldError) -> FieldError:
    """Let a fault of a state point to it; those of the fleet's own jobs stay."""
    if fault.pointer.startswith("/jobs/") and fault.pointer.split("/")[2].isdecimal():
        return fault
    return replace(fault, pointer=pointer("states", state) + fault.pointer)


def _states(plain: Mapping[str, object]) -> list[dict[str, Any]]:
    raw = plain.get("states", [])
    if not isinstance(raw, list) or len(raw) > MAX_STATES:
        raise InvalidProblemError.of(
            "/states",
            "must be a list of states, each of a running fleet",
            allowed=f"up to {MAX_STATES}; then send the fleet anew",
        )
    for at, state in enumerate(raw):
        if not isinstance(state, Mapping):
            raise InvalidProblemError.of(pointer("states", at), "must be an object", allowed="now_hours, …")
    return [dict(state) for state in raw]


def _canonical(raw: Mapping[str, object], fleet: FleetRequest) -> dict[str, object]:
    return {
        "name": fleet.name,
        "cluster": cluster_to_mapping(fleet.cluster),
        **{name: raw[name] for name in _OF_THE_FLEET if name in raw},
        "jobs": _with_problems(raw["jobs"], fleet.problems),
    }


def _with_problems(raw: object, problems: Mapping[str, PlannedJob]) -> list[object]:
    """Return jobs with the figures of their problems; a job at fault stays, to be left out again."""
    jobs: Sequence[Any] = raw if isinstance(raw, list | tuple) else ()
    return [
        {**job, "problem": _problem(problems[job["name"]])} if job["name"] in problems else job
        for job in jobs
    ]


def _problem(planned: PlannedJob) -> dict[str, object]:
    if isinstance(planned.problem, PostTraining):
        return {name: value for name, value in planned.stated.items() if name != "cluster"}
    whole: dict[str, Any] = dict(problem_to_mapping(planned.problem))
    search = {name: value for name, value in whole["search"].items() if name not in OTHER_QUESTIONS}
    return {name: value for name, value in {**whole, "search": search}.items() if name != "cluster"}
