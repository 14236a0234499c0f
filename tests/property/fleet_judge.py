"""Judges schedules of fleets, and finds the best one of a small fleet by trying all of them.

Written from the meaning of a fleet, in plain values; it shares no code with what it judges.

A job is a mapping: ``minutes`` by number of nodes, ``release``, ``due`` (None: never late), ``weight``,
``after``, ``never_with`` (names), ``same`` (a name or None). A schedule has (nodes, start) by name. With
nodes of several kinds, a number of nodes is written as kind and number: ("fast", 2). Under a shared limit
of power it has the limit of its GPUs as well, ("gpu", 2, 300), and ``watts`` of a job what it draws. Under
switches with short uplinks it has the nodes under each switch and the job's share of the uplinks of each,
in nodes of the ``each`` that a switch joins: ("gpu", 4, ((0, 2), (1, 2)), 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

Job = Mapping[str, Any]
Width = Any  # a number of nodes, or (kind, number)
Placed = Mapping[str, tuple[Width, int]]
Nodes = int | Mapping[str, int]  # of the cluster, or by kind


def of_kind(width: Width) -> tuple[str, int]:
    """Return kind and number of nodes."""
    return width[:2] if isinstance(width, tuple) else ("", width)


def broken(
    jobs: Mapping[str, Job], nodes: Nodes, placed: Placed, most_w: int | None = None,
    each: int | None = None,
) -> Iterator[str]:  # fmt: skip
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
        if job["same"] is not None and of_kind(placed[job["same"]][0])[1] != of_kind(width)[1]:
            yield f"{name} has another number of nodes than {job['same']}"
    yield from _overfull(nodes, placed, end)
    if each is not None:
        yield from _crowded(each, placed, end)
    for minute in range(max(end.values()) if most_w is not None else 0):
        here = [name for name, (_, start) in placed.items() if start <= minute < end[name]]
        watts = sum(jobs[name]["watts"][placed[name][0]] for name in here)
        if watts > (most_w or 0):
            yield f"{watts} W are drawn in minute {minute}"


def _overfull(nodes: Nodes, placed: Placed, end: Mapping[str, int]) -> Iterator[str]:
    for minute in range(max(end.values(), default=0)):
        used = dict[str, int]()
        for name, (width, start) in placed.items():
            if start <= minute < end[name]:
                kind, number = of_kind(width)
                used[kind] = used.get(kind, 0) + number
        for kind, number in used.items():
            if number > (nodes if isinstance(nodes, int) else nodes[kind]):
                yield f"{number} nodes {kind} are used in minute {minute}"


def _crowded(each: int, placed: Placed, end: Mapping[str, int]) -> Iterator[str]:
    """Yield switches with more nodes than they join, or uplinks that are given away twice."""
    for minute in range(max(end.values(), default=0)):
        here = [width for name, (width, start) in placed.items() if start <= minute < end[name]]
        for switch in {one for _, _, under, _ in here for one, _ in under}:
            own = [(dict(under)[switch], share) for _, _, under, share in here if switch in dict(under)]
            if sum(nodes for nodes, _ in own) > each:
                yield f"too many nodes are under switch {switch} in minute {minute}"
            if sum(share for _, share in own) > each:
                yield f"more than the uplinks of switch {switch} are used in minute {minute}"


def _alone(name: str, job: Job, width: Width, start: int) -> Iterator[str]:
    if width not in job["minutes"]:
        yield f"{name} has no plan on {width} nodes"
    if start < job["release"]:
        yield f"{name} starts before its release"
    if job.get("start") is not None and start != job["start"]:
        yield f"{name} is not where it is pinned"


def worth(
    jobs: Mapping[str, Job], placed: Placed, prices: Mapping[str, int] | None = None
) -> tuple[int, int, int]:
    """Return weighted lateness, last end and cost: node-minutes times the prices of their kinds."""
    late = last = used = 0
    for name, (width, start) in placed.items():
        job, end = jobs[name], start + jobs[name]["minutes"][width]
        late += 0 if job["due"] is None else job["weight"] * max(0, end - job["due"])
        kind, number = of_kind(width)
        last, used = max(last, end), used + (prices or {}).get(kind, 1) * number * (end - start)
    return late, last, used


def best_of_all(
    jobs: Mapping[str, Job], nodes: Nodes, prices: Mapping[str, int] | None = None,
    most_w: int | None = None, each: int | None = None,
) -> tuple[int, int, int] | None:  # fmt: skip
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
        value = worth(jobs, placed, prices)
        if (found is None or value < found) and next(
            broken(jobs, nodes, placed, most_w, each), None
        ) is None:
            found = value
    return found
