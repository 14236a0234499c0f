"""Parts of a request outside its problem: the order of its job, how long it may wait, and a sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from meshwright.profiles.documents import MAX_ERRORS, pointer
from meshwright.profiles.errors import FieldError, InvalidProblemError, UnknownNameError
from meshwright.profiles.reading import FieldReader
from meshwright.service.requests.fields import DEFAULT_PRIORITY
from meshwright.service.requests.labels import read_labels
from meshwright.service.requests.parts import written_out
from meshwright.solver.configuration import VARIABLES
from meshwright.solver.problem import Problem

# --------------------------------------------------------------------------------------------------
# A sweep: one request with lists of values, and the problems that their product makes.
#
# ``{"num_nodes": [8, 16], "global_batch_size": [256, 512]}`` makes four points, each a request of its
# own: the request that was sent, with one value of every axis put into it. The last axis varies fastest.


MAX_POINTS = 256  # searches of one sweep
Value = bool | int | str | Mapping[str, object]
# Where the values of an axis go in a request; variables of the search are pinned.
PARTS: Mapping[str, tuple[str, ...]] = {
    "cluster": ("cluster",),
    "num_nodes": ("cluster", "num_nodes"),
    "global_batch_size": ("workload", "global_batch_size"),
    "seq_length": ("workload", "seq_length"),
    "precision": ("workload", "precision"),
    "optimizer": ("workload", "optimizer"),
    "launcher": ("launcher",),
}
AXES: Mapping[str, tuple[str, ...]] = {**PARTS, **{name: ("search", "pin", name) for name in VARIABLES}}
Axes = Mapping[str, Sequence[Value]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One problem of a sweep."""

    values: Mapping[str, bool | int | str]  # of every axis, as people read them
    at: Mapping[str, int]  # their places in the lists of the axes
    request: Mapping[str, object]


def axes_of(raw: object) -> Axes:
    """Return the ``sweep`` part of a request, in the order of ``AXES``.

    Raises:
        InvalidProblemError: an axis is unknown, empty, repeats a value, or there are too many points.
    """
    if not isinstance(raw, dict) or not raw:
        raise InvalidProblemError.of("/sweep", "must be an object of lists", allowed=", ".join(PARTS))
    raw = written_out(raw, ("sweep",))
    for name in raw.keys() - AXES.keys():
        raise UnknownNameError.among(pointer("sweep", name), name, list(AXES))
    faults = [fault for name, values in raw.items() if (fault := _fault_of(name, values))]
    if faults:
        raise InvalidProblemError(faults)
    count = prod(len(values) for values in raw.values())
    if count > MAX_POINTS:
        sizes = " × ".join(f"{len(values)} {name}" for name, values in raw.items())
        raise InvalidProblemError.of(
            "/sweep", f"{sizes} are {count} searches", allowed=f"up to {MAX_POINTS}"
        )
    return {name: raw[name] for name in AXES if name in raw}


def points_of(request: Mapping[str, object], axes: Axes) -> list[SweepPoint]:
    """Return every combination of the axes' values, put into ``request``.

    Raises:
        InvalidProblemError: numbers of nodes for a number of GPUs, which would be more on fewer nodes.
    """
    found = []
    _require_nodes(request, axes)
    for places in product(*(range(len(values)) for values in axes.values())):
        at, values = dict(zip(axes, places, strict=True)), dict[str, bool | int | str]()
        whole = dict(request)
        for name, place in at.items():
            value = axes[name][place]
            values[name] = _shown(name, value, place)
            whole = _with(whole, AXES[name], value)
        found.append(SweepPoint(values=values, at=at, request=whole))
    return found


def _require_nodes(request: Mapping[str, object], axes: Axes) -> None:
    """Refuse several numbers of nodes of a cluster that states a number of GPUs."""
    cluster = request.get("cluster")
    parts = [cluster, *(cluster.get("groups") or ())] if isinstance(cluster, dict) else []
    counted = [part["num_gpus"] for part in parts if isinstance(part, dict) and part.get("num_gpus")]
    if counted and "num_nodes" in axes:
        raise InvalidProblemError.of(
            "/sweep/num_nodes",
            f"num_gpus fixes one cluster of {counted[0]} GPUs, so num_nodes can't vary",
            allowed="a cluster without num_gpus",
        )


def problems_of(
    points: Sequence[SweepPoint], parse: Callable[[Mapping[str, object]], Problem]
) -> list[Problem]:
    """Return the problem of every point.

    Raises:
        InvalidProblemError: points that are none; a fault of a swept value points into ``/sweep``.
    """
    problems, faults = list[Problem](), dict[tuple[str, str], FieldError]()
    for point in points:
        try:
            problems.append(parse(point.request))
        except InvalidProblemError as fault:
            for error in fault.errors:
                moved = _moved(error, point)
                faults.setdefault((moved.pointer, error.message), moved)
    if faults:
        raise InvalidProblemError(list(faults.values())[:MAX_ERRORS])
    return problems


def words_of(values: Mapping[str, object]) -> str:
    """Return ``num_nodes = 8, global_batch_size = 256``."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _fault_of(name: str, values: object) -> FieldError | None:
    at = pointer("sweep", name)
    if not isinstance(values, list) or not values:
        return FieldError(pointer=at, message="must be a list of one value or more")
    seen = set[str]()
    for index, value in enumerate(values):
        is_object = isinstance(value, dict) and name == "cluster"
        if not is_object and not isinstance(value, bool | int | str):
            message = "must be a name or a cluster" if name == "cluster" else "must be a number or a word"
            return FieldError(pointer=pointer("sweep", name, index), message=message)
        text = json.dumps(value, sort_keys=True)
        if text in seen:
            return FieldError(pointer=pointer("sweep", name, index), message="is listed twice")
        seen.add(text)
    return None


def _with(request: Mapping[str, object], path: Sequence[str], value: Value) -> dict[str, object]:
    """Return a request with one value put in; a non-object on the way stays, to be refused."""
    if path == ("cluster",) and isinstance(value, str):  # a name keeps the number of nodes
        cluster = request.get("cluster")
        nodes = cluster.get("num_nodes") if isinstance(cluster, dict) else None
        return {**request, "cluster": {"name": value} | ({} if nodes is None else {"num_nodes": nodes})}
    name, *rest = path
    if not rest:
        return {**request, name: value}
    part = request.get(name, {})
    if not isinstance(part, dict):
        return dict(request)
    groups = part.get("groups")
    if rest == ["num_nodes"] and isinstance(groups, list) and len(groups) == 1:
        inner = _with(groups[0], rest, value) if isinstance(groups[0], dict) else groups[0]
        return {**request, name: {**part, "groups": [inner]}}
    return {**request, name: _with(part, rest, value)}


def _shown(name: str, value: Value, place: int) -> bool | int | str:
    """Return a value as people read it: an inline cluster by its name, or by its place."""
    if not isinstance(value, Mapping):
        return value
    given = value.get("name")
    return given if isinstance(given, str) and given else f"{name} {place + 1}"


def _moved(error: FieldError, point: SweepPoint) -> FieldError:
    """Return a fault of one point; it points at the swept value where that is at fault."""
    for name, place in point.at.items():
        at = pointer(*AXES[name])
        if error.pointer == at or error.pointer.startswith(f"{at}/"):
            return replace(error, pointer=pointer("sweep", name, place) + error.pointer.removeprefix(at))
    return replace(error, message=f"{error.message} (with {words_of(point.values)})")


MAX_PRIORITY = 9
MIN_DEADLINE_S, MAX_DEADLINE_S = 0.001, 31_536_000.0  # a year
QUEUEING = ("priority", "deadline_s", "labels")
FIELDS = ("sweep", *QUEUEING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The points of a sweep, and the problem of each."""

    axes: Axes
    points: tuple[SweepPoint, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """How a job waits, and how it is found."""

    priority: int
    deadline_s: float | None  # from submission to the start by a worker, or the job expires
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest(Queueing):
    """A request, read."""

    problem: Problem  # of a sweep, its first point
    sweep: Sweep | None


def read_queueing(raw: Mapping[str, object]) -> Queueing:
    """Return priority, deadline and labels of a request.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    reader = FieldReader(raw, "")
    priority = reader.integer("priority", low=0, high=MAX_PRIORITY, default=DEFAULT_PRIORITY)
    deadline_s = None
    if reader.has("deadline_s"):
        deadline_s = reader.number("deadline_s", low=MIN_DEADLINE_S, high=MAX_DEADLINE_S)
    reader.finish()
    return Queueing(
        priority=priority,
        deadline_s=deadline_s,
        labels=read_labels(raw["labels"]) if raw.get("labels") is not None else {},
    )


def read_job_request(
    raw: Mapping[str, object], parse: Callable[[Mapping[str, object]], Problem]
) -> JobRequest:
    """Return the request in ``raw``; ``parse`` reads a problem.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    how = read_queueing(raw)
    rest = {name: value for name, value in raw.items() if name not in FIELDS}
    sweep = None
    if raw.get("sweep") is not None:
        axes = axes_of(raw["sweep"])
        points = points_of(rest, axes)
        sweep = Sweep(axes=axes, points=tuple(points), problems=tuple(problems_of(points, parse)))
    return JobRequest(
        problem=sweep.problems[0] if sweep else parse(rest),
        sweep=sweep,
        priority=how.priority,
        deadline_s=how.deadline_s,
        labels=how.labels,
    )
