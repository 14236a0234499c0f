"""What a request says beside its problem: the order of its job, how long it may wait, and a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profiles.reading import FieldReader
from service.db.records import DEFAULT_PRIORITY
from service.sweep.axes import Axes, Point, axes_of, points_of, problems_of
from solver.problem import Problem

MAX_PRIORITY = 9
MIN_DEADLINE_S, MAX_DEADLINE_S = 0.001, 31_536_000.0  # a year
FIELDS = ("sweep", "priority", "deadline_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The points of a sweep, and the problem of each."""

    axes: Axes
    points: tuple[Point, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A request, read."""

    problem: Problem  # of a sweep, its first point
    sweep: Sweep | None
    priority: int
    deadline_s: float | None  # unclaimed so many seconds after it was submitted: expired


def read_job_request(
    raw: Mapping[str, object], parse: Callable[[Mapping[str, object]], Problem]
) -> JobRequest:
    """The request in ``raw``; ``parse`` reads a problem.

    Raises:
        InvalidProblemError: with one FieldError per fault, as JSON pointers into ``raw``.
    """
    reader = FieldReader(raw, "")
    priority = reader.integer("priority", low=0, high=MAX_PRIORITY, default=DEFAULT_PRIORITY)
    deadline_s = None
    if reader.has("deadline_s"):
        deadline_s = reader.number("deadline_s", low=MIN_DEADLINE_S, high=MAX_DEADLINE_S)
    reader.finish()
    rest = {name: value for name, value in raw.items() if name not in FIELDS}
    sweep = sweep_of(rest, raw["sweep"], parse) if raw.get("sweep") is not None else None
    problem = sweep.problems[0] if sweep else parse(rest)
    return JobRequest(problem=problem, sweep=sweep, priority=priority, deadline_s=deadline_s)


def sweep_of(
    rest: Mapping[str, object], part: object, parse: Callable[[Mapping[str, object]], Problem]
) -> Sweep:
    """The sweep that ``part`` makes of the request ``rest``.

    Raises:
        InvalidProblemError: an axis or a point is wrong.
    """
    axes = axes_of(part)
    points = points_of(rest, axes)
    return Sweep(axes=axes, points=tuple(points), problems=tuple(problems_of(points, parse)))
