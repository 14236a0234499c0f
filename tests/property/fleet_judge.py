"""Judges schedules of fleets, and finds the best one of a small fleet by trying all of them.

Written from the meaning of a fleet, in plain values; it shares no code with what it judges.

A job is a mapping: ``minutes`` by number of nodes, ``release``, ``due`` (None: never late), ``weight``,
``after``, ``never_with`` (names), ``same`` (a name or None). A schedule has (nodes, start) by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

Job = Mapping[str, Any]
Placed = Mapping[str, tuple[int, int]]


def broken(jobs: Mapping[str, Job], nodes: int, placed: Placed) -> Iterator[str]:
    """Yield what a schedule breaks, in words."""
    if set(placed) != set(jobs):
        yield "not every job is placed once"
        return
    end = {name: start + jobs[name]["minutes"].get(width, 0) for name, (width, start) in placed.items()}
    for name, job in jobs.items():
        width, start = placed[name]
        yield from _alone(name, job, width, start)
        if any(start < end[other] for other in job["after"]):
            yield f"{name} starts before a job that it waits for has ended"
        if any(start < end[other] and placed[other][1] < end[name] for other in job["never_with"]):
            yield f"{name} overlaps a job that it never runs with"
        if job["same"] is not None and placed[job["same"]][0] != width:
            yield f"{name} has another number of nodes than {job['same']}"
    for minute in range(max(end.values(), default=0)):
        used = sum(width for name, (width, start) in placed.items() if start <= minute < end[name])
        if used > nodes:
            yield f"{used} nodes are used in minute {minute}"


def _alone(name: str, job: Job, width: int, start: int) -> Iterator[str]:
    if width not in job["minutes"]:
        yield f"{name} has no plan on {width} nodes"
    if start < job["release"]:
        yield f"{name} starts before its release"
    if job.get("start") is not None and start != job["start"]:
        yield f"{name} is not where it is pinned"


def worth(jobs: Mapping[str, Job], placed: Placed) -> tuple[int, int, int]:
    """Return weighted lateness, last end and node-minutes."""
    late = last = used = 0
    for name, (width, start) in placed.items():
        job, end = jobs[name], start + jobs[name]["minutes"][width]
        late += 0 if job["due"] is None else job["weight"] * max(0, end - job["due"])
        last, used = max(last, end), used + width * (end - start)
    return late, last, used


def best_of_all(jobs: Mapping[str, Job], nodes: int) -> tuple[int, int, int] | None:
    """Return the objectives of the best schedule, by trying every start and every number of nodes.

    None: there is none. No schedule needs a start behind the last release and the sum of all durations.
    """
    horizon = max(job["release"] for job in jobs.values()) + sum(
        max(job["minutes"].values()) for job in jobs.values()
    )
    ways = [
        [(width, start) for width in job["minutes"] for start in range(job["release"], horizon)]
        for job in jobs.values()
    ]
    found = None
    for some in product(*ways):
        placed = dict(zip(jobs, some, strict=True))
        value = worth(jobs, placed)
        if (found is None or value < found) and next(broken(jobs, nodes, placed), None) is None:
            found = value
    return found
